"""Fits the weights of any scorer to labelled tokens."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from ..errors import StartupError
from ..router.manifest import TrainingDescription
from .dataset import Splits, TokenRows

logger = logging.getLogger(__name__)

_PART_ROWS = 8192
_Rows = TypeVar("_Rows", bound=TokenRows)


@dataclass(frozen=True, slots=True)
class FitRecipe:
    """How to train."""

    rate: float
    schedule: Literal["linear", "constant"] = "linear"
    """Of the rate: down to 0 over `max_epochs`, or the same throughout."""
    weight_decay: float = 1e-2
    batch_size: int = 1024
    max_epochs: int = 12
    patience: int = 4
    target_recall: float = 0.95
    """Of the tokens for the large model, at the scorer's own threshold."""
    seed: int = 0
    """Of the split, and of initial weights and order."""

    def describe(self) -> TrainingDescription:
        """For a manifest."""
        return TrainingDescription(
            optimizer="AdamW",
            rate=self.rate,
            schedule=self.schedule,
            weight_decay=self.weight_decay,
            batch_size=self.batch_size,
            max_epochs=self.max_epochs,
            patience=self.patience,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class Epoch:
    """Mean losses of one pass over the training split, class weights included."""

    number: int
    """From 1."""
    train_loss: float
    """As it went, with dropout."""
    validation_loss: float
    """At its end."""


def _ignore(*_: object) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class Watcher:
    """Is told how far a training is."""

    on_step: Callable[[int, int], None] = _ignore
    """Steps done, and steps at most."""
    on_epoch: Callable[[Epoch], None] = _ignore


def fit(
    module: nn.Module,
    splits: Splits[_Rows],
    loss_of: Callable[[_Rows], Tensor],
    recipe: FitRecipe,
    watcher: Watcher = Watcher(),
) -> list[Epoch]:
    """AdamW; keeps the weights of the least validation loss, and leaves them in eval mode.

    Args:
        module: what is trained.
        splits: its data; the test part is not looked at.
        loss_of: the mean loss of some rows under `module`, in whatever mode it is.
        recipe: how long and how fast.
        watcher: is told of each step and epoch.

    Raises:
        StartupError: the loss was not a number after any epoch.
    """
    train = splits.train
    optimizer = torch.optim.AdamW(module.parameters(), lr=recipe.rate, weight_decay=recipe.weight_decay)
    num_steps = recipe.max_epochs * -(-len(train) // recipe.batch_size)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1.0 if recipe.schedule == "constant" else max(0.0, 1 - step / num_steps)
    )
    best, best_state, since_best = math.inf, {}, 0
    epochs: list[Epoch] = []
    num_done = 0
    for number in range(1, recipe.max_epochs + 1):
        module.train()
        total = torch.zeros(())
        for chosen in torch.randperm(len(train)).split(recipe.batch_size):
            num_done += 1
            if len(chosen) == 1:
                continue  # the last one, perhaps; a batch norm has no variance to learn from it
            loss = loss_of(train.rows(chosen))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += len(chosen) * loss.detach().cpu()
            watcher.on_step(num_done, num_steps)
        module.eval()
        epoch = Epoch(number, float(total) / len(train), _mean_loss(loss_of, splits.validation))
        epochs.append(epoch)
        logger.info("epoch %d: loss %.4f on validation", number, epoch.validation_loss)
        watcher.on_epoch(epoch)
        since_best += 1
        if epoch.validation_loss < best:
            best, since_best = epoch.validation_loss, 0
            best_state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        if since_best >= recipe.patience:
            break
    if not best_state:
        raise StartupError(
            f"the loss is not a number after any of {len(epochs)} epochs: choose a lower rate than {recipe.rate:g}",
            field="rate",
        )
    module.load_state_dict(best_state)
    module.eval()
    return epochs


@torch.no_grad()
def in_parts(forward: Callable[[_Rows], Tensor], rows: _Rows) -> Tensor:
    """What `forward` gives for all rows, [n], without gradients and without all at once."""
    return torch.cat([forward(rows.rows(part)) for part in torch.arange(len(rows)).split(_PART_ROWS)])


@torch.no_grad()
def _mean_loss(loss_of: Callable[[_Rows], Tensor], rows: _Rows) -> float:
    parts = torch.arange(len(rows)).split(_PART_ROWS)
    return sum(len(part) * float(loss_of(rows.rows(part))) for part in parts) / len(rows)
