"""Scores proposals with R2R's classifier: the probability that each diverges."""

import torch
from torch import Tensor

from ..errors import InvalidArgument
from .classifier import classify
from .loaded_router import LoadedRouter
from .scorer import Scorer, ScorerFacts


class R2RScorer(Scorer):
    """Reads all three features; of the token, the small model's embedding."""

    def __init__(self, router: LoadedRouter, device: str = "cpu") -> None:
        manifest = router.manifest
        super().__init__(
            ScorerFacts(
                name=manifest.name,
                slm=manifest.slm,
                llm=manifest.llm,
                weights_sha256=manifest.weights_sha256,
                features=manifest.features,
                hidden_size=manifest.init_args.hidden_states_size,
                num_top_logits=manifest.init_args.logits_size,
                threshold=manifest.threshold,
                num_parameters=router.classifier.num_parameters,
                score_quantiles=manifest.score_quantiles,
                calibrated_share=manifest.calibrated_share,
                data=manifest.data,
            )
        )
        self._arguments = manifest.init_args
        self._weights = dict(router.classifier.to(device).state_dict())
        self._embedding = router.embedding.to(device)
        self._device = device

    def check(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> None:
        """As of any scorer; token ids must be rows of the embedding, too."""
        super().check(top_logits, hidden_states, token_ids)
        ids = token_ids.tolist()
        if ids and not 0 <= min(ids) <= max(ids) < len(self._embedding):
            raise InvalidArgument(
                f"token_ids must be ids below {len(self._embedding)}, the rows of the embedding", field="token_ids"
            )

    @torch.inference_mode()
    def score(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        """Probabilities that the proposals diverge."""
        embeddings = self._embedding[token_ids.to(self._device)]
        device = self._device
        logits = classify(self._weights, self._arguments, hidden_states.to(device), embeddings, top_logits.to(device))
        probabilities: Tensor = logits.sigmoid().cpu()
        return probabilities
