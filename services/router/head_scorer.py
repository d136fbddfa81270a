"""Scores positions with a network over the small model's hidden state: CITER's and Co-LLM's."""

import math

import torch
from torch import Tensor

from ..cuda.graphed_function import GraphedFunction
from ..cuda.graphs import Recorder
from ..cuda.launch_counts import LaunchCounts
from .head_checkpoint import LoadedHead
from .scorer import Scorer, ScorerFacts


class HeadScorer(Scorer):
    """Reads the hidden state alone: what the small model proposed does not matter to it."""

    def __init__(self, head: LoadedHead, device: str = "cpu", recorder: Recorder | None = None) -> None:
        """Move the network to a device; with a recorder, record its pass."""
        manifest = head.manifest
        super().__init__(
            ScorerFacts(
                name=manifest.name,
                slm=manifest.slm,
                llm=manifest.llm,
                weights_sha256=manifest.weights_sha256,
                features=manifest.features,
                hidden_size=manifest.hidden_states_size,
                num_top_logits=0,
                threshold=manifest.threshold,
                num_parameters=sum(parameter.numel() for parameter in head.network.parameters()),
                score_quantiles=manifest.score_quantiles,
                calibrated_share=manifest.calibrated_share,
                data=manifest.data,
            )
        )
        self._network = head.network.to(device)
        zeros = (torch.zeros((1, self.facts.hidden_size), device=device),)
        self._graphed = GraphedFunction(f"router {manifest.name}", self._pass, zeros, recorder)

    @property
    def counts(self) -> LaunchCounts:
        """See `Scorer.counts`."""
        return self._graphed.counts

    @torch.inference_mode()
    def score(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        """What the network's sigmoid means; see the policy of the scorer's name. Waits for the device once."""
        (scores,) = self._graphed(hidden_states)
        return scores.cpu()

    def _pass(self, hidden_states: Tensor) -> tuple[Tensor, ...]:
        scores: Tensor = self._network(hidden_states).sigmoid()
        # Without layer norms an infinite number could pass for certainty.
        return (scores.where(hidden_states.isfinite().all(dim=-1), math.nan),)
