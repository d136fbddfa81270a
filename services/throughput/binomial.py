"""Distributions of sums of independent coins, many at a time."""

import numpy as np

from .setting import Floats, Ints


class Binomials:
    """Binomial distributions of up to `num` coins."""

    def __init__(self, num: int) -> None:
        self._num = num
        self._log_factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, num + 1)))))
        self._counts = np.arange(num + 1)

    def pmf(self, coins: Floats, heads: Floats) -> Floats:
        """Probability [n, num + 1] of each number of heads; `coins` [n] are whole, `heads` [n] probabilities."""
        trials = coins.astype(np.int64)[:, None]
        left = trials - self._counts
        fits = left >= 0
        left = np.maximum(left, 0)
        logs = self._log_factorials
        exponent = logs[trials] - logs[self._counts] - logs[left]
        exponent += self._counts * np.log(np.maximum(heads, 1e-300))[:, None]
        exponent += left * np.log(np.maximum(1.0 - heads, 1e-300))[:, None]
        return np.where(fits, np.exp(exponent), 0.0)

    def sums(self, one: Floats, other: Floats) -> Floats:
        """Distributions [n, num + 1] of the sums of two numbers each, whose own are given and do not go beyond."""
        size = 2 * self._num + 1
        spectra = np.fft.rfft(one, size) * np.fft.rfft(other, size)
        return np.maximum(np.fft.irfft(spectra, size)[:, : self._num + 1], 0.0)

    def below(self, limits: Floats, coins: Floats, heads: Floats, is_wanted: "np.ndarray") -> tuple[Floats, Floats]:
        """Probability that there are less heads than a limit, and their mean number counted only there.

        Args:
            limits: [..., n], whole.
            coins: [n].
            heads: [..., n], probability of heads.
            is_wanted: [..., n]; elsewhere both results are 0.
        """
        wanted = np.nonzero(is_wanted)
        pmf = self.pmf(coins[wanted[-1]], heads[wanted]) * (self._counts < limits[wanted][:, None])
        results = np.zeros((2, *heads.shape))
        results[0][wanted], results[1][wanted] = pmf.sum(axis=1), pmf @ self._counts
        return results[0], results[1]

    def rises(self, heads: Floats) -> Floats:
        """Transitions [n, num + 1, num + 1] of a count, when each coin not counted yet comes in as heads."""
        counts = np.tile(self._counts, len(heads))
        arrivals = self.pmf((self._num - counts).astype(np.float64), np.repeat(heads, self._num + 1))
        shift: Ints = self._counts - counts[:, None]
        moved = np.where(shift >= 0, np.take_along_axis(arrivals, np.maximum(shift, 0), axis=1), 0.0)
        return moved.reshape(len(heads), self._num + 1, self._num + 1)
