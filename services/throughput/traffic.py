"""What comes to a mesh, and what is promised to it."""

from dataclasses import dataclass

from ..errors import InvalidArgument


@dataclass(frozen=True)
class Traffic:
    """What comes in, what is promised, and what a replica is."""

    rate_per_s: float | None = None
    """Requests that come in a second, at random; None where only a replica is asked about."""
    min_tokens_per_s: float | None = None
    """Promised to each request that runs: answer tokens over the whole time it runs, its prompt included."""
    max_first_token_s: float | None = None
    """Promised from arrival to the first token, on average."""
    max_requests: int = 256
    """Requests for which a replica has memory."""
    gpus_per_replica: int = 1
    utilisation: float = 0.8
    """Of what a replica can take, the part that is planned with; the rest is head-room."""

    def __post_init__(self) -> None:
        """Refuse what is no traffic."""
        for name in ("rate_per_s", "min_tokens_per_s", "max_first_token_s"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value <= 1e9:
                raise InvalidArgument(f"{name} must be a number above 0, 1e9 at most, not {value:g}", field=name)
        if not 0.0 < self.utilisation < 1.0:
            raise InvalidArgument(f"utilisation must be between 0 and 1, not {self.utilisation:g}", field="utilisation")
        if not 1 <= self.max_requests <= 4096:
            raise InvalidArgument(f"max_requests must be from 1 to 4096, not {self.max_requests}", field="max_requests")
        if self.gpus_per_replica < 1:
            raise InvalidArgument("gpus_per_replica must be 1 at least", field="gpus_per_replica")
