"""A scorer that finds nothing of a rare class is refused, however well it does by the other measures (C50)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import StartupError
from ..router.manifest import Quality, ScorerManifest

_NUM_ORDERS = 99


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
        if quality.recall == 0 or quality.pr_auc <= chance_pr_auc(quality.num_tokens, quality.num_positives):
            raise StartupError(
                f"this router is no better than chance on {name} ({_numbers(quality)}) and is not written: "
                "label more problems or train longer"
            )
        if quality.recall <= quality.positive_rate:
            raise StartupError(
                f"at its threshold this router is no better than a draw that sends as many tokens to the large model, "
                f"on {name} ({_numbers(quality)}), and is not written: label more problems, train longer, or ask for "
                "less recall"
            )


def chance_pr_auc(num_tokens: int, num_positives: int) -> float:
    """The best average precision of 99 random orders, which a useful score must pass (one chance in a hundred)."""
    generator = torch.Generator().manual_seed(0)
    best = num_positives / num_tokens
    found = torch.arange(1, num_positives + 1, dtype=torch.float64)
    for _ in range(_NUM_ORDERS):
        ranks = torch.rand(num_tokens, generator=generator).topk(num_positives).indices.sort().values + 1
        best = max(best, float((found / ranks).mean()))
    return best


def _numbers(quality: Quality) -> str:
    return (
        f"recall {quality.recall:.3f} of {quality.num_positives}, precision {quality.precision:.3f}, PR-AUC "
        f"{quality.pr_auc:.3f} at a base rate of {quality.base_rate:.3f}, {100 * quality.positive_rate:.1f} % of "
        "tokens to the large model"
    )
