"""The frame of every gRPC service: address, health, reflection, graceful stop."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from ..errors import StartupError
from .channels import Options, server_options

_POLL_S = 0.02


class ServiceServer:
    """A gRPC server with health and reflection. Not ready until `set_ready(True)`."""

    def __init__(
        self,
        service_names: Sequence[str],
        *,
        max_message_bytes: int,
        options: Options | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """`options` go over those that all servers of a mesh have."""
        own = dict(server_options(max_message_bytes)) | dict(options or [])
        self.grpc = grpc.aio.server(options=list(own.items()), interceptors=list(interceptors))
        self.service_names = tuple(service_names)
        self.bound_port = 0
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        reflection.enable_server_reflection(
            (*self.service_names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME),
            self.grpc,
        )

    async def start(self, address: str, credentials: grpc.ServerCredentials | None = None) -> None:
        """Bind and listen, with TLS where there are credentials; alive at once, ready later.

        Raises:
            StartupError: the address is in use or cannot be bound.
        """
        _check_free(address)
        try:
            if credentials is None:
                self.bound_port = self.grpc.add_insecure_port(address)
            else:
                self.bound_port = self.grpc.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise StartupError(f"cannot listen on {address}: in use or not allowed; choose another address") from error
        await self.grpc.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(False)

    async def set_ready(self, ready: bool) -> None:
        """Tell health checks by service name whether requests may come."""
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self.service_names:
            await self._health.set(name, status)

    async def stop(self, grace_s: float, *, is_busy: Callable[[], bool] | None = None) -> None:
        """Refuse new calls, give what is open its grace, then end it.

        A service whose streams never end by themselves says by `is_busy` whether work is still open on
        them, and must refuse new work by itself.
        """
        await self._health.enter_graceful_shutdown()
        if is_busy is None:
            await self.grpc.stop(grace_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                # What is busy lives in other threads, so nobody could set an event here.
                while is_busy():  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
        await self.grpc.stop(None)


async def first_of(event: asyncio.Event, *tasks: "asyncio.Task[None]") -> None:
    """Wait for the event or for the first task to end; a task that failed raises here."""
    waiter = asyncio.ensure_future(event.wait())
    try:
        done, _ = await asyncio.wait({waiter, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        waiter.cancel()


def _check_free(address: str) -> None:
    """A Unix socket that somebody still answers on is in use; a stale one is removed."""
    if not address.startswith("unix:"):
        return
    path = Path(address.removeprefix("unix:"))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
        else:
            raise StartupError(f"cannot listen on {address}: another process does; stop it or choose another address")
