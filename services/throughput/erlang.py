"""How long one waits for a place, where requests come at random."""

from collections.abc import Callable


def queue_wait_s(rate_per_s: float, num_places: int, service_s: float) -> float:
    """Mean wait in seconds of a request that comes in a Poisson stream and holds one of the places for a while.

    Erlang C: with a = rate x service time offered to c places, C(c, a) = E / (1 - a/c (1 - E)) of the requests find
    all of them taken, E being Erlang's loss formula, and the mean wait is C(c, a) x service time / (c - a).

    Its limits. Times of service are taken as exponential; where answers vary less in length the wait is shorter, to
    half of it where they are all the same. A place's service time is taken as that of a mesh whose places are all
    taken; a mesh with fewer requests serves each of them faster, so the wait is estimated too long. Requests that
    come in bursts wait longer. Infinite where no fewer come than can be served.
    """
    offered = rate_per_s * service_s
    if offered >= num_places:
        return float("inf")
    lost = 1.0
    for places in range(1, num_places + 1):
        lost = offered * lost / (places + offered * lost)
    waits = lost / (1.0 - offered / num_places * (1.0 - lost))
    return waits * service_s / (num_places - offered)


def largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest whole number up to `most` for which it holds, 0 for none; it must hold up to some and no further."""
    if most > 0 and holds(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
