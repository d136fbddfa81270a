"""The slow definition of every policy under greedy, by tiers: plain transformers, everything recomputed for each token.

A rule here sees what all models would write at a place, and says which of them does. It knows nothing of hand-offs,
drafts in flight or roll-backs: a drafted suffix is judged token by token, since what comes before a draft that
stands is the answer itself.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from allroads.engine.sampling import uniform
from allroads.policies import me, random
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from .oracle import Answer, Oracle, last_outputs

Parameters = Mapping[str, float | Sequence[float]]


@dataclass(frozen=True)
class Place:
    """All that can be known at a place of an answer."""

    position: int
    num_left: int
    """Tokens that the answer may still have."""
    seed: int
    logits: list[Tensor]
    """[vocabulary] by tier."""
    hidden: Tensor
    """[width], the small model's."""

    def best(self, tier: int) -> int:
        """What a model would write."""
        return int(self.logits[tier].argmax())

    def gap(self, tier: int) -> float:
        """How clearly."""
        first, second = self.logits[tier].topk(2).values
        return float(first - second)

    def probabilities(self, tier: int) -> Tensor:
        return self.logits[tier].double().softmax(dim=-1)

    def entropy(self, tier: int) -> float:
        logs = self.logits[tier].double().log_softmax(dim=-1)
        return -float((logs.exp() * logs).sum())

    @property
    def large(self) -> int:
        return len(self.logits) - 1

    def written_by(self, tier: int, *margins: float) -> "Written":
        """A model's own token, where these calls led to it."""
        return Written(self.best(tier), tier, min([self.gap(tier), *margins]))


@dataclass(frozen=True)
class Written:
    token_id: int
    tier: int
    margin: float = math.inf
    """The closest of the calls that led here."""


Rule = Callable[[Place], Written]
"""One for each answer: it may remember."""


