"""Whether a request is routed: always, never, in a share of the requests, or only on paper."""

import hashlib

from ..config import MODES, HomeSettings, Mode
from ..errors import InvalidArgument
from ..mesh.wire import model_pb2
from ..policies.policy import Policy


def mode_of(wire: model_pb2.OpenRequest, settings: HomeSettings) -> Mode:
    """What becomes of a request: "on", "off" or "audit". A canary's requests are on or off, all of a key alike.

    Raises:
        InvalidArgument: there is no such mode.
    """
    asked = wire.routing.mode or settings.mode
    for mode in MODES:
        if asked == mode:
            break
    else:
        raise InvalidArgument(f"there is no mode {asked!r}; there are {', '.join(MODES)}", field="routing.mode")
    if mode != "canary":
        return mode
    return "on" if _place(wire.routing.key or wire.request_id) < settings.canary_share else "off"


def require_auditable(policy: Policy) -> None:
    """An audit needs decisions on single proposals, and nothing else of the policy.

    Raises:
        InvalidArgument: the policy makes none.
    """
    if type(policy).route is Policy.route or policy.acts_at_tiers:
        raise InvalidArgument(
            f"the policy {policy.name} cannot be audited: it does not decide on single proposals of the small model",
            field="routing.mode",
        )


def _place(key: str) -> float:
    """A number in [0, 1) fixed by the key, the same in every process."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6]) / 2**48
