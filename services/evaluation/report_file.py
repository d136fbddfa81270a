"""`report.json`: everything that an evaluation found (docs/evaluation.md). Money is reckoned from it."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import InvalidArgument

REPORT_FILE = "report.json"

Role = Literal["slm", "llm", "routed", "random", "sweep"]
"""What an arm is there for: the ends, what is evaluated, its control, and points of its curve."""
CostFormula = Literal["published", "full"]
FORMULAS: tuple[CostFormula, ...] = ("published", "full")
QueryMethod = Literal["confidence", "random", "best"]


class Part(BaseModel):
    """Base of all that a report holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class Interval(Part):
    """A figure and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


class ArmFigures(Part):
    """One way to answer all problems. What is "per answer" is a mean over them."""

    name: str
    role: Role
    routing: dict[str, Any]
    """As requests named it."""
    num_problems: int
    num_right: int
    num_unjudged: int
    """Answers without a verdict of the judge, which count as wrong."""
    num_cut: int
    """Answers that ended at the limit on their length."""
    num_too_long: int
    """Problems that did not fit the mesh's window, which count as wrong."""
    num_degraded: int
    """Answers that the small model had to finish alone."""
    accuracy: Interval
    llm_share: Interval
    """Of all tokens, those that the small model did not write."""
    shares: dict[str, float]
    """Of all tokens, by tier."""
    activated: Interval
    """Average parameters, in billions, of the models that wrote the tokens."""
    published_cost: Interval
    """Per answer, as is the next (`evaluation.cost`)."""
    full_cost: Interval | None
    """None where the mesh gave no account, as are the three at the end."""
    tokens_per_s: float
    """Of all requests together, while any was open."""
    tokens_per_s_per_request: Interval
    length: Interval
    """Tokens per answer."""
    prompt_length: float
    """Tokens per prompt."""
    shares_by_position: tuple[float, ...]
    """The large models' share in each tenth of the answers."""
    hand_offs: float | None
    """Per answer."""
    computed: tuple[float, ...] | None
    """Token positions that each tier computed, per answer."""
    rejected: float | None
    """Proposals that were made for nothing, per answer."""


class QueryFigures(Part):
    """One model for each request, at what an arm costs."""

    method: QueryMethod
    formula: CostFormula
    """By which the cost is the same."""
    request_share: float
    """Of requests, those for the large model."""
    accuracy: Interval
    difference: Interval
    """Accuracy of the arm less this one's, on the same problems."""


class Comparison(Part):
    """An arm against what could have been done instead."""

    arm: str
    of_llm: Interval
    """Its accuracy over that of the large model alone."""
    over_random: Interval | None
    """Its accuracy less that of random routing at the same share."""
    queries: tuple[QueryFigures, ...]


class QueryCurve(Part):
    """Accuracy against cost of one model for each request, from none to all at the large model."""

    method: QueryMethod
    formula: CostFormula
    costs: tuple[float, ...]
    """Per answer."""
    accuracies: tuple[float, ...]


class ScoreBin(Part):
    """A tenth of a policy's scores, by size."""

    mean_score: float
    num_decisions: int
    differs: Interval
    """Share of these tokens that the large model would not have written."""


class Reliability(Part):
    """Scores of a policy against what came of them."""

    policy: str
    bins: tuple[ScoreBin, ...]


class Stretch(Part):
    """Text that one tier wrote."""

    tier: int
    text: str


class ShownAnswer(Part):
    """An answer with who wrote what."""

    arm: str
    problem: str
    question: str
    right: bool
    stretches: tuple[Stretch, ...]


class Report(Part):
    """A whole evaluation."""

    format: Literal["allroads-evaluation-report"] = "allroads-evaluation-report"
    version: Literal[1] = 1
    allroads: str
    """Version that made it."""
    run: dict[str, Any]
    """What was asked, as in `run.json`."""
    tiers: tuple[str, ...]
    """Names, the small model's first."""
    parameters: tuple[int, ...]
    """Active ones of each tier, as costs count them."""
    router_parameters: dict[str, int]
    """By policy, where they are known."""
    machine: dict[str, Any]
    arms: tuple[ArmFigures, ...]
    comparisons: tuple[Comparison, ...]
    curves: tuple[QueryCurve, ...]
    reliability: tuple[Reliability, ...]
    shown: tuple[ShownAnswer, ...]
    command: str
    """That makes it again."""

    def arm(self, role: Role) -> ArmFigures:
        """The first arm of a role."""
        return next(arm for arm in self.arms if arm.role == role)

    def arms_of(self, role: Role) -> list[ArmFigures]:
        """All arms of a role."""
        return [arm for arm in self.arms if arm.role == role]


def read_report(path: Path) -> Report:
    """Read a report.

    Raises:
        InvalidArgument: the file is missing, damaged or of another version; names the key.
    """
    try:
        return Report.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidArgument(
            f"cannot read {path} ({error.strerror}); `allroads evaluate` writes it", field="report"
        ) from error
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in problem["loc"]) or "the file"
        raise InvalidArgument(f"{path} is no report of this version: {key}: {problem['msg']}", field=key) from error