class PolicyOracle(Oracle):
    """Tier 0 is `names[0]`, and the last of them the large model. Scorers lie beside them."""

    def __init__(self, directory: Path, names: Sequence[str] = ("slm", "llm")) -> None:
        super().__init__(directory, slm=names[0], llm=names[-1])
        self._directory = directory
        middle = [AutoModelForCausalLM.from_pretrained(directory / name, dtype=torch.float32) for name in names[1:-1]]
        self.models = [self.slm, *(model.eval() for model in middle), self.llm]
        self.num_tokens = len(PreTrainedTokenizerFast.from_pretrained(str(directory / names[0])))

    @torch.inference_mode()
    def answers(
        self,
        policy: str,
        prompts: Sequence[list[int]],
        parameters: Parameters,
        *,
        max_tokens: int,
        stop_token_ids: frozenset[int] = frozenset(),
        seeds: Sequence[int] | None = None,
    ) -> list[Answer]:
        """An answer to each prompt.

        `parameters` names all that the policy has; `seeds` matter to what is drawn, and are 0 where none are given.
        """
        answers = [Answer() for _ in prompts]
        rules = [self.rule(policy, parameters) for _ in prompts]
        open_rows = list(range(len(prompts)))
        for position in range(max_tokens):
            if not open_rows:
                break
            texts = [prompts[row] + answers[row].token_ids for row in open_rows]
            outputs = [last_outputs(model, texts) for model in self.models]
            for index, row in enumerate(list(open_rows)):
                place = Place(
                    position=position,
                    num_left=max_tokens - position,
                    seed=seeds[row] if seeds else 0,
                    logits=[logits[index, : self.num_tokens] for logits, _ in outputs],
                    hidden=outputs[0][1][index],
                )
                written = rules[row](place)
                answer = answers[row]
                answer.token_ids.append(written.token_id)
                answer.tiers.append(written.tier)
                answer.margin = min(answer.margin, written.margin)
                answer.large.append(place.best(place.large))
                answer.large_margin = min(answer.large_margin, place.gap(place.large))
                if written.token_id in stop_token_ids:
                    open_rows.remove(row)
        return answers

    def rule(self, policy: str, parameters: Parameters) -> Rule:
        """The rule of one answer."""
        one = {name: value for name, value in parameters.items() if isinstance(value, int | float)}
        if policy.startswith("cascade-"):
            return _Cascade(policy.removeprefix("cascade-"), one)
        rules: dict[str, Callable[[], Rule]] = {
            "slm": lambda: lambda place: place.written_by(0),
            "llm": lambda: lambda place: place.written_by(place.large),
            "random": lambda: lambda place: _random(place, one["share"]),
            "me": lambda: lambda place: _me(place, _several(parameters["weights"])),
            "entropy": lambda: lambda place: _borrow(place, place.entropy(0) - one["threshold"]),
            "r2r": lambda: self._by_classifier(one["threshold"]),
            "citer": lambda: self._by_head("citer", lambda score: one["threshold"] - score),
            "co-llm": lambda: self._by_head("co-llm", lambda score: score - one["threshold"]),
            "r-stitch": lambda: _RStitch(one["threshold"]),
            "immediate": lambda: lambda place: _immediate(place, one),
            "momentum": lambda: _Momentum(one),
            "rolling": lambda: _Rolling(one),
            "speculative": lambda: _Lossless(one),
            "lossless": lambda: _Lossless(one),
            "bild": lambda: _Bild(one),
        }
        return rules[policy]()

    def _by_classifier(self, threshold: float) -> Rule:
        decide = self.r2r(threshold)

        def rule(place: Place) -> Written:
            is_large, margin = decide(place.position, place.logits[0], place.hidden, place.best(0))
            # The score is of the small model's token, so it must be that one also where it is dropped.
            return place.written_by(place.large if is_large else 0, margin, place.gap(0))

        return rule

    def _by_head(self, name: str, excess: Callable[[float], float]) -> Rule:
        """By a network over the hidden state; the large model writes where its score gives a positive `excess`."""
        tensors = load_file(self._directory / name / "scorer.safetensors")
        network = _citer if name == "citer" else _co_llm

        def rule(place: Place) -> Written:
            own = excess(float(network(tensors, place.hidden).sigmoid()))
            return place.written_by(place.large if own > 0 else 0, abs(own))

        return rule


