"""What can be known to be wrong before anything starts, refused within a second."""

from itertools import combinations

from ..config import MeshSettings
from ..errors import StartupError, TokenizerMismatch
from ..gateway.security.key_file import read_keys
from ..gpus import AskGpus, ask_gpus
from ..memory import resolve_memory
from ..mesh.certificates import check_certificate
from .gpu_checks import check_gpus
from .model_files import check_model, check_router, check_scorer
from .ports import claim_port, split_address


def check_mesh(settings: MeshSettings, ask: AskGpus = ask_gpus) -> MeshSettings:
    """Check files, vocabularies, GPUs, memory and ports; the same settings with numbers for "auto" and for port 0.

    `ask` tells of GPUs, where the mesh uses any.

    Raises:
        StartupError: what is wrong, under which key, and what to do.
    """
    _check_secrets(settings)
    _check_models(settings)
    check_router(settings.router.path, "router.path")
    for name, directory in settings.router.scorers.items():
        check_scorer(directory, f"router.scorers.{name}")
    gpus = check_gpus(settings, ask)
    settings = resolve_memory(settings, lambda ordinals: gpus, before_start=True)
    _check_internal_addresses(settings)
    return _with_ports(settings)


def _check_secrets(settings: MeshSettings) -> None:
    if settings.gateway.keys_path is not None:
        read_keys(settings.gateway.keys_path)
    if settings.gateway.tls is not None:
        check_certificate(settings.gateway.tls, "gateway.tls")
    if settings.tls is not None:
        check_certificate(settings.tls, "tls", ca=settings.tls.ca)


def _check_models(settings: MeshSettings) -> None:
    small = check_model(settings.slm.path, "slm.path")
    for name, tier in settings.tiers.items():
        if name == "slm":
            continue
        key = f"{settings.key_of(name)}.path"
        difference = small.first_difference(check_model(tier.path, key))
        if difference is not None:
            raise TokenizerMismatch(
                f"slm.path and {key} do not share a tokenizer: {difference} ({settings.slm.path} and "
                f"{tier.path}); choose models of one family",
                field=key,
            )


def _check_internal_addresses(settings: MeshSettings) -> None:
    addresses = {f"{settings.key_of(name)}.address": part.address for name, part in settings.internal.items()}
    for (key, address), (other_key, other) in combinations(addresses.items(), 2):
        if address and address == other:
            raise StartupError(f"{key} and {other_key} are both {address}; give each its own", field=other_key)
    for key, address in addresses.items():
        if not address or address.startswith("unix:"):
            continue
        host, port = split_address(address)
        if port == 0:
            raise StartupError(f"{key}: the other services must know the port, so it cannot be 0", field=key)
        claim_port(host, port, key, key)


def _with_ports(settings: MeshSettings) -> MeshSettings:
    gateway = settings.gateway
    if gateway.port and gateway.port == gateway.grpc_port:
        raise StartupError(
            f"gateway.port and gateway.grpc_port are both {gateway.port}; choose another with --grpc-port",
            field="gateway.grpc_port",
        )
    ports = {
        "port": claim_port(gateway.host, gateway.port, "gateway.port", "--port"),
        "grpc_port": claim_port(gateway.host, gateway.grpc_port, "gateway.grpc_port", "--grpc-port"),
    }
    return settings.model_copy(update={"gateway": gateway.model_copy(update=ports)})
