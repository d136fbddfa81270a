"""What tiers reported since the profile last looked: lists that grow by each message, and cost it next to nothing."""

from collections.abc import Sequence

from ...mesh.wire import model_pb2
from ...throughput.profile import TierSample

MAX_STEPS = 8192
"""Of a tier between two looks; what is more than that is a sample already."""
_US = 1e-6
_COUNTS = ("num_tokens", "num_rejected", "num_visits", "num_visit_steps", "num_confirmed")
_TIMES = ("decision_us", "away_us", "there_us", "waited_us")
LAUNCH_CAUSES = {"full": "num_full_launches", "last": "num_last_launches", "flushed": "num_flushed_launches"}
"""Why a batch was launched, and the field of a report that counts it."""
STEP_WAYS = {"replayed": "num_replayed_steps", "direct": "num_direct_steps"}
"""How a step ran: as a CUDA graph, or operation by operation; and the field that counts it."""
SCORING_WAYS = {"replayed": "num_replayed_scorings", "direct": "num_direct_scorings"}
"""The same of the router's passes, which the home reports."""
_SUMMED = (*_COUNTS, *_TIMES, *LAUNCH_CAUSES.values(), *STEP_WAYS.values(), *SCORING_WAYS.values())


class GatheredTier:
    """One tier's reports, added up."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._positions: list[int] = []
        self._step_us: list[int] = []
        self._overlap: list[float] = []
        self.sums = dict.fromkeys(_SUMMED, 0)

    def add(self, report: model_pb2.TierReport) -> None:
        """Take in a report. Steps whose numbers are not parallel are left out."""
        count = len(report.step_us)
        is_parallel = len(report.num_rows) == len(report.num_positions) == len(report.overlap) == count
        if is_parallel and len(self._rows) + count <= MAX_STEPS:
            self._rows.extend(report.num_rows)
            self._positions.extend(report.num_positions)
            self._step_us.extend(report.step_us)
            self._overlap.extend(report.overlap)
        for name in _SUMMED:
            self.sums[name] += getattr(report, name)

    def sample(self) -> TierSample:
        """The same in seconds, as the profile takes it."""
        counts = {name: self.sums[name] for name in _COUNTS}
        times = {name.removesuffix("_us") + "_s": self.sums[name] * _US for name in _TIMES}
        seconds = [step_us * _US for step_us in self._step_us]
        return TierSample(self._rows, self._positions, seconds, self._overlap, **counts, **times)


class GatheredReports:
    """All tiers' reports since the last `take`. Belongs to one event loop."""

    def __init__(self) -> None:
        self._tiers: list[GatheredTier] = []

    def add(self, reports: Sequence[model_pb2.TierReport], max_tiers: int) -> None:
        """Take in a message's reports, the home's first; no more than a mesh has tiers."""
        while len(self._tiers) < min(len(reports), max_tiers):
            self._tiers.append(GatheredTier())
        for tier, report in zip(self._tiers, reports, strict=False):
            tier.add(report)

    def take(self) -> list[GatheredTier]:
        """What was gathered, one a tier; gathering begins anew."""
        taken, self._tiers = self._tiers, []
        return taken
