"""The slow definition of schedules and thresholds: transformers, no cache, one token at a time, everything recomputed.

`policies_oracle` has every policy.

Nothing of our engine is used. Prompts are computed side by side, padded on the right, which a causal
model cannot see; each row is what it would be alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from allroads.router.checkpoint import load_router
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    tiers: list[int] = field(default_factory=list)
    large: list[int] = field(default_factory=list)
    """What the large model would have written at each place."""
    large_margin: float = float("inf")
    """The closest call of these."""
    margin: float = float("inf")
    """The closest call: gap between the two best logits, or between a score and its threshold. Where it is
    within rounding, the order of additions decides, and no two implementations need to agree."""


Decide = Callable[[int, Tensor, Tensor, int], tuple[bool, float]]
"""(position, small logits [V], small hidden [H], proposal) -> (large model writes?, margin)."""


class Oracle:
    def __init__(self, directory: Path, *, slm: str = "slm", llm: str = "llm") -> None:
        self.slm = AutoModelForCausalLM.from_pretrained(directory / slm, dtype=torch.float32).eval()
        self.llm = AutoModelForCausalLM.from_pretrained(directory / llm, dtype=torch.float32).eval()
        self.router = load_router(directory / "router", directory / slm)

    @torch.inference_mode()
    def answer(
        self, prompts: list[list[int]], decide: Decide, *, max_tokens: int, stop_token_ids: frozenset[int]
    ) -> list[Answer]:
        answers = [Answer() for _ in prompts]
        open_rows = list(range(len(prompts)))
        for position in range(max_tokens):
            if not open_rows:
                break
            texts = [prompts[row] + answers[row].token_ids for row in open_rows]
            small, hidden = last_outputs(self.slm, texts)
            large, _ = last_outputs(self.llm, texts)
            for index, row in enumerate(list(open_rows)):
                proposal = int(small[index].argmax())
                is_large, margin = decide(position, small[index], hidden[index], proposal)
                logits = large[index] if is_large else small[index]
                token_id = int(logits.argmax())
                answer = answers[row]
                answer.token_ids.append(token_id)
                answer.tiers.append(int(is_large))
                answer.large.append(int(large[index].argmax()))
                own = large[index].topk(2).values
                answer.large_margin = min(answer.large_margin, float(own[0] - own[1]))
                gap = logits.topk(2).values
                # Where the small model's proposal is judged, it must be the same proposal.
                judged = small[index].topk(2).values
                answer.margin = min(answer.margin, margin, float(gap[0] - gap[1]), float(judged[0] - judged[1]))
                if token_id in stop_token_ids:
                    open_rows.remove(row)
        return answers

    def entropy(self, threshold: float) -> Decide:
        def decide(position: int, logits: Tensor, hidden: Tensor, proposal: int) -> tuple[bool, float]:
            value = float(torch.distributions.Categorical(logits=logits).entropy())
            return value >= threshold, abs(value - threshold)

        return decide

    def r2r(self, threshold: float) -> Decide:
        classifier, embedding = self.router.classifier, self.router.embedding
        size = classifier.arguments.logits_size

        def decide(position: int, logits: Tensor, hidden: Tensor, proposal: int) -> tuple[bool, float]:
            top = logits.sort(descending=True).values[:size]
            score = float(classifier(hidden[None], embedding[proposal][None], top[None]).sigmoid())
            return score >= threshold, abs(score - threshold)

        return decide


def scheduled(is_large: Callable[[int], bool]) -> Decide:
    return lambda position, logits, hidden, proposal: (is_large(position), float("inf"))


def last_outputs(model: PreTrainedModel, texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Logits and post-norm hidden state at the last token of each text."""
    width = max(map(len, texts))
    ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    last = torch.tensor([len(text) - 1 for text in texts])
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[torch.arange(len(texts)), last]
    return model.lm_head(hidden), hidden
