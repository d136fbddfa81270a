"""Are the ports of a mesh free? Asked before anything starts."""

import errno
import socket

from ..errors import StartupError


def claim_port(host: str, port: int, key: str, option: str) -> int:
    """The port if it is free, a free one for port 0. `key` and `option` say how to choose another.

    Raises:
        StartupError: in use, not allowed, or the host is not one of this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # What servers set: an old connection in TIME_WAIT is no hindrance.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        raise StartupError(f"{key}: {_reason(host, port, option, error)}", field=key) from error


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, with or without brackets around the host."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """`host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_host(host: str) -> str:
    """The host under which this machine reaches a server that listens on `host`."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (compared, not bound)


def _reason(host: str, port: int, option: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; stop what listens there, or choose another with {option}"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not allowed; choose one from 1024 up with {option}"
    return f"cannot listen on {host} port {port} ({error.strerror}); choose an address of this machine"
