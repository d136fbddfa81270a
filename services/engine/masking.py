"""Logits of tokens that a row's grammar does not allow next, put out of reach."""

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from ..cuda.upload import upload, upload_tensor
from .sampling_params import Row


def mask_logits(logits: Tensor, rows: SequenceOf[Row]) -> None:
    """Set them to -inf, in place. A row without a grammar costs nothing; one that cannot be followed stays as it is.

    Masks travel to the device packed, in one copy.

    Args:
        logits: float [n, vocabulary].
        rows: n rows.
    """
    masks: list[bytes] = []
    indices: list[int] = []
    for index, row in enumerate(rows):
        if row.matcher is not None and (mask := row.matcher.mask(row.tokens[row.num_prompt_tokens :])) is not None:
            masks.append(mask)
            indices.append(index)
    if not masks:
        return
    width = max(map(len, masks))
    packed = torch.frombuffer(bytearray().join(mask.ljust(width, b"\0") for mask in masks), dtype=torch.uint8)
    bits = torch.arange(8, dtype=torch.uint8, device=logits.device)
    allowed = (upload_tensor(packed, logits.device).view(len(masks), width, 1) >> bits & 1).flatten(1).bool()
    places = upload(indices, logits.device)
    num_known = min(allowed.shape[1], logits.shape[1])
    own = logits[places]
    own[:, :num_known].masked_fill_(~allowed[:, :num_known], float("-inf"))
    # What lies beyond the tokenizer is padding.
    own[:, num_known:] = float("-inf")
    logits[places] = own
