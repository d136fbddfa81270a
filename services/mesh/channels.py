"""Channel and server options of the whole mesh, in one place so that both ends agree."""

import grpc

from ..config import MeshTlsSettings
from .tls import channel_credentials, name_option

KEEPALIVE_TIME_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000
MAX_RECONNECT_BACKOFF_MS = 300
_CONNECT_TIMEOUT_MS = 1000
"""Long enough for a handshake on a busy machine, short enough to leave an address behind at which nobody is."""
_MIN_RESOLUTION_INTERVAL_MS = 500
"""A container that was replaced has a new address under its old name; gRPC's own interval is 30 s."""

Options = list[tuple[str, int | str]]


def channel_options(max_message_bytes: int) -> Options:
    """Options of every client channel."""
    return [
        *_message_sizes(max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # Which counts for nothing unless any ping's is as short; its own default is a minute.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Of this name, but in gRPC's core it is the time for one attempt.
        ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_BACKOFF_MS),
        ("grpc.dns_min_time_between_resolutions_ms", _MIN_RESOLUTION_INTERVAL_MS),
        # Two services of one mesh must not share a connection's fate or backoff through a global pool.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(max_message_bytes: int) -> Options:
    """Options of every server."""
    return [
        *_message_sizes(max_message_bytes),
        # A second server on the same port must fail, not share it.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.server.max_pending_requests", 10_000),
        ("grpc.server.max_pending_requests_hard_limit", 20_000),
    ]


def open_channel(address: str, max_message_bytes: int, tls: MeshTlsSettings | None = None) -> grpc.aio.Channel:
    """A channel to a service of the mesh; with TLS it knows itself and the service by the mesh's authority.

    Raises:
        StartupError: a file of TLS cannot be read.
    """
    options = channel_options(max_message_bytes)
    credentials = channel_credentials(address, tls)
    if tls is None or credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=[*options, *name_option(tls.server_name)])


def _message_sizes(max_message_bytes: int) -> Options:
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
    ]
