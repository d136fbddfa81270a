"""Train a router on labelled tokens, for `allroads train`.

The class weight is used in training only; probabilities are calibrated afterwards, and the threshold is
chosen, on validation problems. What the manifest says of the router was measured on test problems, which
nothing was chosen on. A router that finds nothing is not written.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError, StartupError
from ..router.classifier import ClassifierArguments, HiddenStatesTokenLMHeadLogitsClassifier
from ..router.embedding import embedding_hash, load_embedding
from ..router.router_manifest import DataDescription, RouterManifest, SplitData
from .calibration import calibrate
from .dataset import Kind, LabelOrigin, LabelSet, Splits, split_by_problem
from .fitting import Watcher
from .metrics import inner_quantiles, lowest_rate_threshold, quality_at
from .router_fit import RouterRecipe, fit_router, logits_of
from .train_report import TrainReport, make_report, report_split
from .usefulness import require_positives, require_use

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainedRouter:
    """A calibrated classifier on the CPU, its manifest but for the hash of the weights, and how it went."""

    classifier: HiddenStatesTokenLMHeadLogitsClassifier
    manifest: RouterManifest
    report: TrainReport


def train_router(
    labels: LabelSet,
    origin: LabelOrigin,
    embedding: Tensor,
    recipe: RouterRecipe,
    *,
    device: str = "cpu",
    num_threads: int | None = None,
    watcher: Watcher = Watcher(),  # noqa: B008 (frozen)
) -> TrainedRouter:
    """Train, calibrate, choose the threshold, and measure.

    Args:
        labels: all labelled tokens; parted here by problem.
        origin: what they were made from.
        embedding: the small model's, float32 [rows, size].
        recipe: shape and training.
        device: where it is trained.
        num_threads: torch threads; as many as there are now where None.
        watcher: is told how far it is.

    Raises:
        StartupError: the recipe does not fit the labels, a split has no divergent token, or the router finds none.
    """
    recipe.check()
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if recipe.logits_size > (num_logits := labels.top_logits.shape[1]):
        raise StartupError(
            f"logits_size is {recipe.logits_size}, but the labels have only {num_logits} logits a token: choose as "
            "many or less, or label with more",
            field="logits_size",
        )
    splits = split_by_problem(labels, recipe.seed)
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    require_positives({name: part.divergent for name, part in parts.items()}, "divergent token")
    torch.manual_seed(recipe.seed)
    arguments = ClassifierArguments(
        hidden_states_size=labels.hidden_states.shape[1],
        logits_size=recipe.logits_size,
        hidden_dims=recipe.hidden_dims,
        expansion_factor=recipe.expansion_factor,
        dropout_rate=recipe.dropout,
        normalize_input=recipe.normalize_input,
    )
    classifier = HiddenStatesTokenLMHeadLogitsClassifier(arguments, embedding.shape[1]).to(device)
    epochs = fit_router(classifier, splits, embedding, recipe, watcher)
    calibrate(classifier.output, logits_of(classifier, splits.validation, embedding), splits.validation.divergent)
    on_validation, on_test = (
        logits_of(classifier, part, embedding).sigmoid() for part in (splits.validation, splits.test)
    )
    of_validation, of_test = splits.validation.divergent, splits.test.divergent
    threshold = lowest_rate_threshold(on_validation, of_validation, recipe.target_recall)
    validation = quality_at(threshold, on_validation, of_validation)
    manifest = RouterManifest(
        init_args=arguments,
        slm=origin.slm,
        llm=origin.llm,
        weights_sha256="0" * 64,
        threshold=threshold,
        threshold_rule=f"lowest positive rate with recall >= {recipe.target_recall} on validation",
        score_quantiles=inner_quantiles(on_validation),
        calibrated_share=validation.positive_rate,
        data=_data(origin, splits, recipe.seed),
        training=recipe.describe(),
        validation=validation,
        test=quality_at(threshold, on_test, of_test),
    )
    require_use(manifest)
    report = make_report(
        recipe,
        epochs,
        classifier.num_parameters,
        manifest,
        report_split(manifest.validation, on_validation, of_validation),
        report_split(manifest.test, on_test, of_test),
    )
    return TrainedRouter(classifier.cpu(), manifest, report)


def _data(origin: LabelOrigin, splits: Splits[LabelSet], seed: int) -> DataDescription:
    return DataDescription(
        source=origin.source,
        problem_seed=origin.problem_seed,
        split_seed=seed,
        labels_sha256=origin.labels_sha256,
        train=_split_data(splits.train),
        validation=_split_data(splits.validation),
        test=_split_data(splits.test),
    )


def _split_data(part: LabelSet) -> SplitData:
    return SplitData(
        num_problems=len(part.problem_ids.unique()),
        num_tokens=len(part),
        num_identical=part.count(Kind.IDENTICAL),
        num_neutral=part.count(Kind.NEUTRAL),
        num_divergent=part.count(Kind.DIVERGENT),
    )


def fitting_embedding(slm_directory: Path, origin: LabelOrigin) -> Tensor:
    """The small model's input embedding, float32.

    Raises:
        CheckpointError: it is another model than the one that the labels were made with.
    """
    embedding = load_embedding(slm_directory)
    if embedding_hash(embedding) != origin.slm.embedding_sha256:
        raise CheckpointError(
            f"the labels were made with another model ({origin.slm.model_id}) than {slm_directory}: name the one that "
            "they were made with, or label anew"
        )
    return embedding.float()