def _citer(tensors: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Two layers, each linear, batch norm by its averages, ReLU; then one logit."""
    for layer in ("layers.0", "layers.1"):
        hidden = functional.linear(hidden, tensors[f"{layer}.0.weight"], tensors[f"{layer}.0.bias"])
        deviation = (tensors[f"{layer}.1.running_var"] + 1e-5).sqrt()
        hidden = (hidden - tensors[f"{layer}.1.running_mean"]) / deviation
        hidden = (hidden * tensors[f"{layer}.1.weight"] + tensors[f"{layer}.1.bias"]).clamp(min=0)
    return hidden @ tensors["output.weight"][0] + tensors["output.bias"][0]


def _co_llm(tensors: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    return hidden @ tensors["row.weight"][0]


def _borrow(place: Place, excess: float, *others: float) -> Written:
    """The large model writes one token where the excess is not negative."""
    return place.written_by(place.large if excess >= 0 else 0, abs(excess), *others)


def _random(place: Place, share: float) -> Written:
    drawn = uniform(place.seed ^ random.SALT, place.position)
    return place.written_by(place.large if drawn < share else 0)


def _me(place: Place, weights: Sequence[float]) -> Written:
    drawn = uniform(place.seed ^ me.SALT, place.position) * sum(weights)
    tier = next(tier for tier in range(len(weights)) if drawn < sum(weights[: tier + 1]))
    return place.written_by(tier)


class _RStitch:
    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._tier = 0

    def __call__(self, place: Place) -> Written:
        at_home = math.inf
        if self._tier == 0:
            excess = self._excess(place, 0)
            if excess <= 0:
                return place.written_by(0, -excess)
            at_home, self._tier = excess, place.large
        excess = self._excess(place, place.large)
        if excess <= 0:
            self._tier = 0
        return place.written_by(place.large, abs(excess), at_home)

    def _excess(self, place: Place, tier: int) -> float:
        return place.entropy(tier) / math.log(len(place.logits[tier])) - self._threshold


_STEEPNESS = 0.03
"""A logit that is off by d moves the aleatoric uncertainty of the tiny models by less than so many d."""


def _aleatoric(place: Place) -> float:
    """Mean entropy of Dirichlet(x), written as psi(S + 1) - sum x/S psi(x + 1), of the ten best logits x."""
    top = place.logits[0].double().sort(descending=True).values[:10]
    total = top.sum()
    value = float(torch.special.psi(total + 1) - (top / total * torch.special.psi(top + 1)).sum())
    return min(max(value, 0.0), math.log(10))


def _immediate(place: Place, parameters: Mapping[str, float]) -> Written:
    excesses = [(_aleatoric(place) - parameters["threshold"]) / _STEEPNESS]
    if parameters["epistemic"]:
        total = float(place.logits[0].double().topk(10).values.sum())
        excesses.append((10 / (10 + total) if total > 0 else 1.0) - parameters["epistemic"])
    if parameters["entropy"]:
        excesses.append(place.entropy(0) - parameters["entropy"])
    return _borrow(place, min(excesses))


class _Momentum:
    def __init__(self, parameters: Mapping[str, float]) -> None:
        self._parameters = parameters
        self._mean, self._is_large = 0.0, True

    def __call__(self, place: Place) -> Written:
        excess = (_aleatoric(place) - self._parameters["threshold"]) / _STEEPNESS
        weight = self._parameters["momentum"]
        self._mean = weight * self._mean + (1 - weight) * (1.0 if excess < 0 else 0.0)
        limit = self._parameters["upper"] if self._is_large else self._parameters["lower"]
        self._is_large = not self._mean > limit
        return place.written_by(place.large if self._is_large else 0, abs(excess))


class _Rolling:
    def __init__(self, parameters: Mapping[str, float]) -> None:
        self._parameters = parameters
        self._is_large = True
        self._window: list[float] = []

    def __call__(self, place: Place) -> Written:
        value, threshold = _aleatoric(place), self._parameters["threshold"]
        if self._is_large:
            self._window = [*self._window, value][-int(self._parameters["window"]) :]
            excess = (sum(self._window) / len(self._window) - threshold) / _STEEPNESS
        else:
            # Either suffices, so the one that holds more clearly decides how close the call is.
            excess = min((value - threshold) / _STEEPNESS, place.entropy(0) - self._parameters["entropy"])
            self._window = [value]
        self._is_large = excess >= 0
        if not self._is_large:
            self._window = []
        return _borrow(place, excess)


@dataclass
class _Drafts:
    """Runs of drafts: how long each is, and how many stood. After a whole run the large model may write one token."""

    length: Callable[[list[tuple[int, int]]], int]
    """Of the next run, from the pairs (drafts, drafts that stood) so far."""
    past: list[tuple[int, int]] = field(default_factory=list)
    planned: int = 0
    stood: int = 0

    def begin(self, place: Place) -> None:
        """At each place: where no run is on, one begins."""
        if not self.planned:
            self.planned, self.stood = min(self.length(self.past), place.num_left), 0

    @property
    def is_whole(self) -> bool:
        return self.stood == self.planned

    def end(self) -> None:
        self.past.append((self.planned, self.stood))
        self.planned = 0


class _Lossless:
    """Drafts stand while they are the large model's own choice."""

    def __init__(self, parameters: Mapping[str, float]) -> None:
        longest = int(parameters["draft_tokens"])
        adaptive = bool(parameters["adaptive"])
        self._drafts = _Drafts(
            lambda past: _adaptive_length(past, longest, parameters["draft_cost"]) if adaptive else longest
        )

    def __call__(self, place: Place) -> Written:
        self._drafts.begin(place)
        if not self._drafts.is_whole and place.best(0) == place.best(place.large):
            self._drafts.stood += 1
            return Written(place.best(0), 0, min(place.gap(0), place.gap(place.large)))
        was_whole = self._drafts.is_whole
        self._drafts.end()
        return place.written_by(place.large, math.inf if was_whole else place.gap(0))


def _adaptive_length(past: Sequence[tuple[int, int]], longest: int, cost: float) -> int:
    """The length that commits most tokens for its cost, where a draft stands with the probability seen so far.

    Seen are four that stood and one that fell at first, and then each run's, counted 0.9 less with each newer run.
    """
    stood, fell = 4.0, 1.0
    for age, (num_drafts, num_stood) in enumerate(reversed(past)):
        stood += 0.9**age * num_stood
        fell += 0.9**age * (num_stood < num_drafts)
    share = stood / (stood + fell)
    # One token is always committed, and one more for each draft that all before it stood.
    worths = [sum(share**n for n in range(count + 1)) / (1 + cost * count) for count in range(1, longest + 1)]
    return worths.index(max(worths)) + 1


class _Bild:
    def __init__(self, parameters: Mapping[str, float]) -> None:
        self._parameters = parameters
        self._drafts = _Drafts(lambda past: int(parameters["draft_tokens"]))

    def __call__(self, place: Place) -> Written:
        self._drafts.begin(place)
        if self._drafts.is_whole:
            self._drafts.end()
            return place.written_by(place.large)
        sureness = float(place.probabilities(0).max()) - self._parameters["fallback"]
        if sureness < 0:
            self._drafts.end()
            return place.written_by(place.large, -sureness)
        draft = place.best(0)
        surprise = -float(place.logits[place.large].double().log_softmax(dim=-1)[draft])
        excess = surprise - self._parameters["rollback"]
        if excess > 0:
            self._drafts.end()
            return place.written_by(place.large, sureness, excess, place.gap(0))
        self._drafts.stood += 1
        return Written(draft, 0, min(sureness, -excess, place.gap(0)))


class _Cascade:
    """A draft stands where the rule accepts it, or it is the large model's own choice. Nothing follows a whole run."""

    def __init__(self, rule: str, parameters: Mapping[str, float]) -> None:
        self._rule, self._alpha = rule, parameters["alpha"]

    def __call__(self, place: Place) -> Written:
        draft, own = place.best(0), place.best(place.large)
        accepts = self._excess(place, draft)
        logits = place.logits[place.large]
        agrees = place.gap(place.large) if draft == own else float(logits[draft] - logits[own])
        # Either suffices, so the one that holds more clearly decides how close the call is.
        if accepts >= 0 or draft == own:
            return Written(draft, 0, min(max(accepts, agrees), place.gap(0)))
        return place.written_by(place.large, -max(accepts, agrees), place.gap(0))

    def _excess(self, place: Place, draft: int) -> float:
        """By how much the rule accepts the draft."""
        q, p = place.probabilities(0), place.probabilities(place.large)
        distance = float((q - p).abs().sum()) / 2
        most_q, most_p, alpha = float(q.max()), float(p.max()), self._alpha
        return {
            "chow": most_q - (1 - alpha),
            "diff": most_q - (most_p - alpha),
            "opt": most_q - (most_p - alpha * distance),
            "v1": float(q[draft]) - (most_p - alpha),
            "v2": float(p[draft]) - (most_p - alpha),
            "v3": float(p[draft]) - (1 - alpha) * most_p,
        }[self._rule]


def _several(value: float | Sequence[float]) -> Sequence[float]:
    return [value] if isinstance(value, int | float) else value
