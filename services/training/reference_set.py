"""The tokens of reference texts, and what both models made of each: what CITER and Co-LLM learn from."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..router.head_manifest import ReferenceSplit
from .dataset import RowsDescription, TokenRows


@dataclass(frozen=True, slots=True)
class ReferenceSet(TokenRows):
    """Both models read the same text, so a row is one place of it."""

    hidden_states: Tensor
    """float32 [n, hidden], the small model's, after the final norm."""
    slm_logprobs: Tensor
    """float32 [n], what the small model gives the reference token."""
    llm_logprobs: Tensor
    """float32 [n], what the large one gives it."""
    slm_right: Tensor
    """bool [n], whether the small model's likeliest token is the reference token."""
    llm_right: Tensor
    """bool [n], the same of the large one."""
    rollout_right: Tensor
    """bool [n], where neither is right: whether the answer is, when the large model goes on from the small one's token.
    False elsewhere."""

    @property
    def defers(self) -> Tensor:
        """Co-LLM's weak label (arXiv 2403.03870), bool [n]: only the large model is right."""
        return ~self.slm_right & self.llm_right

    @property
    def suffices(self) -> Tensor:
        """CITER's label (arXiv 2502.01976), bool [n]: the small model is right, or neither is and it does no harm."""
        return self.slm_right | self.rollout_right

    def describe(self) -> ReferenceSplit:
        """Counts for a manifest."""
        neither = ~self.slm_right & ~self.llm_right
        return ReferenceSplit(
            num_problems=len(self.problem_ids.unique()),
            num_tokens=len(self),
            num_slm_right=int(self.slm_right.sum()),
            num_llm_right=int(self.defers.sum()),
            num_neither=int(neither.sum()),
            num_neither_suffices=int(self.rollout_right.sum()),
        )


class ReferenceDescription(RowsDescription):
    """Of a `ReferenceSet`."""

    format: Literal["allroads-references"] = "allroads-references"
