"""Fits R2R's classifier to labelled tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..router.classifier import HiddenStatesTokenLMHeadLogitsClassifier
from .dataset import Kind, LabelSet, Splits
from .fitting import FitRecipe, fit, in_parts


@dataclass(frozen=True, slots=True)
class RouterRecipe(FitRecipe):
    """Shape and training of a router. The published rates are for 56M parameters; these fit small ones."""

    logits_size: int = 16
    hidden_dims: tuple[int, ...] = (64, 64)
    expansion_factor: int = 2
    dropout: float = 0.1
    normalize_input: bool = True
    rate: float = 1e-3
    target_recall: float = 0.99
    """Published: 0.95. An answer of the embedded pair has about one divergent token, and a miss costs the answer."""


def fit_router(
    classifier: HiddenStatesTokenLMHeadLogitsClassifier,
    splits: Splits[LabelSet],
    embedding: Tensor,
    recipe: RouterRecipe,
) -> None:
    """Train on cross-entropy that is weighted as rare as the divergent class is."""
    train = splits.train
    num_positives = train.count(Kind.DIVERGENT)
    weighted = nn.BCEWithLogitsLoss(pos_weight=torch.tensor((len(train) - num_positives) / num_positives))

    def loss_of(rows: LabelSet) -> Tensor:
        loss: Tensor = weighted(_forward(classifier, rows, embedding), rows.divergent)
        return loss

    fit(classifier, splits, loss_of, recipe)


def logits_of(classifier: HiddenStatesTokenLMHeadLogitsClassifier, labels: LabelSet, embedding: Tensor) -> Tensor:
    """float32 [n], in eval mode."""
    classifier.eval()
    return in_parts(lambda rows: _forward(classifier, rows, embedding), labels)


def _forward(classifier: HiddenStatesTokenLMHeadLogitsClassifier, batch: LabelSet, embedding: Tensor) -> Tensor:
    top_logits = batch.top_logits[:, : classifier.arguments.logits_size]
    logits: Tensor = classifier(batch.hidden_states, embedding[batch.token_ids], top_logits)
    return logits
