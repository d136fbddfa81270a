"""A scorer that finds nothing of a rare class is refused, however well it does by the other measures."""

from collections.abc import Mapping

from torch import Tensor

from ..errors import StartupError
from ..router.manifest import ScorerManifest


def require_positives(splits: Mapping[str, Tensor], what: str) -> None:
    """See that there is something to find.

    Args:
        splits: positives of each split, 0 or 1, [n].
        what: the rare class, for the message.

    Raises:
        StartupError: a split has none.
    """
    for name, positives in splits.items():
        if not positives.any():
            raise StartupError(f"no {what} among the {len(positives)} of the {name} split: label more problems")


def require_use(manifest: ScorerManifest) -> None:
    """See that it was found.

    Raises:
        StartupError: on validation or test it was not, or not better than by chance.
    """
    for name, quality in (("validation", manifest.validation), ("test", manifest.test)):
        if quality.recall == 0 or quality.pr_auc <= quality.base_rate + 1e-9:
            raise StartupError(
                f"this router is no better than chance on {name} (recall {quality.recall:.3f}, PR-AUC "
                f"{quality.pr_auc:.3f} at a base rate of {quality.base_rate:.3f}) and is not written: "
                "label more problems or train longer"
            )
