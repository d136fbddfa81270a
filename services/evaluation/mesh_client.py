"""A mesh as its REST API shows it: what it serves, and answers with their accounts."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from ..errors import AllroadsError, Internal, InvalidArgument, Unavailable

_TIMEOUT = httpx.Timeout(None, connect=10.0)
_TOO_BUSY = (429, 503)
_NUM_TRIES = 8
_NUM_FIRST_TRIES = 3
"""For who is not there from the start."""
_LONGEST_PAUSE_S = 30.0
_DOES_NOT_FIT = "context_length_exceeded"

Routing = Mapping[str, float | str | Sequence[float]]
"""A policy and its parameters, as requests name them."""


@dataclass(frozen=True, slots=True)
class ServedParameter:
    """A parameter of a policy; None stands for no bound, or no default."""

    name: str
    minimum: float | None
    maximum: float | None
    default: float | None
    """None where requests must name it, or where it has a value for each tier."""
    is_whole: bool


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """A policy that the mesh serves."""

    name: str
    scorer: str | None
    parameters: dict[str, ServedParameter]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the mesh tells of itself."""

    name: str
    tiers: dict[str, str]
    """Model ids by the names of the tiers, the small model's first."""
    num_parameters: tuple[int, ...]
    default_policy: str
    policies: dict[str, ServedPolicy]

    def policy(self, name: str) -> ServedPolicy:
        """A policy by its name.

        Raises:
            InvalidArgument: it is not served.
        """
        if name not in self.policies:
            raise InvalidArgument(
                f"the mesh serves no policy {name!r}; it serves {', '.join(self.policies)}", field="policies"
            )
        return self.policies[name]


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer as it came."""

    body: dict[str, Any] | None
    """None where the problem does not fit the mesh's window."""
    started_s: float
    ended_s: float


class MeshClient:
    """Asks one mesh. A context manager."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(
            base_url=self._url, timeout=_TIMEOUT, limits=limits, transport=transport, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def served(self) -> ServedModel:
        """What the mesh serves.

        Raises:
            AllroadsError: it is out of reach, not ready, or no mesh of ours.
        """
        reply, _ = await self._send("GET", "/v1/models", None, _NUM_FIRST_TRIES)
        try:
            return _served(reply.json()["data"][0])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise Unavailable(f"{self._url} is no allroads mesh, or not ready yet; check --url") from error

    async def chat(
        self, model: str, messages: Sequence[Mapping[str, str]], routing: Mapping[str, Any], **body: Any
    ) -> Reply:
        """One whole answer. A mesh that is busy is asked again, and the time counts from the last try.

        Raises:
            AllroadsError: the mesh refuses the request, or is out of reach.
        """
        body = {"model": model, "messages": [dict(message) for message in messages], "routing": dict(routing), **body}
        reply, seconds = await self._send("POST", "/v1/chat/completions", body)
        ended_s = time.time()
        return Reply(reply.json() if reply.is_success else None, ended_s - seconds, ended_s)

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, num_tries: int = _NUM_TRIES
    ) -> tuple[httpx.Response, float]:
        """The reply, a success or one that says that the prompt does not fit, and the seconds that it took."""
        fault: AllroadsError = Internal("nothing was sent")
        for attempt in range(num_tries):
            pause_s = min(2.0**attempt / 4, _LONGEST_PAUSE_S)
            began_s = time.perf_counter()
            try:
                reply = await self._http.request(method, path, json=body)
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
                fault = Unavailable(f"no answer from {self._url} ({reason}); is the mesh up?")
            else:
                if reply.is_success or _code(reply) == _DOES_NOT_FIT:
                    return reply, time.perf_counter() - began_s
                message = _message(reply)
                if reply.is_client_error and reply.status_code not in _TOO_BUSY:
                    raise InvalidArgument(f"the mesh refuses: {message}", field=str(_error(reply).get("param") or ""))
                fault = Unavailable(f"the mesh at {self._url} failed: {message}")
                pause_s = max(pause_s, _retry_after_s(reply))
            if attempt + 1 < num_tries:
                await asyncio.sleep(pause_s)
        raise fault


def _served(card: dict[str, Any]) -> ServedModel:
    mesh = card["allroads"]
    return ServedModel(
        name=str(card["id"]),
        tiers={tier["name"]: tier["model"] for tier in mesh["tiers"]},
        num_parameters=tuple(int(tier["num_parameters"]) for tier in mesh["tiers"]),
        default_policy=mesh["default_policy"],
        policies={
            policy["name"]: ServedPolicy(
                policy["name"],
                policy["scorer"],
                {parameter["name"]: _parameter(parameter) for parameter in policy["parameters"]},
            )
            for policy in mesh["policies"]
        },
    )


def _parameter(card: dict[str, Any]) -> ServedParameter:
    default = card["default"]
    return ServedParameter(
        name=card["name"],
        minimum=card["minimum"],
        maximum=card["maximum"],
        default=default if isinstance(default, int | float) else None,
        is_whole=card["whole"],
    )


def _error(reply: httpx.Response) -> dict[str, Any]:
    try:
        error = reply.json()["error"]
    except (ValueError, LookupError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _code(reply: httpx.Response) -> str:
    return str(_error(reply).get("code") or "")


def _message(reply: httpx.Response) -> str:
    return str(_error(reply).get("message") or f"status {reply.status_code}")


def _retry_after_s(reply: httpx.Response) -> float:
    try:
        seconds = float(reply.headers.get("Retry-After", 0))
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _LONGEST_PAUSE_S) if math.isfinite(seconds) else 0.0
