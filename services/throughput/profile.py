"""What a mesh does of late, as a setting for the models of throughput: fitted on line, and forgetting.

It is told what the tiers report and the time; it has no clock, no stream and no thread. Whoever asks for a setting gets
one at any time: of guesses at first, and `is_ready` says when it rests on what was seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from .phases import Phases
from .setting import Setting, Tier
from .step_fit import StepFit

_HALF_LIFE_S = 5.0
"""Of counts, which are many each second and change with the load; steps are remembered for longer."""
_LONGEST_GAP_S = 2.0
_READY_STEPS, _READY_VISITS = 50.0, 20.0
_RARE_TIER = 0.02
_LEAST_SHARE = 1e-4
_PRIOR_SHARE, _PRIOR_PROPOSALS = 0.1, 10.0
_PRIOR_VISITS = 2.0
_MOST = 1e12
_REQUEST_KEEP = 0.98
"""Weight that requests keep when one more has ended: some 50 count."""


@dataclass(frozen=True)
class TierSample:
    """What a tier did since the sample before, as `TierReport` has it. All times are seconds."""

    rows: Sequence[float] = ()
    """A step each, as are the next three."""
    positions: Sequence[float] = ()
    seconds: Sequence[float] = ()
    overlap: Sequence[float] = ()
    num_tokens: float = 0
    num_rejected: float = 0
    num_visits: float = 0
    num_visit_steps: float = 0
    num_confirmed: float = 0
    decision_s: float = 0.0
    away_s: float = 0.0
    there_s: float = 0.0
    waited_s: float = 0.0


@dataclass
class _Sums:
    """Of a tier's samples, old ones weighing less."""

    num_tokens: float = 0.0
    num_rejected: float = 0.0
    num_visits: float = 0.0
    num_visit_steps: float = 0.0
    num_confirmed: float = 0.0
    decision_s: float = 0.0
    away_s: float = 0.0
    there_s: float = 0.0
    waited_s: float = 0.0

    def add(self, sample: TierSample, keep: float) -> None:
        for name in _SUMMED:
            new = getattr(sample, name)
            setattr(self, name, keep * getattr(self, name) + (new if 0.0 <= new <= _MOST else 0.0))


_SUMMED = tuple(each.name for each in fields(_Sums))


@dataclass
class _Requests:
    """What the gateway sees of requests, old ones weighing less."""

    num_begun: float = 0.0
    first_token_s: float = 0.0
    num_prompt_tokens: float = 0.0
    num_ended: float = 0.0
    num_tokens: float = 0.0


