"""Scores positions with a network over the small model's hidden state: CITER's and Co-LLM's."""

import math

import torch
from torch import Tensor

from .head_checkpoint import LoadedHead
from .scorer import Scorer, ScorerFacts


class HeadScorer(Scorer):
    """Reads the hidden state alone: what the small model proposed does not matter to it."""

    def __init__(self, head: LoadedHead, device: str = "cpu") -> None:
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
        self._device = device

    @torch.inference_mode()
    def score(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        """What the network's sigmoid means; see the policy of the scorer's name."""
        inputs = hidden_states.to(self._device)
        scores: Tensor = self._network(inputs).sigmoid()
        # Without layer norms an infinite number could pass for certainty.
        scores = scores.where(inputs.isfinite().all(dim=-1), math.nan)
        return scores.cpu()
