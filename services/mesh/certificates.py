"""Certificates and addresses as they are before gRPC is there: what can be wrong with them is said at start."""

import ipaddress
import ssl
from pathlib import Path
from typing import Any

from ..config import MeshTlsSettings, TlsSettings
from ..errors import StartupError


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
        read_pem(getattr(tls, what), f"{field}.{what}")
    if ca is not None:
        read_pem(ca, f"{field}.ca")
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


def read_pem(path: Path, field: str) -> bytes:
    """The bytes of a file of certificates or of a key.

    Raises:
        StartupError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise StartupError(f"{field}: cannot read {path}: {error.strerror}", field=field) from None
