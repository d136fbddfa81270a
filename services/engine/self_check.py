"""Which forward pass an engine uses: the fused one where it is proven to compute what transformers does."""

import logging
from dataclasses import replace
from math import sqrt

import torch
from transformers import PreTrainedModel

from .attention import KvShape, Row
from .decoder import FusedDecoder, why_unsupported
from .device import Device
from .runner import Forward, ModelRunner, TransformersForward

logger = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Greatest difference of two logits, as a share of the largest, of a model with up to `_NUM_LAYERS` layers."""
_NUM_LAYERS = 32
_NUM_TOKENS = 12
_BLOCK_SIZE = 4


def pick_forward(model: PreTrainedModel, device: Device, shape: KvShape, max_context: int) -> Forward:
    """The best forward pass for a model on a device, and one line in the log that says which and why."""
    plain = TransformersForward(model)
    reason = why_unsupported(model)
    chosen: Forward = plain
    if not reason:
        fused = FusedDecoder(model, max_context)
        difference = _difference(fused, plain, model, device, shape)
        # Written so that NaN is refused, too.
        if difference <= tolerance(model.dtype, shape.num_layers):
            chosen, reason = fused, f"within {difference:.1e} of transformers"
        else:
            reason = f"the fused pass differs by {difference:.1e}"
    kind = "transformers" if chosen is plain else "fused"
    logger.info("%s; forward pass: %s, %s", device.describe(), kind, reason)
    return chosen


def tolerance(dtype: torch.dtype, num_layers: int) -> float:
    """Greatest difference, as a share of the largest logit, that is laid to rounding.

    What layers round differently is independent of each other, so it grows as the root of their number.
    """
    return _TOLERANCE[dtype] * sqrt(max(1.0, num_layers / _NUM_LAYERS))


@torch.inference_mode()
def _difference(first: Forward, second: Forward, model: PreTrainedModel, device: Device, shape: KvShape) -> float:
    """Largest difference of logits, over the largest logit, in two sequences: prefills, a short extend and decoding."""
    small = replace(shape, num_blocks=2 * _NUM_TOKENS // _BLOCK_SIZE, block_size=_BLOCK_SIZE)
    vocab_size = model.get_output_embeddings().weight.shape[0]
    tokens = [(7 + 31 * index) % vocab_size for index in range(_NUM_TOKENS)]
    logits = []
    for forward in (first, second):
        backend = device.attention(small, num_slots=2, max_blocks=small.num_blocks, dtype=model.dtype)
        half = small.num_blocks // 2
        backend.assign(0, list(range(half)))
        backend.assign(1, list(range(half, small.num_blocks)))
        runner = ModelRunner(forward, backend, vocab_size, device.torch_device)
        parts = [
            runner.forward([Row(0, 0, 6, 6), Row(1, 0, 9, 9)], tokens[:6] + tokens[:9]),
            runner.forward([Row(0, 6, 10, 4), Row(1, 9, 10)], tokens[6:10] + tokens[9:10]),
            runner.forward([Row(0, 10, 11), Row(1, 10, 11)], tokens[10:11] * 2),
        ]
        logits.append(torch.cat([part.logits for part in parts]).float())
    return ((logits[0] - logits[1]).abs().max() / logits[1].abs().max()).item()
