"""Who may speak to whom: TLS of services that meet elsewhere than on a Unix socket.

Between services both sides show certificates of the mesh's own authority, so that who has none neither calls nor is
called. A Unix socket needs none: its directory lets in one user alone.
"""

import ipaddress
import logging
import ssl
from pathlib import Path
from typing import Any

import grpc

from ..config import MeshTlsSettings, TlsSettings
from ..errors import StartupError

logger = logging.getLogger(__name__)

_TARGET_NAME = "grpc.ssl_target_name_override"


def server_credentials(address: str, tls: MeshTlsSettings | None, field: str = "tls") -> grpc.ServerCredentials | None:
    """What a service of the mesh shows at its address, and asks of its callers; None for a server without TLS.

    Without TLS an address that others can reach is warned of.

    Raises:
        StartupError: a file cannot be read, or they do not belong together.
    """
    if address.startswith("unix:"):
        return None
    if tls is None:
        if not is_loopback(address.rpartition(":")[0]):
            logger.warning(
                "%s may be reached by others, who can then use the models and read what passes; set `tls`", address
            )
        return None
    check_certificate(tls, field, ca=tls.ca)
    pair = (_read(tls.key, f"{field}.key"), _read(tls.certificate, f"{field}.certificate"))
    return grpc.ssl_server_credentials([pair], _read(tls.ca, f"{field}.ca"), require_client_auth=True)


def channel_credentials(address: str, tls: MeshTlsSettings | None) -> grpc.ChannelCredentials | None:
    """What a caller shows to a service of the mesh, and asks of it; None for a channel without TLS.

    Raises:
        StartupError: a file cannot be read.
    """
    if tls is None or address.startswith("unix:"):
        return None
    return grpc.ssl_channel_credentials(
        _read(tls.ca, "tls.ca"), _read(tls.key, "tls.key"), _read(tls.certificate, "tls.certificate")
    )


def name_option(server_name: str) -> list[tuple[str, str]]:
    """The option of a channel whose server has another name than its address; none for ""."""
    return [(_TARGET_NAME, server_name)] if server_name else []


def outside_credentials(tls: TlsSettings, field: str) -> grpc.ServerCredentials:
    """What a server shows to clients who show nothing themselves.

    Raises:
        StartupError: a file cannot be read, or they do not belong together.
    """
    check_certificate(tls, field)
    pair = (_read(tls.key, f"{field}.key"), _read(tls.certificate, f"{field}.certificate"))
    return grpc.ssl_server_credentials([pair])


def outside_context(tls: TlsSettings) -> ssl.SSLContext:
    """The same for a server of another kind."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Else it would ask a terminal for the password of a key that has one.
    context.load_cert_chain(tls.certificate, tls.key, password="")
    return context


def check_certificate(tls: TlsSettings, field: str, ca: Path | None = None) -> tuple[str, ...]:
    """Meet ourselves as a caller would, and say by which names the certificate knows us.

    Args:
        tls: certificate and key.
        field: the settings' key, for messages.
        ca: authorities that must have signed it, for callers and called; without them it stands for itself.

    Raises:
        StartupError: files cannot be read or do not belong together, or no caller would trust them now.
    """
    for what in ("certificate", "key"):
        _read(getattr(tls, what), f"{field}.{what}")
    if ca is not None:
        _read(ca, f"{field}.ca")
    try:
        server = outside_context(tls)
        client = ssl.create_default_context(cafile=ca or tls.certificate)
        # Callers have many names for us; those of the certificate are returned.
        client.check_hostname = False
        if ca is None:
            client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        else:
            client.load_cert_chain(tls.certificate, tls.key, password="")
            server.load_verify_locations(ca)
            server.verify_mode = ssl.CERT_REQUIRED
        return _meet(client, server)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "verify_message", "") or getattr(error, "reason", None) or error
        raise StartupError(
            f"{field}: {tls.certificate} and {tls.key} cannot be used: {reason}; they must be a valid certificate and "
            "its private key, without a password, in PEM" + (f", signed by {ca}" if ca else ""),
            field=field,
        ) from None


def pinned(tls: TlsSettings, field: str) -> MeshTlsSettings:
    """How a server with such a certificate is called by whoever knows the very certificate.

    Raises:
        StartupError: as `check_certificate`, or the certificate holds no name.
    """
    names = check_certificate(tls, field)
    if not names:
        raise StartupError(f"{field}: {tls.certificate} holds no name of its server (subjectAltName)", field=field)
    # Any name that a wildcard stands for will do.
    return MeshTlsSettings(
        certificate=tls.certificate, key=tls.key, ca=tls.certificate, server_name=names[0].replace("*", "any")
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server there. A name other than `localhost` is taken for an outside one."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host == "localhost"


def _meet(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[str, ...]:
    """A handshake in memory; the names in the server's certificate."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(to_client, to_server, server_side=False)
    called = server.wrap_bio(to_server, to_client, server_side=True)
    # TLS 1.3 takes two turns of each. The caller's certificate is looked at in the last.
    for side in (caller, called, caller, called):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    certificate: dict[str, Any] = caller.getpeercert() or {}
    return tuple(str(name) for _, name in certificate.get("subjectAltName", ()))


def _read(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StartupError(f"{field}: cannot read {path}: {error.strerror}", field=field) from None
