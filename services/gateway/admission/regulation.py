"""What moves the limiter as time goes by: the promise that is kept, and the turns in which requests start."""

import asyncio

from asyncio_throttle.throttler import Throttler

from .limiter import Limiter
from .promise import Promise

_LOOK_INTERVAL_S = 0.5
_SHORTEST_WINDOW_S = 0.05
_LOOKS_PER_WINDOW = 10


async def keep_promise(promise: Promise, limiter: Limiter) -> None:
    """Hold the limiter at what the promise allows, until cancelled."""
    while True:
        limiter.set_limit(promise.limit(limiter.max_running))
        await asyncio.sleep(_LOOK_INTERVAL_S)


async def pace_starts(limiter: Limiter) -> None:
    """Start those in line at the pace that the limiter was made for, until cancelled.

    One waits for all, so that the library's looking for room again and again costs the same for any number in line.
    Starts are a tenth of a window late at most: they come somewhat slower than asked for, never faster.
    """
    starts_per_s = limiter.starts_per_s
    if starts_per_s is None:
        return
    per_window = max(1, int(starts_per_s * _SHORTEST_WINDOW_S))
    window_s = per_window / starts_per_s
    throttler = Throttler(per_window, window_s, window_s / _LOOKS_PER_WINDOW)
    while True:
        await limiter.until_startable()
        # Whoever is first when the turn comes, not when the wait for it began.
        async with throttler:
            limiter.start_next()
