"""What becomes of policies' decisions: acted on or overruled, recorded, counted, and held to a share.

In an audit the policy decides as ever, and one model writes whatever it decides.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import HomeSettings
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2, router_pb2
from ..policies.policy import ACCEPT, HOME, Feature, Policy, Verdict, reject
from .decision_log import DecisionLog
from .drift import DriftWatch, Recent
from .request import Decision, Proposal, Request
from .share_control import ShareControl

_REASONS = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


@dataclass(slots=True)
class Decisions:
    """The decisions of all requests. Belongs to the decode thread."""

    settings: HomeSettings
    policy: Policy
    """The default one, which is watched and held to a share."""
    log: DecisionLog | None = None
    is_open: bool = False
    """Whether clients are served: what comes before is our own warm-up, and counts for nothing."""
    _control: ShareControl | None = None
    _calibrated_share: float | None = None
    _drift: DriftWatch = field(default_factory=lambda: DriftWatch(()))
    _routed: Recent = field(default_factory=lambda: Recent(2))

    @classmethod
    def of(cls, settings: HomeSettings, policy: Policy) -> "Decisions":
        """What the settings ask for.

        Raises:
            StartupError: the record cannot be written, or the default policy has no threshold to move.
        """
        # The router is met later, and its threshold known then; what cannot be is refused now.
        ShareControl.of(settings, policy, start=0.5)
        log = None
        if settings.decisions_path is not None:
            log = DecisionLog(
                settings.decisions_path, max_bytes=settings.decisions_max_bytes, num_files=settings.decisions_files
            )
        return cls(settings, policy, log)

    def router_up(self, scorers: Mapping[str, router_pb2.ScorerDescription], threshold: float | None) -> None:
        """Learn what was so at calibration, and begin to hold the share.

        Args:
            scorers: those of the router.
            threshold: the default policy's.

        Raises:
            StartupError: the share cannot be held by that policy.
        """
        scorer = scorers.get(self.policy.scorer or "")
        if scorer is not None:
            self._drift = DriftWatch(scorer.score_quantiles)
            self._calibrated_share = scorer.calibrated_share if scorer.HasField("calibrated_share") else None
        if self._control is None:
            self._control = ShareControl.of(self.settings, self.policy, threshold)

    def follows_target(self, request: Request, *, names_threshold: bool) -> bool:
        """Whether a new request's threshold is for us to move."""
        return self._control is not None and request.acts and request.policy is self.policy and not names_threshold

    def prepare(self, request: Request) -> None:
        """A proposal of the request is about to be judged: at the threshold of now, where that is ours to move."""
        if request.follows_target and self._control is not None:
            request.view.parameters = {**request.view.parameters, "threshold": (self._control.threshold,)}

    def take(self, request: Request, proposal: Proposal, token_id: int, verdict: Verdict) -> Verdict:
        """A policy has decided; what is done of it. Drafts are no decisions: a larger model judges them all."""
        if verdict.is_draft or not self.is_open:
            return verdict
        is_routed = verdict.tier != HOME
        if request.policy is self.policy:
            self._routed.add(is_routed)
            if proposal.score is not None:
                self._drift.add(proposal.score)
        if request.follows_target and self._control is not None:
            self._control.observe(is_routed=is_routed)
        if self.log is not None:
            reads_entropy = Feature.ENTROPY in request.policy.features
            request.decision = Decision(
                token_id,
                _finite(proposal.score),
                _finite(proposal.reading.entropy) if reads_entropy else None,
                is_routed=is_routed,
            )
        if request.acts:
            return verdict
        return ACCEPT if self.settings.writer == "slm" else reject(request.view.large)

    def committed(self, request: Request, token_id: int, tier: int) -> None:
        """The token in question was written."""
        decision, request.decision = request.decision, None
        if self.log is None or decision is None:
            return
        position = request.length - request.sequence.num_prompt_tokens - 1
        fields: dict[str, Any] = {
            "mode": request.usage.mode,
            "policy": request.policy.name,
            "threshold": request.view.parameters.get("threshold", (None,))[0],
            "position": position,
            "proposal": decision.proposal,
            "score": decision.score,
            "entropy": decision.entropy,
            "routed": decision.is_routed,
            "acted": request.acts,
            "written": token_id,
            "tier": tier,
            "large": token_id if tier == request.view.large else None,
        }
        if self.settings.decisions_context:
            end = request.length - 1
            fields["context"] = request.sequence.tokens[max(0, end - self.settings.decisions_context) : end]
        self.log.write(request.number, **fields)

    def ended(self, request: Request, reason: "pb.FinishReason.ValueType | None", *, failed: bool) -> None:
        """A request is over."""
        if self.log is None or not self.is_open:
            return
        end = "error" if failed else "abort" if reason is None else _REASONS[reason]
        self.log.write(
            request.number,
            end=end,
            mode=request.usage.mode,
            policy=request.policy.name,
            num_tokens=list(request.usage.num_committed_tokens),
            num_prompt=request.sequence.num_prompt_tokens,
        )

    def state(self) -> model_pb2.RoutingState:
        """What is to be told of all this."""
        accepted, routed = self._routed.counts
        total = accepted + routed
        return model_pb2.RoutingState(
            threshold=None if self._control is None else self._control.threshold,
            share=routed / total if total else 0.0,
            num_decisions=total,
            calibrated_share=self._calibrated_share,
            target_share=self.settings.target_share,
            score_drift=self._drift.index,
        )

    def close(self) -> None:
        """Write what is still to be recorded."""
        if self.log is not None:
            self.log.close()


def _finite(score: float | None) -> float | None:
    return score if score is not None and math.isfinite(score) else None