@dataclass
class LiveProfile:
    """A mesh's step times, routing and requests. Everything that is told may be nonsense; that is left out."""

    tier_names: Sequence[str]
    """The home's first."""
    num_parameters: Sequence[int]
    """Parallel to `tier_names`: the first guess of a step is by the size of the model."""
    max_ahead: int = 0
    """As `Setting` has it."""
    _fits: list[StepFit] = field(init=False)
    _sums: list[_Sums] = field(init=False)
    _requests: _Requests = field(init=False, default_factory=_Requests)
    _last_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Begin with guesses.

        Raises:
            ValueError: there are not at least two tiers with a size each.
        """
        if len(self.tier_names) < 2 or len(self.tier_names) != len(self.num_parameters):
            raise ValueError("a mesh has two tiers at least, each of a name and a number of parameters")
        self._fits = [StepFit(_guessed_step_s(count)) for count in self.num_parameters]
        self._sums = [_Sums() for _ in self.tier_names]

    def observe(self, samples: Sequence[TierSample], now_s: float) -> None:
        """Learn what the tiers did; samples are in the order of tiers, and those of tiers not known are left out."""
        gap_s = 0.0 if self._last_s is None else min(max(now_s - self._last_s, 0.0), _LONGEST_GAP_S)
        self._last_s = now_s
        did_something = any(sample.num_tokens > 0 or len(sample.rows) for sample in samples)
        keep = 0.5 ** (gap_s / _HALF_LIFE_S) if did_something else 1.0
        for tier, (sample, fit, sums) in enumerate(zip(samples, self._fits, self._sums, strict=False)):
            fit.add(sample.rows, sample.positions, sample.seconds, sample.overlap, now_s)
            if tier == 0:
                # Of a long prompt only the last part comes with a row; others' steps are longer for all of it.
                alone = (count for rows, count in zip(sample.rows, sample.positions, strict=False) if rows == 0)
                fit.add_positions(sum(alone))
            sums.add(sample, keep)
        for sums in self._sums[len(samples) :]:
            sums.add(TierSample(), keep)

    def observe_first_token(self, seconds: float, num_prompt_tokens: int) -> None:
        """A request's first token came, so long after it was sent to the home."""
        if 0.0 <= seconds <= _MOST:
            requests = self._requests
            requests.num_begun = _REQUEST_KEEP * requests.num_begun + 1.0
            requests.first_token_s = _REQUEST_KEEP * requests.first_token_s + seconds
            requests.num_prompt_tokens = _REQUEST_KEEP * requests.num_prompt_tokens + num_prompt_tokens

    def observe_end(self, num_tokens: int) -> None:
        """A request ended with so many tokens, for whatever reason."""
        self._requests.num_ended = _REQUEST_KEEP * self._requests.num_ended + 1.0
        self._requests.num_tokens = _REQUEST_KEEP * self._requests.num_tokens + num_tokens

    @property
    def is_ready(self) -> bool:
        """Whether step times and routing rest on what was seen rather than on guesses."""
        home, *larger = self._fits
        visits = [sums.num_visits for sums in self._sums[1:]]
        if home.num_effective < _READY_STEPS or sum(visits) < _READY_VISITS:
            return False
        return all(
            fit.num_effective >= _READY_VISITS
            for fit, count in zip(larger, visits, strict=True)
            if count > _RARE_TIER * sum(visits)
        )

    @property
    def confidence(self) -> dict[str, float]:
        """What estimates rest on, old observations weighing less: steps by tier, and visits and requests."""
        steps = {f"steps_{name}": fit.num_effective for name, fit in zip(self.tier_names, self._fits, strict=True)}
        return {
            **steps,
            "visits": sum(sums.num_visits for sums in self._sums[1:]),
            "requests": self._requests.num_ended,
        }

    @property
    def step_s(self) -> list[float | None]:
        """Mean duration of a step of each tier, of late; None where none was seen."""
        return [fit.mean_s for fit in self._fits]

    @property
    def waits_s(self) -> list[float | None]:
        """Mean time that visits waited at each larger tier, of late; None where there were none."""
        return [sums.waited_s / sums.num_visits if sums.num_visits > 0.0 else None for sums in self._sums[1:]]

    def setting(self) -> Setting:
        """The mesh under its load of late."""
        home, *larger = self._sums
        num_visits = sum(sums.num_visits for sums in larger)
        # A policy that decides ahead of any proposal turns none down.
        num_steps = home.num_tokens + home.num_rejected + _PRIOR_PROPOSALS
        stay = Phases.geometric(min(max((num_visits + _PRIOR_SHARE * _PRIOR_PROPOSALS) / num_steps, _LEAST_SHARE), 1.0))
        num_written = sum(sums.num_tokens for sums in larger)
        tokens_per_visit = (num_written + _PRIOR_VISITS) / (num_visits + _PRIOR_VISITS)
        tokens_per_step = (home.num_tokens + _PRIOR_PROPOSALS * (1.0 - _PRIOR_SHARE)) / num_steps
        gone_s = sum(sums.away_s - sums.there_s + sums.decision_s for sums in larger)
        requests = self._requests
        return Setting(
            self._tier(0, stay),
            tuple(self._tier(tier, _visit(sums)) for tier, sums in enumerate(larger, 1)),
            tokens_per_cycle=max(stay.mean * tokens_per_step + tokens_per_visit, 1e-6),
            shares=_shares([sums.num_visits for sums in larger]),
            hand_off_s=max(gone_s, 0.0) / max(num_visits, 1.0),
            max_ahead=self.max_ahead,
            confirmed=min(sum(sums.num_confirmed for sums in larger) / max(num_visits, 1.0), 1.0),
            tokens_per_request=(
                max(requests.num_tokens / requests.num_ended, 1.0) if requests.num_ended > 0.0 else float("inf")
            ),
            request_s=self._request_s(),
        )

    def _tier(self, tier: int, stay: Phases) -> Tier:
        return Tier(self.tier_names[tier], *self._fits[tier].curves(), stay)

    def _request_s(self) -> float:
        """What comes before the first token, but for a step as those after it, in which prompts have their part."""
        requests, home = self._requests, self._fits[0]
        if requests.num_begun == 0.0:
            return 0.0
        step_s = (home.mean_s or 0.0) + home.position_s * requests.num_prompt_tokens / requests.num_begun
        return max(requests.first_token_s / requests.num_begun - step_s, 0.0)


def _visit(sums: _Sums) -> Phases:
    """A coin with the mean number of steps, which is all that is known of visits."""
    mean = (sums.num_visit_steps + _PRIOR_VISITS) / (sums.num_visits + _PRIOR_VISITS)
    return Phases.geometric(min(max(1.0 / mean, _LEAST_SHARE), 1.0))


def _shares(num_visits: list[float]) -> tuple[float, ...]:
    """Of hand-offs to each larger tier; all the same as long as there were none."""
    weights = [count + 0.1 for count in num_visits]
    return tuple(weight / sum(weights) for weight in weights)


def _guessed_step_s(num_parameters: int) -> float:
    """Overhead, and two bytes of each weight read at a terabyte a second."""
    return 1e-3 + 2e-12 * min(max(num_parameters, 0), 10**13)
