"""BiLD (arXiv 2302.07863): the small model drafts while it is sure, and the large one undoes what it finds unlikely."""

from .drafting import Drafting, draft_tokens
from .judging import draft_rows, judge, own_tokens, split
from .policy import Drafts, Feature, Judgement, Parameter, Proposals, Verdict, setting, submit


class Bild(Drafting):
    """Fallback: an unsure proposal is dropped and the large model called. Rollback: to the first unlikely draft.

    The large model writes one token there, or after all drafts (algorithm 1). Both rules read raw distributions.
    """

    name = "bild"
    summary = "the small model drafts while it is sure; the large one undoes drafts that it finds unlikely"
    parameters = (
        draft_tokens(10),
        Parameter("fallback", "best probability below which the small model calls the large one", 0.0, 1.0, 0.6),
        Parameter("rollback", "-log p (nats) above which the large model undoes a draft", 0.0, 100.0, 5.0),
    )
    features = frozenset({Feature.MAX_PROBABILITY})
    always = setting(fallback=1.0, rollback=0.0)

    def route(self, proposals: Proposals) -> list[Verdict]:
        """Unsure proposals, and those of which nothing is known, are dropped; what is held before them goes along."""
        return [
            self.hold_or_submit(request)
            if highest >= request.number("fallback")
            else submit(request.large, keeps=False)
            for highest, request in zip(proposals.max_probabilities, proposals.requests, strict=True)
        ]

    def verify(self, drafts: Drafts) -> list[Judgement]:
        """Drafts stand while -log p is not above the limit."""
        stands: list[bool] = []
        for part in draft_rows(drafts, with_small=False):
            surprise = -part.large.double().log_softmax(dim=-1).gather(1, part.token_ids)
            stands += (surprise <= part.numbers("rollback")).squeeze(1).tolist()
        by_request = split(stands, [len(token_ids) for token_ids in drafts.token_ids])
        return [judge(stand, own) for stand, own in zip(by_request, own_tokens(drafts), strict=True)]
