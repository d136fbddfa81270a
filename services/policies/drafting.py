"""What the verify family has in common at home: the small model drafts some tokens before the large one judges them."""

from .policy import Parameter, Policy, Proposals, RequestView, Return, Verdict, hold, submit

_MAX_DRAFT_TOKENS = 16
_REMEMBERED = 0.9
"""What is left of old judgements at each new one."""
_PRIOR_ACCEPTED, _PRIOR_REJECTED = 4.0, 1.0
"""Drafts taken to have been judged before the first."""


def draft_tokens(default: int) -> Parameter:
    """The parameter that bounds a draft."""
    return Parameter("draft_tokens", "tokens in the longest draft", 1, _MAX_DRAFT_TOKENS, default, is_whole=True)


class Drafting(Policy):
    """Drafts of `draft_tokens`; subclasses verify them."""

    def length(self, request: RequestView) -> int:
        """Drafts to send at once."""
        return int(request.number("draft_tokens"))

    def route(self, proposals: Proposals) -> list[Verdict]:
        """Each proposal becomes a draft."""
        return [self.hold_or_submit(request) for request in proposals.requests]

    def hold_or_submit(self, request: RequestView) -> Verdict:
        """The proposal is the last draft where enough are held before it, or where the answer has no room for more."""
        is_last = request.num_drafts + 1 >= min(self.length(request), request.num_left)
        return submit(request.large) if is_last else hold(request.large)


class AdaptiveDrafting(Drafting):
    """Drafts that grow and shrink with the share of them that stands.

    Of k drafts, each standing with probability a, and the large model's own token, (1 - a^(k+1)) / (1 - a) are
    committed on average (arXiv 2211.17192, equation 1). They cost 1 + c k passes of the large model, where a
    draft costs c of one. The k is taken that commits most for its cost (theorem 3.8 there).

    The share is estimated from the request's own past alone, so that no answer depends on its neighbours. Drafts
    after the first that fell were not judged, and do not count.
    """

    parameters = (
        draft_tokens(8),
        Parameter("draft_cost", "cost of a draft, of a large model's pass", 0.0, 10.0, 0.15),
        Parameter("adaptive", "1: the draft's length follows how many stand; 0: it is fixed", 0, 1, 1, is_whole=True),
    )

    def length(self, request: RequestView) -> int:
        """The longest draft, or the one worth most."""
        longest = super().length(request)
        if not request.number("adaptive"):
            return longest
        length: int | None = request.memory.get("length")
        if length is None:
            accepted, rejected = request.memory.get("judged", (0.0, 0.0))
            accepted += _PRIOR_ACCEPTED
            share = accepted / (accepted + rejected + _PRIOR_REJECTED)
            length = request.memory["length"] = best_length(share, longest, request.number("draft_cost"))
        return length

    def receive(self, request: RequestView, returned: Return) -> int:
        """Count the drafts that were judged: those that stand, and one that does not."""
        if returned.num_drafts:
            accepted, rejected = request.memory.get("judged", (0.0, 0.0))
            is_rejected = returned.num_accepted < returned.num_drafts
            request.memory["judged"] = (
                _REMEMBERED * accepted + returned.num_accepted,
                _REMEMBERED * rejected + is_rejected,
            )
            request.memory.pop("length", None)
        return super().receive(request, returned)


def best_length(share: float, longest: int, cost: float) -> int:
    """The number of drafts, from 1 to `longest`, that commits most for its cost; the least of several.

    Args:
        share: probability below 1 that a draft stands.
        longest: drafts.
        cost: of a draft, of a large model's pass.
    """

    def worth(count: int) -> float:
        return (1 - share ** (count + 1)) / (1 - share) / (1 + cost * count)

    return max(range(1, longest + 1), key=worth)
