"""Scores proposals with R2R's classifier: the probability that each diverges."""

import torch
from torch import Tensor

from ..cuda.graphed_function import GraphedFunction
from ..cuda.graphs import Recorder
from ..cuda.launch_counts import LaunchCounts
from ..errors import InvalidArgument
from .classifier import classify
from .loaded_router import LoadedRouter
from .scorer import Scorer, ScorerFacts


class R2RScorer(Scorer):
    """Reads all three features; of the token, the small model's embedding."""

    def __init__(self, router: LoadedRouter, device: str = "cpu", recorder: Recorder | None = None) -> None:
        """Move the router to a device; with a recorder, record its pass."""
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
        zeros = (
            torch.zeros((1, self.facts.num_top_logits), device=device),
            torch.zeros((1, self.facts.hidden_size), device=device),
            torch.zeros(1, dtype=torch.int64, device=device),
        )
        self._graphed = GraphedFunction(f"router {manifest.name}", self._pass, zeros, recorder)

    def check(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> None:
        """As of any scorer; token ids must be rows of the embedding, too."""
        super().check(top_logits, hidden_states, token_ids)
        ids = token_ids.tolist()
        if ids and not 0 <= min(ids) <= max(ids) < len(self._embedding):
            raise InvalidArgument(
                f"token_ids must be ids below {len(self._embedding)}, the rows of the embedding", field="token_ids"
            )

    @property
    def counts(self) -> LaunchCounts:
        """See `Scorer.counts`."""
        return self._graphed.counts

    @torch.inference_mode()
    def score(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        """Probabilities that the proposals diverge. Waits for the device once."""
        (probabilities,) = self._graphed(top_logits, hidden_states, token_ids)
        return probabilities.cpu()

    def _pass(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> tuple[Tensor, ...]:
        embeddings = self._embedding.index_select(0, token_ids)
        return (classify(self._weights, self._arguments, hidden_states, embeddings, top_logits).sigmoid(),)
