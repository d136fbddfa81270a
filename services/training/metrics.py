"""How well a rare class is told apart, and the threshold that is chosen for it."""

import torch
from torch import Tensor

from ..router.manifest import NUM_SCORE_QUANTILES, Quality


def lowest_rate_threshold(probabilities: Tensor, positives: Tensor, recall: float) -> float:
    """Among thresholds t with enough recall of `p >= t`, the one with the lowest positive rate: the highest.

    R2R, arXiv 2505.21600, section 3.4. Both arguments are float32 [n]; positives are 0 or 1.

    Raises:
        ValueError: there are no positives.
    """
    found = probabilities[positives > 0].sort(descending=True).values
    if not len(found):
        raise ValueError("there are no positives to find")
    needed = max(1, int(torch.tensor(recall * len(found), dtype=torch.float64).sub(1e-9).ceil()))
    return float(found[needed - 1])


def lowest_ceiling(scores: Tensor, positives: Tensor, recall: float) -> float:
    """Among thresholds t with enough recall of `score < t`, the lowest, where a low score tells of a positive.

    Scores are float32 [n] in [0, 1]; positives are 0 or 1.

    Raises:
        ValueError: there are no positives.
    """
    highest = torch.tensor(-lowest_rate_threshold(-scores, positives, recall))
    return min(1.0, float(highest.nextafter(torch.tensor(2.0))))


def highest_quantile(scores: Tensor, positives: Tensor, recall: float, num_quantiles: int) -> tuple[float, float]:
    """Among the scores' quantiles t with enough recall of `score > t`, the highest: its share, and t.

    Scores are float32 [n]; positives are 0 or 1. 0 where even the lowest quantile finds too few.

    Raises:
        ValueError: there are no positives.
    """
    wanted = lowest_rate_threshold(scores, positives, recall)
    shares = torch.linspace(0, 1, num_quantiles + 1, dtype=torch.float64)
    ordered = scores.sort().values
    quantiles = ordered[(shares * (len(ordered) - 1)).floor().long()]
    below = int((quantiles < wanted).sum())
    return (float(shares[below - 1]), float(quantiles[below - 1])) if below else (0.0, 0.0)


def average_precision(probabilities: Tensor, positives: Tensor) -> float:
    """Area under the precision-recall curve, by steps: sum of precision x gain in recall over thresholds.

    Equal scores share one threshold, so their order does not matter. 0 where there are no positives.
    """
    total = float(positives.sum())
    if total == 0:
        return 0.0
    scores, order = probabilities.sort(descending=True, stable=True)
    found = positives[order].double().cumsum(0)
    taken = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    last_of_equals = torch.ones(len(scores), dtype=torch.bool)
    last_of_equals[:-1] = scores[:-1] != scores[1:]
    found, taken = found[last_of_equals], taken[last_of_equals]
    gained = torch.diff(found, prepend=torch.zeros(1, dtype=torch.float64))
    return float((found / taken * gained).sum() / total)


def quality_at(threshold: float, probabilities: Tensor, positives: Tensor) -> Quality:
    """Recall, precision and the rest of `p >= threshold` on one split; both tensors are float32 [n]."""
    return quality_of(probabilities >= threshold, probabilities, positives)


def quality_of(chosen: Tensor, probabilities: Tensor, positives: Tensor) -> Quality:
    """The same of a choice that was made; bool [n], and float32 [n] twice."""
    num_positives, num_chosen = int(positives.sum()), int(chosen.sum())
    num_right = int(positives[chosen].sum())
    return Quality(
        num_tokens=len(positives),
        num_positives=num_positives,
        base_rate=num_positives / len(positives),
        recall=num_right / num_positives if num_positives else 0.0,
        precision=num_right / num_chosen if num_chosen else 0.0,
        positive_rate=num_chosen / len(positives),
        pr_auc=average_precision(probabilities, positives),
        mean_probability=float(probabilities.double().mean()),
    )


def inner_quantiles(scores: Tensor) -> tuple[float, ...]:
    """The 19 quantiles at steps of 5 % between least and greatest, ascending; scores are float32 [n]."""
    ordered = scores.sort().values
    shares = torch.arange(1, NUM_SCORE_QUANTILES + 1, dtype=torch.float64) / (NUM_SCORE_QUANTILES + 1)
    return tuple(ordered[(shares * (len(ordered) - 1)).floor().long()].tolist())
