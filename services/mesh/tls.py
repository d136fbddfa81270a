"""Who may speak to whom: TLS of services that meet elsewhere than on a Unix socket.

Between services both sides show certificates of the mesh's own authority, so that who has none neither calls nor is
called. A Unix socket needs none: its directory lets in one user alone.
"""

import logging

import grpc

from ..config import MeshTlsSettings, TlsSettings
from .certificates import check_certificate, is_loopback, read_pem

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
    pair = (read_pem(tls.key, f"{field}.key"), read_pem(tls.certificate, f"{field}.certificate"))
    return grpc.ssl_server_credentials([pair], read_pem(tls.ca, f"{field}.ca"), require_client_auth=True)


def channel_credentials(address: str, tls: MeshTlsSettings | None) -> grpc.ChannelCredentials | None:
    """What a caller shows to a service of the mesh, and asks of it; None for a channel without TLS.

    Raises:
        StartupError: a file cannot be read.
    """
    if tls is None or address.startswith("unix:"):
        return None
    return grpc.ssl_channel_credentials(
        read_pem(tls.ca, "tls.ca"), read_pem(tls.key, "tls.key"), read_pem(tls.certificate, "tls.certificate")
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
    pair = (read_pem(tls.key, f"{field}.key"), read_pem(tls.certificate, f"{field}.certificate"))
    return grpc.ssl_server_credentials([pair])
