"""A typed client of the gateway's gRPC API, for programs in Python: `Client`, and `AsyncClient` for asyncio.

It knows the messages and the errors and nothing else of allroads: no torch, no model, no service. Whatever a call
fails with is an `AllroadsError`. See `docs/grpc.md`.
"""

from ..errors import AllroadsError
from .answers import Answer, FinishReason, Piece, TokenLogprobs, Usage
from .async_client import AsyncClient
from .async_stream import AsyncStream
from .connection import Tls
from .deadline import Deadline
from .models import Model, Parameter, Policy, Tier
from .requests import Params, Request, make_request
from .sync_client import Client
from .sync_stream import Stream
from .tries import Retry

__all__ = [
    "AllroadsError",
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "Deadline",
    "FinishReason",
    "Model",
    "Parameter",
    "Params",
    "Piece",
    "Policy",
    "Request",
    "Retry",
    "Stream",
    "Tier",
    "Tls",
    "TokenLogprobs",
    "Usage",
    "make_request",
]
