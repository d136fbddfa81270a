"""Makes probabilities honest again after training with weighted classes (Platt 1999), inside the last layer."""

import torch
from torch import Tensor, nn


def calibrate(last: nn.Linear, logits: Tensor, positives: Tensor) -> None:
    """Scale and shift a classifier's one logit so that its sigmoid fits held-out frequencies.

    The order of scores stays as it is.

    Args:
        last: the layer that gives it, changed in place.
        logits: float32 [n], what comes of it on held-out rows.
        positives: float32 [n], 0 or 1.
    """
    log_scale, shift = fit_scale(logits, positives)
    scale = log_scale.exp()
    with torch.no_grad():  # scalars on the CPU go with weights anywhere
        last.weight.mul_(scale)
        last.bias.mul_(scale).add_(shift)


def fit_scale(logits: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    """Log of the scale, and the shift, with the least cross-entropy; the scale is above 0 by its form."""
    log_scale, shift = torch.zeros((), requires_grad=True), torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS((log_scale, shift), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(log_scale.exp() * logits + shift, positives)
        loss.backward()
        return loss

    optimizer.step(closure)
    return log_scale.detach(), shift.detach()
