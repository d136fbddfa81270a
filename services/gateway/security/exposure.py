"""What the gateway shows to strangers, and one line where it stands open, which names what is missing."""

import logging

import grpc

from ...config import GatewaySettings
from ...mesh.certificates import is_loopback
from ...mesh.tls import outside_credentials

logger = logging.getLogger(__name__)


def credentials_of(settings: GatewaySettings) -> grpc.ServerCredentials | None:
    """What the gRPC server shows; None without TLS. An address that others can reach is warned of if it is open.

    Raises:
        StartupError: the certificate cannot be used.
    """
    missing = []
    if settings.keys_path is None:
        missing.append("without gateway.keys_path everybody may ask")
    if settings.tls is None:
        missing.append("without gateway.tls prompts, answers and keys travel in the clear")
    if missing and not is_loopback(settings.host):
        logger.warning("%s may be reached by others: %s", settings.host, ", and ".join(missing))
    return None if settings.tls is None else outside_credentials(settings.tls, "gateway.tls")
