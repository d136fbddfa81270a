"""What the trainings of CITER's network and of Co-LLM's head have in common, around what each learns."""

import argparse
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from ..router.embedding import embedding_hash, load_embedding
from ..router.head_checkpoint import save_head
from ..router.head_manifest import HeadManifest, ReferenceData
from .dataset import Splits, load_labels, split_by_problem
from .fitting import FitRecipe, in_parts
from .head_card import write_head_card
from .reference_set import ReferenceDescription, ReferenceSet
from .usefulness import require_positives, require_use

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """A network in eval mode, and its manifest but for the hash of the weights."""

    network: nn.Module
    manifest: HeadManifest


Trainer = Callable[[Splits[ReferenceSet], ReferenceDescription, FitRecipe], TrainedHead]
"""Trains, chooses the threshold, and measures."""


def make_head(
    models: Path,
    references_directory: Path,
    out: Path,
    recipe: FitRecipe,
    *,
    train: Trainer,
    positives_of: Callable[[ReferenceSet], Tensor],
) -> HeadManifest:
    """Train a scorer on reference texts that both models have read, and write it to `out` with its card.

    Args:
        models: directory with the small model that it is for, `slm`.
        references_directory: what `allroads.training.references` wrote.
        out: where it goes.
        recipe: how to train.
        train: the method's own part.
        positives_of: bool [n], the tokens that it should find for the large model.

    Raises:
        CheckpointError: the references were read with another small model than `models/slm`.
        StartupError: no useful scorer came of it; nothing is written.
    """
    references, description = load_labels(references_directory, ReferenceSet, ReferenceDescription)
    if embedding_hash(load_embedding(models / "slm")) != description.slm.embedding_sha256:
        raise CheckpointError(
            f"the references in {references_directory} were read with another model than {models / 'slm'}"
        )
    splits = split_by_problem(references, recipe.seed)
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    require_positives({name: positives_of(part) for name, part in parts.items()}, "token for the large model")
    torch.manual_seed(recipe.seed)
    trained = train(splits, description, recipe)
    require_use(trained.manifest)
    save_head(out, trained.network, trained.manifest)
    write_head_card(out, trained.network, trained.manifest)
    return trained.manifest


def scores_of(network: nn.Module, references: ReferenceSet) -> Tensor:
    """What a network in eval mode would be served as giving, float32 [n]."""

    def forward(rows: ReferenceSet) -> Tensor:
        scores: Tensor = network(rows.hidden_states).sigmoid()
        return scores

    return in_parts(forward, references)


def manifest_parts(
    splits: Splits[ReferenceSet], description: ReferenceDescription, recipe: FitRecipe
) -> dict[str, Any]:
    """What the manifest of either says of its making."""
    return {
        "hidden_states_size": splits.train.hidden_states.shape[1],
        "slm": description.slm,
        "llm": description.llm,
        "weights_sha256": "0" * 64,
        "data": ReferenceData(
            source=description.source,
            problem_seed=description.problem_seed,
            split_seed=recipe.seed,
            labels_sha256=description.labels_sha256,
            train=splits.train.describe(),
            validation=splits.validation.describe(),
            test=splits.test.describe(),
        ),
        "training": recipe.describe(),
    }


def run_command(
    documentation: str | None,
    name: str,
    default: FitRecipe,
    make: Callable[[Path, Path, Path, FitRecipe], HeadManifest],
) -> None:
    """The command line of either training."""
    parser = argparse.ArgumentParser(description=documentation)
    parser.add_argument("--models", type=Path, default=Path("models"), help="directory with slm/")
    parser.add_argument("--references", type=Path, default=Path("build/references"))
    parser.add_argument("--out", type=Path, default=Path("models") / name)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--target-recall", type=float, default=default.target_recall)
    parser.add_argument("--max-epochs", type=int, default=default.max_epochs)
    parser.add_argument("--num-threads", type=int, default=2)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.num_threads)
    recipe = replace(
        default, seed=arguments.seed, target_recall=arguments.target_recall, max_epochs=arguments.max_epochs
    )
    manifest = make(arguments.models, arguments.references, arguments.out, recipe)
    for split, quality in (("validation", manifest.validation), ("test", manifest.test)):
        logger.info("%s: %s", split, quality.model_dump_json())
