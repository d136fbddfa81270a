"""Plain transformers models without a cache: each pass computes a whole text from its beginning.

Texts are computed side by side, padded on the right, which a causal model cannot see: each is what it would be alone.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from ..config import MeshSettings, ModelSettings
from ..engine.loading import DTYPES
from ..vocabulary import load_vocabulary

_MAX_TEXTS = 32
"""Texts computed side by side."""
_ROUNDING = {"float32": 2e-4, "float16": 2e-2, "bfloat16": 2e-1}
"""More than what the order of additions changes in a logit, by the dtype of the model."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A text for a model, of which the last `count` places are wanted."""

    tier: int
    token_ids: Sequence[int]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Output:
    """What a model gives at the places that were wanted."""

    logits: Tensor
    """float32 [count, output rows], raw, padding at -inf."""
    hidden_states: Tensor
    """float32 [count, hidden size], after the final norm."""


Work = Generator[Pass, Output, None]
"""Asks for passes, one at a time."""


class SlowModels:
    """All models of a mesh, tier by tier."""

    def __init__(self, settings: MeshSettings) -> None:
        # Of the whole process. More than the mesh was given would fight with it for cores.
        torch.set_num_threads(settings.slm.num_threads)
        self.num_tokens = len(load_vocabulary(settings.slm.path))
        """Size of the vocabulary."""
        self._models = [_load(tier) for tier in settings.tiers.values()]
        self._rounding = [_ROUNDING[tier.dtype] for tier in settings.tiers.values()]

    @torch.inference_mode()
    def run(self, works: Sequence[Work], *, disturbance: torch.Generator | None = None) -> None:
        """Do all works to their ends, side by side.

        Args:
            works: independent of each other.
            disturbance: adds to all that models give a noise of the size of rounding, so that decisions which
                are too close to call fall now this way and now that.
        """
        waiting: list[tuple[Work, Pass]] = []
        for work in works:
            _advance(work, None, waiting)
        while waiting:
            tier = waiting[0][1].tier
            own = [item for item in waiting if item[1].tier == tier][:_MAX_TEXTS]
            # The first ones of a tier; the others keep their turn.
            chosen = set(map(id, own))
            waiting = [item for item in waiting if id(item) not in chosen]
            outputs = self._outputs(tier, [asked for _, asked in own], disturbance)
            for (work, _), output in zip(own, outputs, strict=True):
                _advance(work, output, waiting)

    def _outputs(self, tier: int, passes: list[Pass], disturbance: torch.Generator | None) -> list[Output]:
        model = self._models[tier]
        width = max(len(asked.token_ids) for asked in passes)
        ids = torch.tensor([[*asked.token_ids] + [0] * (width - len(asked.token_ids)) for asked in passes])
        wanted = [range(len(asked.token_ids) - asked.count, len(asked.token_ids)) for asked in passes]
        places = sorted({place for places in wanted for place in places})
        index = torch.tensor(places)
        output = model(
            input_ids=ids.to(model.device),
            use_cache=False,
            output_hidden_states=True,
            logits_to_keep=index.to(model.device),
        )
        logits, hidden_states = output.logits.float().cpu(), output.hidden_states[-1][:, index].float().cpu()
        if disturbance is not None:
            for disturbed in (logits, hidden_states):
                noise = torch.rand(disturbed.shape, generator=disturbance) * 2 - 1
                disturbed.add_(noise, alpha=self._rounding[tier])
        logits[..., self.num_tokens :] = float("-inf")
        columns = {place: column for column, place in enumerate(places)}
        rows = [[columns[place] for place in places_of_row] for places_of_row in wanted]
        return [Output(logits[row, own], hidden_states[row, own]) for row, own in enumerate(rows)]


def _advance(work: Work, output: Output | None, waiting: list[tuple[Work, Pass]]) -> None:
    """Let a work go on, and put what it asks for next with what waits."""
    try:
        asked = next(work) if output is None else work.send(output)
    except StopIteration:
        return
    waiting.append((work, asked))


def _load(settings: ModelSettings) -> PreTrainedModel:
    transformers_logging.disable_progress_bar()
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        settings.path, dtype=DTYPES[settings.dtype], use_safetensors=True, local_files_only=True
    )
    model: PreTrainedModel = loaded.to(settings.device).eval()
    return model
