"""Gives requests their places before the application sees them, so that a refusal costs next to nothing.

Of many that come at once, those for which there is no room are then refused in the moment in which they are read,
and do not share the processor with those that are let in.
"""

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import AllroadsError
from ..admission.door import Places
from ..gateway import Gateway
from .errors import error_response

GENERATING = ("/v1/chat/completions", "/v1/completions")
"""Paths of requests for answers."""


def client_of(headers: Headers, gateway: Gateway) -> str:
    """The name of whom a request is from."""
    return gateway.door.keys.name(headers.get("authorization"), headers.get("x-api-key"))


def places_of(request: Request, gateway: Gateway, num_places: int) -> Places:
    """A request's places, of which it may have been given the first at the door.

    Raises:
        Refusal, Unavailable: there is no room for all of them.
    """
    client = client_of(request.headers, gateway)
    places: Places | None = request.state.places
    if places is None:
        return gateway.admit(client, num_places)
    gateway.widen(places, client, num_places)
    return places


class Doorkeeper:
    """Stands before an application.

    A request that came whole gets its first place at the door, if it has none from the doorstep yet. One whose
    body is still on its way may take its time, and must not keep a place from others meanwhile: it is let in when
    it has been read, by `places_of`.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app, self._gateway = app, gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with an error where there is no room, else let the application answer."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in GENERATING:
            state = scope.setdefault("state", {})
            if "places" not in state:
                try:
                    receive = await self._admit(scope, receive)
                except AllroadsError as error:
                    await error_response(error)(scope, receive, send)
                    return
            with state["places"] or Places():
                await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive) -> Receive:
        """Put what places there are into the request's state; from where to receive what comes of it."""
        client = client_of(Headers(scope=scope), self._gateway)
        self._gateway.check_room(client)
        first = await receive()
        is_whole = first["type"] == "http.request" and not first.get("more_body", False)
        scope["state"]["places"] = self._gateway.admit(client, 1) if is_whole else None
        return _replayed(first, receive)


def _replayed(first: Message, receive: Receive) -> Receive:
    """What was received already, then the rest."""
    taken = [first]

    async def replay() -> Message:
        return taken.pop() if taken else await receive()

    return replay
