"""Steps of frequent shapes as recordings of the whole pass; all others as the model runs them."""

import logging
import time
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from ..cuda.graphs import Recorder, Recording, first_line
from ..cuda.launch_counts import LaunchCounts
from ..errors import AllroadsError
from .attention import FixedPlan, FixedPlanBackend, Row
from .buckets import Bucket, Buckets
from .runner import Forward, Output, Runner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pass:
    """A recorded pass, and what is written before each replay."""

    inputs: Tensor
    """int64 [3, tokens]: token ids, positions, and which tokens' outputs are wanted; padded with 0."""
    plan: FixedPlan
    recording: Recording[Output]
    """Its outputs are those of all tokens, in memory that all passes share."""


class GraphRunner:
    """A `Runner` that replays. Belongs to the thread of its engine."""

    def __init__(
        self,
        forward: Forward,
        backend: FixedPlanBackend,
        eager: Runner,
        buckets: Buckets,
        recorder: Recorder,
        *,
        num_tokens: int,
        device: torch.device,
    ) -> None:
        """Record all shapes, and say in a line of the log what that took. Where it fails, the line says why.

        Args:
            forward: the pass.
            backend: has the KV.
            eager: runs the same pass over the same KV, for steps of other shapes.
            buckets: shapes to record.
            recorder: of recordings that this engine's thread alone replays.
            num_tokens: ids that the tokenizer knows; rows of the output layer beyond are padding.
            device: of all tensors.
        """
        self.counts = LaunchCounts()
        self._forward = forward
        self._backend = backend
        self._eager = eager
        self._buckets = buckets
        self._num_tokens = num_tokens
        self._device = device
        self._passes: dict[Bucket, _Pass] = {}
        self._kept: Output | None = None
        self._capture(recorder)

    @property
    def num_recorded(self) -> int:
        """Shapes that are replayed; none where recording failed."""
        return len(self._passes)

    @torch.inference_mode()
    def forward(self, rows: list[Row], token_ids: list[int]) -> Output:
        """See `Runner.forward`. Nothing waits for the device."""
        bucket = self._buckets.pick(len(rows), len(token_ids))
        chosen = None if bucket is None else self._passes.get(bucket)
        if chosen is None:
            self.counts.num_eager["shape" if self._passes else "not recorded"] += 1
            return self._eager.forward(rows, token_ids)
        wanted = _fill(chosen.inputs, rows, token_ids)
        chosen.plan.fill(rows)
        chosen.recording.replay()
        self.counts.num_replayed += 1
        return _taken(chosen.recording.result, wanted, is_all=len(wanted) == len(token_ids))

    def _capture(self, recorder: Recorder) -> None:
        began_s, began_bytes = time.monotonic(), recorder.reserved_bytes()
        try:
            for bucket in self._buckets.largest_first():
                self._passes[bucket] = self._recorded(bucket, recorder)
        except (RuntimeError, AllroadsError) as error:
            self._passes.clear()
            self._kept = None
            logger.warning("steps cannot be recorded as graphs and run directly: %s", first_line(error))
            return
        logger.info(
            "recorded %d decodes of up to %d rows and %d extends of up to %d tokens as graphs: %.1f s, %d MiB",
            len(self._buckets.decodes),
            self._buckets.decodes[-1].num_rows,
            len(self._buckets.extends),
            self._buckets.extends[-1].num_tokens if self._buckets.extends else 0,
            time.monotonic() - began_s,
            (recorder.reserved_bytes() - began_bytes) >> 20,
        )

    def _recorded(self, bucket: Bucket, recorder: Recorder) -> _Pass:
        inputs = torch.zeros((3, bucket.num_tokens), dtype=torch.int64, device=self._device)
        every = torch.arange(bucket.num_tokens, device=self._device)
        plan = self._backend.fixed_plan(bucket.num_rows, bucket.num_tokens)

        def work() -> Output:
            logits, hidden_states = self._forward(inputs[0], inputs[1], every, plan)
            logits[:, self._num_tokens :].fill_(float("-inf"))
            return self._keep(Output.of(logits, hidden_states))

        return _Pass(inputs, plan, recorder.record(work))

    def _keep(self, output: Output) -> Output:
        """Copy outputs to where those of all passes are: logits of every pass apart would take several times as much.

        The first run of all, which is a warm-up of the largest pass, makes that memory.
        """
        if self._kept is None:
            self._kept = Output(*(torch.empty_like(part) for part in _parts(output)))
        pairs = zip(_parts(self._kept), _parts(output), strict=True)
        return Output(*(kept[: len(part)].copy_(part) for kept, part in pairs))


def _fill(inputs: Tensor, rows: list[Row], token_ids: list[int]) -> Tensor:
    """Write what a step of these rows reads; the wanted outputs, int64 [outputs], as they are in `inputs`."""
    outputs: list[int] = []
    end = 0
    for row in rows:
        end += row.length
        outputs += range(end - row.num_outputs, end)
    positions = list(chain.from_iterable(range(row.start, row.end) for row in rows))
    width = inputs.shape[1]
    numbers = [one + [0] * (width - len(one)) for one in (token_ids, positions, outputs)]
    # From page-locked memory, which torch does not use again before the copy is over.
    inputs.copy_(torch.tensor(numbers, pin_memory=inputs.is_cuda), non_blocking=True)
    return inputs[2, : len(outputs)]


def _taken(output: Output, wanted: Tensor, *, is_all: bool) -> Output:
    """The wanted outputs, out of the memory that the next replay writes to."""
    count = len(wanted)
    return Output(*(part[:count].clone() if is_all else part.index_select(0, wanted) for part in _parts(output)))


def _parts(output: Output) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return output.logits, output.hidden_states, output.greedy, output.highest
