"""The channel to a gateway: its options, TLS, and the key that goes with each call."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from .. import __version__
from ..errors import InvalidArgument

KEEPALIVE_TIME_MS = 30_000
"""Longer than the gateway's smallest interval between pings, so that a quiet stream is never ended for them."""
KEEPALIVE_TIMEOUT_MS = 10_000
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""As the gateway's `max_message_bytes` is by default."""

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Tls:
    """An encrypted connection. All files are PEM."""

    ca_certificates: Path | str | None = None
    """Whose certificates are trusted; None for those that gRPC brings."""
    certificate: Path | str | None = None
    """The client's own, with those between it and its root, where the gateway asks for one."""
    key: Path | str | None = None
    """That of `certificate`."""
    server_name: str = ""
    """The name in the gateway's certificate, where it is not the one in the address."""


def channel_options(max_message_bytes: int, tls: Tls | None) -> list[tuple[str, int | str]]:
    """Options of a channel."""
    options: list[tuple[str, int | str]] = [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.primary_user_agent", f"allroads-client/{__version__}"),
    ]
    if tls is not None and tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def credentials_of(tls: Tls) -> grpc.ChannelCredentials:
    """Credentials from files.

    Raises:
        InvalidArgument: a file cannot be read, or certificate and key do not come together; names the field.
    """
    if (tls.certificate is None) != (tls.key is None):
        missing = "tls.key" if tls.key is None else "tls.certificate"
        raise InvalidArgument("a client certificate needs its key, and a key its certificate", field=missing)
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca_certificates, "tls.ca_certificates"),
        private_key=_read(tls.key, "tls.key"),
        certificate_chain=_read(tls.certificate, "tls.certificate"),
    )


def metadata_of(api_key: str) -> Metadata:
    """What goes with each call.

    Raises:
        InvalidArgument: the key holds what metadata cannot.
    """
    if not api_key:
        return ()
    if not (api_key.isascii() and api_key.isprintable()) or " " in api_key:
        raise InvalidArgument("an API key has printable ASCII characters and no space", field="api_key")
    return (("authorization", f"Bearer {api_key}"),)


def _read(path: Path | str | None, field: str) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}", field=field) from error
