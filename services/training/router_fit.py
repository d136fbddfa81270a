"""Fits the classifier's weights to labelled tokens."""

import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..router.classifier import HiddenStatesTokenLMHeadLogitsClassifier
from .dataset import Kind, LabelSet, Splits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RouterRecipe:
    """Shape and training of a router. The published rates are for 56M parameters; these fit small ones."""

    logits_size: int = 16
    hidden_dims: tuple[int, ...] = (64, 64)
    expansion_factor: int = 2
    dropout: float = 0.1
    normalize_input: bool = True
    rate: float = 1e-3
    weight_decay: float = 1e-2
    batch_size: int = 1024
    max_epochs: int = 12
    patience: int = 4
    target_recall: float = 0.99
    """Published: 0.95. An answer of the embedded pair has about one divergent token, and a miss costs the answer."""
    seed: int = 0
    """Of the split, and of initial weights and order."""


def fit(
    classifier: HiddenStatesTokenLMHeadLogitsClassifier, splits: Splits, embedding: Tensor, recipe: RouterRecipe
) -> None:
    """AdamW on weighted cross-entropy, rate linear to zero; keeps the weights of the least validation loss."""
    train = splits.train
    num_positives = train.count(Kind.DIVERGENT)
    loss_of = nn.BCEWithLogitsLoss(pos_weight=torch.tensor((len(train) - num_positives) / num_positives))
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=recipe.rate, weight_decay=recipe.weight_decay)
    num_steps = recipe.max_epochs * -(-len(train) // recipe.batch_size)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / num_steps))
    best, best_state, since_best = math.inf, {}, 0
    for epoch in range(1, recipe.max_epochs + 1):
        classifier.train()
        for chosen in torch.randperm(len(train)).split(recipe.batch_size):
            batch = train.rows(chosen)
            loss = loss_of(_forward(classifier, batch, embedding), batch.divergent)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        validation = splits.validation
        loss_there = float(loss_of(logits_of(classifier, validation, embedding), validation.divergent))
        logger.info("epoch %d: loss %.4f on validation", epoch, loss_there)
        since_best += 1
        if loss_there < best:
            best, since_best = loss_there, 0
            best_state = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
        if since_best >= recipe.patience:
            break
    classifier.load_state_dict(best_state)
    classifier.eval()


@torch.no_grad()
def logits_of(classifier: HiddenStatesTokenLMHeadLogitsClassifier, labels: LabelSet, embedding: Tensor) -> Tensor:
    """float32 [n], in eval mode."""
    classifier.eval()
    parts = torch.arange(len(labels)).split(8192)
    return torch.cat([_forward(classifier, labels.rows(part), embedding) for part in parts])


def _forward(classifier: HiddenStatesTokenLMHeadLogitsClassifier, batch: LabelSet, embedding: Tensor) -> Tensor:
    top_logits = batch.top_logits[:, : classifier.arguments.logits_size]
    logits: Tensor = classifier(batch.hidden_states, embedding[batch.token_ids], top_logits)
    return logits
