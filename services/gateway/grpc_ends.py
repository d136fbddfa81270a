"""How calls of the gRPC API fail: a status, and what a status cannot carry in the trailing metadata."""

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from ..errors import AllroadsError, Internal
from ..mesh.status import grpc_status

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


@asynccontextmanager
async def failing_by_status(context: Context) -> AsyncIterator[None]:
    """End the call with a status where its work fails."""
    try:
        yield
    except AllroadsError as error:
        await _abort(context, error)
    except grpc.aio.AbortError:
        raise
    except Exception:  # the client must learn that the fault is ours, and nothing of what it was
        logger.exception("a call failed")
        await _abort(context, Internal("internal error; the gateway's log says more"))


async def _abort(context: Context, error: AllroadsError) -> None:
    """End the call with an error; what a status cannot carry goes into the trailing metadata."""
    trailing = [("code", error.code.value)]
    if error.field:
        trailing.append(("field", error.field))
    if error.retry_after_s is not None:
        trailing.append(("retry-after", str(math.ceil(error.retry_after_s))))
    # The library takes a tuple and nothing else.
    await context.abort(grpc_status(error), error.message, tuple(trailing))
