"""Numbers that routing rules read off a model's output."""

from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the next-token distribution in nats, float32 [n], from raw logits [n, vocabulary].

    By way of log-softmax, so that underflow and rows of -inf give 0, never NaN.
    """
    log_probabilities = logits.float().log_softmax(dim=-1)
    terms = log_probabilities.exp() * log_probabilities
    return -terms.nan_to_num(nan=0.0).sum(dim=-1)


def max_probability(logits: Tensor) -> Tensor:
    """Probability of the likeliest token, float32 [n], from raw logits [n, vocabulary]; NaN for unsound rows."""
    own = logits.float()
    return (own.amax(dim=-1) - own.logsumexp(dim=-1)).exp()


def top_logits(logits: Tensor, count: int) -> Tensor:
    """The largest raw logits, float32 [n, count], largest first (R2R, arXiv 2505.21600, router input)."""
    return logits.float().topk(count, dim=-1).values
