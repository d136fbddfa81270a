"""A gateway's gRPC face whose calls end as a script says. For tests of what a client does with that."""

from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from allroads.mesh.wire import common_pb2, gateway_pb2, gateway_pb2_grpc


@dataclass(frozen=True)
class Act:
    """What one call does: as many pieces, then the end or a failure."""

    num_pieces: int = 0
    status: grpc.StatusCode | None = None
    details: str = "scripted"
    trailing: tuple[tuple[str, str], ...] = ()


FINE = Act(2)


@dataclass
class ScriptedGateway(gateway_pb2_grpc.GatewayServiceServicer):
    """Plays its acts in turn, a call each, and the last one for ever."""

    acts: Sequence[Act]
    metadata: list[dict[str, str]] = field(default_factory=list)
    """What came with each call."""
    seconds_left: list[float | None] = field(default_factory=list)
    """The deadline that came with each call."""

    async def Generate(self, request: gateway_pb2.GenerateTextRequest, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        act = self._begin(context)
        for response in _responses(act):
            await context.write(response)
        await _end(act, context)

    async def GenerateBatch(self, request: gateway_pb2.GenerateBatchRequest, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        act = self._begin(context)
        for response in _responses(act):
            await context.write(gateway_pb2.GenerateBatchResponse(index=0, response=response))
        await _end(act, context)

    async def Tokenize(self, request: gateway_pb2.TokenizeRequest, context: Any) -> gateway_pb2.TokenizeResponse:  # noqa: N802
        await _end(self._begin(context), context)
        return gateway_pb2.TokenizeResponse(token_ids=[5, 6])

    async def Detokenize(self, request: gateway_pb2.DetokenizeRequest, context: Any) -> gateway_pb2.DetokenizeResponse:  # noqa: N802
        raise NotImplementedError

    async def ListModels(self, request: gateway_pb2.ListModelsRequest, context: Any) -> gateway_pb2.ListModelsResponse:  # noqa: N802
        await _end(self._begin(context), context)
        return gateway_pb2.ListModelsResponse(models=[gateway_pb2.ModelCard(id="scripted")])

    def _begin(self, context: Any) -> Act:
        self.metadata.append({str(name): str(value) for name, value in context.invocation_metadata()})
        self.seconds_left.append(context.time_remaining())
        return self.acts[min(len(self.metadata), len(self.acts)) - 1]


def _responses(act: Act) -> Iterator[gateway_pb2.GenerateTextResponse]:
    for index in range(act.num_pieces):
        yield gateway_pb2.GenerateTextResponse(text_delta=f"{index} ", token_ids=[index], tiers=[index % 2])
    if act.status is None and act.num_pieces:
        usage = common_pb2.Usage(num_prompt_tokens=1, num_committed_tokens=[1, 1])
        yield gateway_pb2.GenerateTextResponse(finish_reason=common_pb2.FINISH_REASON_STOP, usage=usage)


async def _end(act: Act, context: Any) -> None:
    if act.status is not None:
        await context.abort(act.status, act.details, act.trailing)


@asynccontextmanager
async def scripted_gateway(*acts: Act, credentials: grpc.ServerCredentials | None = None, port: int = 0) -> Any:
    """Serve acts on a port of loopback; gives the double and the address."""
    double = ScriptedGateway(acts)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(double, server)
    address = f"127.0.0.1:{port}"
    bound = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    await server.start()
    try:
        yield double, f"127.0.0.1:{bound}"
    finally:
        await server.stop(None)
