"""The client for programs without asyncio. It may be used from several threads at once."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc

from ..errors import AllroadsError
from ..mesh.wire import gateway_pb2 as pb
from ..mesh.wire import gateway_pb2_grpc
from .answers import Answer
from .batch import Outcomes
from .connection import MAX_MESSAGE_BYTES, Tls, channel_options, credentials_of, metadata_of
from .deadline import Deadline, deadline_of
from .faults import error_of_call
from .models import Model, model_of
from .requests import Message, Params, Request, make_detokenize_request, make_request, make_tokenize_request
from .sync_stream import Messages, Stream
from .tries import Retry, Tries

_T = TypeVar("_T")


class Client:
    """Asks one gateway. A context manager; `close` ends its connection and every open call."""

    def __init__(
        self,
        address: str = "127.0.0.1:8001",
        *,
        api_key: str = "",
        tls: Tls | None = None,
        retry: Retry | None = None,
        timeout_s: float = 600.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """Nothing is connected before the first call.

        Args:
            address: the gateway's gRPC address, as gRPC writes addresses: `host:port`, `dns:///name:port`.
            api_key: sent with each call, where the gateway asks for one.
            tls: None for a connection that is not encrypted.
            retry: when failed calls are made again; None for the defaults.
            timeout_s: for a call that names no other, all its tries together.
            max_message_bytes: no message is larger, either way.

        Raises:
            InvalidArgument: files of `tls` cannot be read, or the key cannot be sent.
        """
        self._metadata = metadata_of(api_key)
        self._retry, self._timeout_s = retry or Retry(), timeout_s
        options = channel_options(max_message_bytes, tls)
        self._channel = (
            grpc.insecure_channel(address, options)
            if tls is None
            else grpc.secure_channel(address, credentials_of(tls), options)
        )
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, and with it every open call. May be called again."""
        self._channel.close()

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        deadline: Deadline | float | None = None,
        **params: Unpack[Params],
    ) -> Answer:
        """A whole answer to a text, a conversation, or tokens.

        `deadline` is when all tries are over, in seconds from now or as one that several calls share.

        Raises:
            AllroadsError: what the gateway says, or that it is out of reach or too slow.
        """
        with self.stream(prompt, messages=messages, token_ids=token_ids, deadline=deadline, **params) as stream:
            for _ in stream:
                pass
            return stream.answer

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        deadline: Deadline | float | None = None,
        **params: Unpack[Params],
    ) -> "Stream":
        """The same as it is written. Nothing is sent before the first piece is asked for.

        Raises:
            InvalidArgument: the request cannot be sent at all.
        """
        request = make_request(prompt, messages=messages, token_ids=token_ids, **params)
        tries = self._tries(deadline)
        return Stream(Messages(lambda left: self._stub.Generate(request, timeout=left, metadata=self._metadata), tries))

    def generate_batch(
        self, requests: Sequence[Request], *, deadline: Deadline | float | None = None
    ) -> list[Answer | AllroadsError]:
        """Answers to many requests in one call, in their order; in place of one that failed, its error.

        Raises:
            AllroadsError: the whole call failed: there is no room for all of them, or the gateway is out of reach.
        """
        outcomes = Outcomes(len(requests))
        batch = pb.GenerateBatchRequest(requests=requests)
        calls = Messages(
            lambda left: self._stub.GenerateBatch(batch, timeout=left, metadata=self._metadata), self._tries(deadline)
        )
        try:
            for response in calls:
                outcomes.add(response)
        finally:
            calls.close()
        return outcomes.all()

    def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        deadline: Deadline | float | None = None,
    ) -> list[int]:
        """Token ids of a text, or of a conversation as the models would read it.

        Raises:
            AllroadsError: as `generate`.
        """
        request = make_tokenize_request(prompt, messages)
        response = self._call(
            lambda left: self._stub.Tokenize(request, timeout=left, metadata=self._metadata), deadline
        )
        return list(response.token_ids)

    def detokenize(self, token_ids: Sequence[int], *, deadline: Deadline | float | None = None) -> str:
        """Text of tokens, special ones left out.

        Raises:
            AllroadsError: as `generate`.
        """
        request = make_detokenize_request(token_ids)
        return self._call(
            lambda left: self._stub.Detokenize(request, timeout=left, metadata=self._metadata), deadline
        ).text

    def list_models(self, *, deadline: Deadline | float | None = None) -> list[Model]:
        """What is served.

        Raises:
            AllroadsError: as `generate`.
        """
        request = pb.ListModelsRequest()
        response = self._call(
            lambda left: self._stub.ListModels(request, timeout=left, metadata=self._metadata), deadline
        )
        return [model_of(card) for card in response.models]

    def _tries(self, deadline: Deadline | float | None) -> Tries:
        return Tries(self._retry, deadline_of(deadline, self._timeout_s))

    def _call(self, send: Callable[[float], _T], deadline: Deadline | float | None) -> _T:
        tries = self._tries(deadline)
        while True:
            try:
                return send(tries.time_left_s())
            except grpc.RpcError as error:
                time.sleep(tries.pause_s(error_of_call(error)))
