"""What a step gives, and what is asked of each of its rows."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import AllroadsError, NotANumber
from .logprobs import TokenLogprobs
from .opinions import Opinion
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Drafted:
    """A sequence whose drafts are all computed."""

    sequence: Sequence
    start: int
    """Index of the first draft; they end with the sequence."""
    logits: Tensor
    """float [drafts + 1, output rows], raw, padding at -inf: row j is this model's in place of draft j."""
    hidden_states: Tensor | None = None
    """float [drafts + 1, hidden], after the final norm, parallel to the logits; None unless the sequence keeps them."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step gave: one proposal for each sequence whose tokens are all computed and no drafts."""

    sequences: list[Sequence]
    proposals: list[int]
    logits: Tensor
    """[len(sequences), output rows], raw, padding at -inf."""
    hidden_states: Tensor
    """[len(sequences), hidden], after the final norm."""
    logprobs: list[TokenLogprobs | None]
    """Parallel to `proposals`; None for sequences that did not ask."""
    opinions: list[Opinion]
    """On tokens that others wrote, of sequences whose `opinions_from` asked for them."""
    drafted: list[Drafted]
    """Sequences with drafts, which have no proposal."""
    failed: list[Sequence]
    """Sequences without a proposal, since none can be made; `why_failed` says why."""
    wanted: list[Sequence]
    """Sequences for which the step was run, also those that need more of them; not what it computed ahead."""
    num_positions: int
    """Token positions that it computed, those ahead among them."""


class Asked(NamedTuple):
    """What the outputs of one row of a step are for."""

    is_complete: bool
    """Whether all tokens of the sequence are computed, for somebody who waits for what comes next."""
    proposes: bool
    has_drafts: bool
    opinion: range
    """Tokens of the sequence on which an opinion is wanted."""


def why_failed(sequence: Sequence, model: str) -> AllroadsError:
    """What to tell of a sequence that failed in a step. `model`: whose it was, such as "the small model"."""
    error = None if sequence.matcher is None else sequence.matcher.error
    return error or NotANumber(f"{model} produced NaN for this request")


def take_drafted(sequence: Sequence) -> Drafted:
    """What was computed of a sequence's drafts, which are none from now on."""
    start, hidden_states = sequence.drafts_from, sequence.draft_hidden_states
    return Drafted(
        sequence,
        start,
        torch.cat(sequence.take_draft_logits()),
        torch.cat(hidden_states) if hidden_states else None,
    )
