"""Train Co-LLM's head on reference texts (arXiv 2403.03870): `python -m allroads.training.train_co_llm`.

Reads what `allroads.training.references` wrote. The loss is -log[(1 - Pd) q(x) + Pd p(x)], with q(x) and p(x) what the
small and the large model give the reference token. In the paper the small model learns along; here it is frozen as
the large one is, so that the model that is served stays as it is, and only the head's one row is learned. As in the
paper it begins from a weak label: the large model's likeliest token is right, and the small one's is not.

With a frozen small model the likelihood alone ends badly: where both models are sure, the large one is a shade surer,
and with nothing else to learn the head defers there, too. So the likelihood has the last word, but a short one: a tenth
of the rate, and half the epochs.

The threshold eta, above which a token is the large model's, is a quantile of Pd on validation problems: the highest
that finds enough of the tokens where only the large model is right. (The TokenRouter paper serves 0.15, for other
models.) What the manifest says of the scorer was measured on test problems, too, which nothing was chosen on. A scorer
that finds nothing is not written.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ..router.head_manifest import CoLlmManifest, HeadManifest
from ..router.heads import CoLlmHead
from .dataset import Splits
from .fitting import FitRecipe, fit
from .head_training import TrainedHead, make_head, manifest_parts, run_command, scores_of
from .metrics import highest_quantile, inner_quantiles, quality_of
from .reference_set import ReferenceDescription, ReferenceSet

NUM_QUANTILES = 200
RECIPE = FitRecipe(rate=1e-2, weight_decay=0.0)


def train_co_llm(splits: Splits[ReferenceSet], description: ReferenceDescription, recipe: FitRecipe) -> TrainedHead:
    """Train twice, on the weak label and on the likelihood; choose eta, and measure."""
    head = CoLlmHead(splits.train.hidden_states.shape[1])

    def weak_loss_of(rows: ReferenceSet) -> Tensor:
        return functional.binary_cross_entropy_with_logits(head(rows.hidden_states), rows.defers.float())

    def loss_of(rows: ReferenceSet) -> Tensor:
        return marginal_loss(head(rows.hidden_states), rows.slm_logprobs, rows.llm_logprobs)

    fit(head, splits, weak_loss_of, recipe)
    fit(head, splits, loss_of, replace(recipe, rate=recipe.rate / 10, max_epochs=-(-recipe.max_epochs // 2)))
    on_validation, on_test = (scores_of(head, part) for part in (splits.validation, splits.test))
    of_validation, of_test = (part.defers.float() for part in (splits.validation, splits.test))
    share, eta = highest_quantile(on_validation, of_validation, recipe.target_recall, NUM_QUANTILES)
    validation = quality_of(on_validation > eta, on_validation, of_validation)
    manifest = CoLlmManifest(
        **manifest_parts(splits, description, recipe),
        positives="tokens where only the large model is right",
        threshold=eta,
        threshold_rule=(
            f"quantile {share:.3f} of P_defer on validation, the highest of {NUM_QUANTILES} with recall >= "
            f"{recipe.target_recall} of score > eta there"
        ),
        score_quantiles=inner_quantiles(on_validation),
        calibrated_share=validation.positive_rate,
        validation=validation,
        test=quality_of(on_test > eta, on_test, of_test),
    )
    return TrainedHead(head, manifest)


def marginal_loss(logits: Tensor, slm_logprobs: Tensor, llm_logprobs: Tensor) -> Tensor:
    """Mean of -log[(1 - Pd) q + Pd p] with Pd = sigmoid(logits), all in logarithms; three float32 [n]."""
    kept = functional.logsigmoid(-logits) + slm_logprobs
    deferred = functional.logsigmoid(logits) + llm_logprobs
    return -torch.logaddexp(kept, deferred).mean()


def make_co_llm(models: Path, references: Path, out: Path, recipe: FitRecipe = RECIPE) -> HeadManifest:
    """Train and write it: see `make_head`."""
    return make_head(models, references, out, recipe, train=train_co_llm, positives_of=_positives)


def _positives(references: ReferenceSet) -> Tensor:
    return references.defers


def main() -> None:
    """Command line."""
    run_command(__doc__, "co-llm", RECIPE, make_co_llm)


if __name__ == "__main__":
    main()
