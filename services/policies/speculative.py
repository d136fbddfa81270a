"""Speculative decoding (arXiv 2211.17192): drafts, judged so that the answer is the large model's own."""

import torch

from ..engine.sampling import sample
from .drafting import AdaptiveDrafting
from .judging import draft_rows, judge, judge_by_mode, own_tokens, processed, speculate, split
from .policy import Drafts, Judgement, RequestView, setting


class Lossless(AdaptiveDrafting):
    """A draft stands where the large model, by the request's own draw, writes the very same token.

    The answer is token for token that of the large model alone, also when sampling: the small model drafts by the
    same numbers, since a draw depends on seed and position only. When sampling fewer drafts stand than by
    speculative sampling, and no logits need to travel.
    """

    name = "lossless"
    summary = "the small model drafts, the large one keeps what it would have written; its very own answer"
    always = setting()

    def verify(self, drafts: Drafts) -> list[Judgement]:
        """Drafts stand while they are what the large model writes; it writes one token after them."""
        return [
            judge([draft == token_id for draft, token_id in zip(token_ids, own, strict=False)], own)
            for token_ids, own in zip(drafts.token_ids, own_tokens(drafts), strict=True)
        ]


class Speculative(Lossless):
    """Under greedy a draft stands where it is the likeliest token; when sampling, by speculative sampling.

    The answer is distributed as the large model's own (section 2.3, appendix A.1), with all that the request asks
    for: penalties, bias, temperature and the cuts apply to both models' distributions. Which draws they are differs.
    """

    name = "speculative"
    summary = "the small model drafts, the large one keeps what fits its own distribution; an answer as if all its own"

    def wants_draft_logits(self, request: RequestView) -> bool:
        """Where it samples."""
        return not request.is_greedy

    def verify(self, drafts: Drafts) -> list[Judgement]:
        """Drafts stand up to the first that is rejected; the large model writes one token after them."""
        return judge_by_mode(drafts, super().verify, _verify_sampled)


def _verify_sampled(drafts: Drafts) -> list[Judgement]:
    parts = ((part, *processed(part)) for part in draft_rows(drafts, with_small=True))
    stands, replacements = speculate(parts)
    after = sample(torch.stack([logits[-1] for logits in drafts.logits]), [rows[-1] for rows in drafts.rows]).tolist()
    sizes = [len(token_ids) for token_ids in drafts.token_ids]
    columns = zip(split(stands, sizes), split(replacements, sizes), after, strict=True)
    return [judge(stand, [*written, last]) for stand, written, last in columns]
