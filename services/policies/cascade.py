"""Speculative cascades (arXiv 2405.19261): drafts, judged by a rule that may keep what the large model would not."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from .drafting import Drafting, draft_tokens
from .judging import DraftRows, draft_rows, judge, judge_by_mode, own_tokens, processed, speculate, split
from .policy import Drafts, Judgement, Parameter, RequestView, setting


def _alpha(limit: float) -> Parameter:
    """At its ends the small model writes everything (the highest), or the large one (the lowest)."""
    return Parameter("alpha", "how much worse the small model's token may be and stand", -limit, limit)


class Cascade(Drafting):
    """Each token follows the target pi = q 1[accept] + (1 - sum of accepted q) p (section 4).

    q is the small model's distribution, p the large one's. Which tokens a rule accepts it reads off the models'
    raw distributions, so that `alpha` means the same at every temperature. Drawn is from the processed ones.
    Under greedy a draft stands where the rule accepts it or the large model writes it too.

    Where all drafts stand nothing comes after them. The paper's own algorithm draws one more from p; then every
    (k+1)st token would follow p in place of pi, and the answer depend on the draft's length.
    """

    reads_small: ClassVar[bool] = True
    """Whether the rule reads q."""

    @abstractmethod
    def accepts(self, small: Tensor, large: Tensor, alpha: Tensor) -> Tensor:
        """Which tokens the rule accepts.

        Args:
            small: q, float64 [n, vocabulary]; [n, 0] where the rule does not read it.
            large: p, float64 [n, vocabulary].
            alpha: float64 [n, 1].

        Returns:
            bool [n, vocabulary]; [n, 1] where it is all tokens or none.
        """

    def wants_draft_logits(self, request: RequestView) -> bool:
        """Where the rule reads q, and where it samples."""
        return self.reads_small or not request.is_greedy

    def verify(self, drafts: Drafts) -> list[Judgement]:
        """Drafts stand up to the first that is rejected; the large model writes in its place, or nothing."""
        return judge_by_mode(drafts, self._verify_greedy, self._verify_sampled)

    def _verify_greedy(self, drafts: Drafts) -> list[Judgement]:
        accepted: list[bool] = []
        for part in draft_rows(drafts, with_small=self.reads_small):
            rule = self._apply(part).expand(-1, part.large.shape[-1])
            accepted += rule.gather(1, part.token_ids).squeeze(1).tolist()
        by_request = split(accepted, [len(token_ids) for token_ids in drafts.token_ids])
        return [
            judge(
                [keeps or draft == token_id for keeps, draft, token_id in zip(accepts, token_ids, own, strict=False)],
                [*own[:-1], None],
            )
            for accepts, token_ids, own in zip(by_request, drafts.token_ids, own_tokens(drafts), strict=True)
        ]

    def _verify_sampled(self, drafts: Drafts) -> list[Judgement]:
        sizes = [len(token_ids) for token_ids in drafts.token_ids]
        stands, replacements = speculate(self._with_target(part) for part in draft_rows(drafts, with_small=True))
        by_request = zip(split(stands, sizes), split(replacements, sizes), strict=True)
        return [judge(stand, [*written, None]) for stand, written in by_request]

    def _with_target(self, part: DraftRows) -> tuple[DraftRows, Tensor, Tensor]:
        small, large = processed(part)
        kept = small * self._apply(part)
        left = (1 - kept.sum(dim=-1, keepdim=True)).clamp(min=0)
        return part, small, kept + left * large

    def _apply(self, part: DraftRows) -> Tensor:
        small = part.small.double().softmax(dim=-1) if self.reads_small else part.small[:, :0]
        return self.accepts(small, part.large.double().softmax(dim=-1), part.numbers("alpha"))


class CascadeChow(Cascade):
    """Chow's rule: the small model is sure."""

    name = "cascade-chow"
    summary = "speculative cascade: drafts stand where the small model's best probability is at least 1 - alpha"
    parameters = (draft_tokens(5), _alpha(1.0))
    never = setting(alpha=1.0)
    always = setting(alpha=-1.0)

    def accepts(self, small: Tensor, large: Tensor, alpha: Tensor) -> Tensor:
        """Max q >= 1 - alpha."""
        return _highest(small) >= 1 - alpha


class CascadeDiff(Cascade):
    """The small model is about as sure as the large one."""

    name = "cascade-diff"
    summary = "speculative cascade: drafts stand where the small model is at most alpha less sure than the large one"
    parameters = (draft_tokens(5), _alpha(1.0))
    never = setting(alpha=1.0)
    always = setting(alpha=-1.0)

    def accepts(self, small: Tensor, large: Tensor, alpha: Tensor) -> Tensor:
        """Max q >= max p - alpha."""
        return _highest(small) >= _highest(large) - alpha


class CascadeOpt(Cascade):
    """The optimal rule: as `cascade-diff`, for the price of what speculation would reject."""

    name = "cascade-opt"
    summary = "speculative cascade: as cascade-diff, with alpha times the distance of the two distributions"
    # The models' best probabilities differ by one distance at most: at two nothing is left to chance.
    parameters = (draft_tokens(5), _alpha(2.0))
    never = setting(alpha=2.0)
    always = setting(alpha=-2.0)

    def accepts(self, small: Tensor, large: Tensor, alpha: Tensor) -> Tensor:
        """Max q >= max p - alpha TV(q, p)."""
        distance = (small - large).abs().sum(dim=-1, keepdim=True) / 2
        return _highest(small) >= _highest(large) - alpha * distance


class CascadeV1(Cascade):
    """A token stands where the small model finds it as likely as the large one finds its best."""

    name = "cascade-v1"
    summary = "speculative cascade: a draft stands where q(draft) is at least max p - alpha"
    parameters = (draft_tokens(5), _alpha(1.0))
    never = setting(alpha=1.0)
    always = setting(alpha=-1.0)

    def accepts(self, small: Tensor, large: Tensor, alpha: Tensor) -> Tensor:
        """q(v) >= max p - alpha."""
        return small >= _highest(large) - alpha


class CascadeV2(Cascade):
    """A token stands where the large model finds it nearly as likely as its best."""

    name = "cascade-v2"
    summary = "speculative cascade: a draft stands where p(draft) is at least max p - alpha"
    parameters = (draft_tokens(5), _alpha(1.0))
    never = setting(alpha=1.0)
    always = setting(alpha=-1.0)
    reads_small = False

    def accepts(self, small: Tensor, large: Tensor, alpha: Tensor) -> Tensor:
        """p(v) >= max p - alpha."""
        return large >= _highest(large) - alpha


class CascadeV3(Cascade):
    """A token stands where the large model finds it nearly as likely as its best, by their ratio."""

    name = "cascade-v3"
    summary = "speculative cascade: a draft stands where p(draft) is at least (1 - alpha) max p"
    parameters = (draft_tokens(5), _alpha(1.0))
    never = setting(alpha=1.0)
    always = setting(alpha=-1.0)
    reads_small = False

    def accepts(self, small: Tensor, large: Tensor, alpha: Tensor) -> Tensor:
        """p(v) >= (1 - alpha) max p."""
        return large >= (1 - alpha) * _highest(large)


CASCADES = (CascadeChow, CascadeDiff, CascadeOpt, CascadeV1, CascadeV2, CascadeV3)


def _highest(distributions: Tensor) -> Tensor:
    return distributions.amax(dim=-1, keepdim=True)
