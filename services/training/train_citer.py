"""Train CITER's network on reference texts (arXiv 2502.01976): `python -m allroads.training.train_citer`.

Reads what `allroads.training.references` wrote. The label is 1 where the small model suffices, the loss plain binary
cross-entropy: no class weights, so nothing to take out of the probabilities again. The threshold tau, below which a
token is the large model's, is the lowest that finds enough of the tokens where the small model does not suffice, on
validation problems. (The published one is 0.98, for other models.) What the manifest says of the scorer was measured
on test problems, too, which nothing was chosen on. A scorer that finds nothing is not written.
"""

from pathlib import Path

from torch import Tensor
from torch.nn import functional

from ..router.head_manifest import CiterManifest, HeadManifest
from ..router.heads import CiterNetwork
from .dataset import Splits
from .fitting import FitRecipe, fit
from .head_training import TrainedHead, make_head, manifest_parts, run_command, scores_of
from .metrics import inner_quantiles, lowest_ceiling, quality_of
from .reference_set import ReferenceDescription, ReferenceSet

RECIPE = FitRecipe(rate=1e-3, target_recall=0.99)


def train_citer(splits: Splits[ReferenceSet], description: ReferenceDescription, recipe: FitRecipe) -> TrainedHead:
    """Train, choose tau, and measure."""
    network = CiterNetwork(splits.train.hidden_states.shape[1])

    def loss_of(rows: ReferenceSet) -> Tensor:
        return functional.binary_cross_entropy_with_logits(network(rows.hidden_states), rows.suffices.float())

    fit(network, splits, loss_of, recipe)
    on_validation, on_test = (scores_of(network, part) for part in (splits.validation, splits.test))
    of_validation, of_test = (_positives(part).float() for part in (splits.validation, splits.test))
    tau = lowest_ceiling(on_validation, of_validation, recipe.target_recall)
    validation = quality_of(on_validation < tau, 1 - on_validation, of_validation)
    manifest = CiterManifest(
        **manifest_parts(splits, description, recipe),
        positives="tokens where the small model does not suffice",
        threshold=tau,
        threshold_rule=f"lowest tau with recall >= {recipe.target_recall} of score < tau on validation",
        score_quantiles=inner_quantiles(on_validation),
        calibrated_share=validation.positive_rate,
        validation=validation,
        test=quality_of(on_test < tau, 1 - on_test, of_test),
    )
    return TrainedHead(network, manifest)


def make_citer(models: Path, references: Path, out: Path, recipe: FitRecipe = RECIPE) -> HeadManifest:
    """Train and write it: see `make_head`."""
    return make_head(models, references, out, recipe, train=train_citer, positives_of=_positives)


def _positives(references: ReferenceSet) -> Tensor:
    return ~references.suffices


def main() -> None:
    """Command line."""
    run_command(__doc__, "citer", RECIPE, make_citer)


if __name__ == "__main__":
    main()
