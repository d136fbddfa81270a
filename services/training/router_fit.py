"""Fits R2R's classifier to labelled tokens."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import StartupError
from ..router.classifier import HiddenStatesTokenLMHeadLogitsClassifier
from .dataset import Kind, LabelSet, Splits
from .fitting import Epoch, FitRecipe, Watcher, fit, in_parts


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

    def check(self) -> None:
        """See that it can be trained by.

        Raises:
            StartupError: a number is out of its range; the message names it.
        """
        for name, value, is_right, wanted in (
            ("rate", self.rate, 0 < self.rate <= 1, "greater than 0 and at most 1"),
            ("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "0 or greater"),
            ("batch_size", self.batch_size, self.batch_size > 1, "2 or greater"),
            ("max_epochs", self.max_epochs, self.max_epochs > 0, "1 or greater"),
            ("patience", self.patience, self.patience > 0, "1 or greater"),
            ("target_recall", self.target_recall, 0 < self.target_recall <= 1, "greater than 0 and at most 1"),
            ("dropout", self.dropout, 0 <= self.dropout < 1, "from 0 to below 1"),
            ("logits_size", self.logits_size, self.logits_size > 0, "1 or greater"),
            ("expansion_factor", self.expansion_factor, 1 <= self.expansion_factor <= 64, "1 to 64"),
            (
                "hidden_dims",
                self.hidden_dims,
                0 < len(self.hidden_dims) <= 64 and all(0 < size <= 1 << 20 for size in self.hidden_dims),
                "1 to 64 widths greater than 0",
            ),
        ):
            if not is_right:
                raise StartupError(f"{name} must be {wanted}, not {value}", field=name)


PRESETS = {
    "small": RouterRecipe(),
    "published": RouterRecipe(
        logits_size=100,
        hidden_dims=(1024,) * 6,
        expansion_factor=4,
        dropout=0.1,
        normalize_input=False,
        rate=5e-5,
        schedule="constant",
        weight_decay=5e-4,
        batch_size=1024,
        max_epochs=50,
        patience=10,
        target_recall=0.95,
    ),
}
"""Recipes by name: for models of the embedded size, and R2R's (arXiv 2505.21600, appendix; its public trainer)."""


def fit_router(
    classifier: HiddenStatesTokenLMHeadLogitsClassifier,
    splits: Splits[LabelSet],
    embedding: Tensor,
    recipe: RouterRecipe,
    watcher: Watcher,
) -> list[Epoch]:
    """Train on cross-entropy that is weighted as rare as the divergent class is, where the classifier's weights lie."""
    train = splits.train
    num_positives = train.count(Kind.DIVERGENT)
    rarity = torch.tensor((len(train) - num_positives) / num_positives, device=classifier.output.weight.device)
    weighted = nn.BCEWithLogitsLoss(pos_weight=rarity)

    def loss_of(rows: LabelSet) -> Tensor:
        loss: Tensor = weighted(_forward(classifier, rows, embedding), rows.divergent.to(rarity.device))
        return loss

    return fit(classifier, splits, loss_of, recipe, watcher)


def logits_of(classifier: HiddenStatesTokenLMHeadLogitsClassifier, labels: LabelSet, embedding: Tensor) -> Tensor:
    """float32 [n] on the CPU, in eval mode."""
    classifier.eval()
    return in_parts(lambda rows: _forward(classifier, rows, embedding).cpu(), labels)


def _forward(classifier: HiddenStatesTokenLMHeadLogitsClassifier, batch: LabelSet, embedding: Tensor) -> Tensor:
    device = classifier.output.weight.device
    hidden_states, embeddings, top_logits = (
        part.to(device)
        for part in (
            batch.hidden_states,
            embedding[batch.token_ids],
            batch.top_logits[:, : classifier.arguments.logits_size],
        )
    )
    logits: Tensor = classifier(hidden_states, embeddings, top_logits)
    return logits
