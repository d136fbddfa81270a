"""One typed configuration tree for a whole mesh.

Read from a YAML file; every value can be overridden by an environment variable whose name is the path
to it: `ALLROADS_GATEWAY__PORT=8080`. Without a file the embedded pair is served.
"""

import os
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from .errors import StartupError

ServiceName = Literal["slm", "llm", "router", "gateway"]
SERVICE_NAMES: tuple[ServiceName, ...] = ("llm", "router", "slm", "gateway")
"""In the order in which they start: whoever is called first."""


def embedded_path(name: str) -> Path:
    """Directory of an embedded model: `slm`, `llm` or `router`."""
    return Path(str(resources.files(f"{__package__}.models") / name))


def _check_address(address: str) -> str:
    if not address:
        return address
    if address.startswith("unix:"):
        if len(address.removeprefix("unix:").encode()) > 100:
            raise ValueError("the path of a Unix socket may have 100 bytes at most; use a shorter directory")
        return address
    host, separator, port = address.rpartition(":")
    if not (separator and host and port.isdigit() and int(port) < 65536):
        raise ValueError('must be "unix:/path/to/socket" or "host:port"')
    return address


def _check_number_or_auto(value: object, check: ValidatorFunctionWrapHandler) -> object:
    """One message under the key itself, in place of one for each half of the union."""
    try:
        return check(value)
    except ValidationError as error:
        raise ValueError('must be a whole number greater than 0, or "auto"') from error


Address = Annotated[str, AfterValidator(_check_address)]
Dtype = Literal["float32", "bfloat16", "float16"]
Positive = Annotated[int, Field(gt=0)]
PositiveOrAuto = Annotated[Positive | Literal["auto"], WrapValidator(_check_number_or_auto)]
Port = Annotated[int, Field(ge=0, le=65535)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelSettings(_Frozen):
    """One model service: which model, where it runs, how much it holds."""

    path: Path
    """Directory in the Hugging Face layout."""
    address: Address = ""
    """Where the service listens; empty lets `allroads up` choose a Unix socket."""
    device: str = "cpu"
    dtype: Dtype = "float32"
    num_threads: Positive = 1
    """torch threads; one is steadier than two where services share cores."""
    num_kv_tokens: PositiveOrAuto = 32_768
    """Tokens that the KV pool holds. "auto": as many as fit, the same on all tiers of a device that say so; see
    `MeshSettings.memory_bytes`."""
    block_size_tokens: Positive = 16
    max_step_tokens: Positive = 128
    """Token positions computed in one step at most; longer prompts are prefilled in chunks. Others wait for a chunk:
    with 512 a long prompt holds them up twice as long (`bench.stall`). An accelerator wants more."""
    max_running: Positive = 256
    """Sequences that may hold KV at once."""
    max_waiting: Positive = 1024
    """Sequences that may wait for KV; one more is refused."""
    shares_prefixes: bool = True
    """Whether sequences that begin alike share the KV of what they have in common."""

    @property
    def allotted_kv_tokens(self) -> int:
        """`num_kv_tokens` as a number.

        Raises:
            StartupError: it is still "auto"; `memory.resolve_memory` makes a number of that.
        """
        if self.num_kv_tokens == "auto":
            raise StartupError('num_kv_tokens is "auto" without a mesh to share memory in', field="num_kv_tokens")
        return self.num_kv_tokens


CatchUp = Literal["off", "idle", "eager"]
"""When a tier computes tokens ahead: never, in steps that nobody else needs, or also where a step has room."""


class TierSettings(ModelSettings):
    """A larger model's service, which homes visit."""

    catch_up: CatchUp = "idle"
    """Whether a request's prompt is computed before it is first handed off."""
    opinions: bool = True
    """Whether it says of each token that the small model wrote alone if it would have written the same."""
    opinions_path: Path | None = None
    """File to which opinions are appended as labels for training, one JSON object a hand-off; holds users' tokens."""


class HomeSettings(ModelSettings):
    """The small model's service, which owns the requests."""

    policy: str = "r2r"
    """For requests that name none."""
    max_unjudged: Annotated[int, Field(ge=0, le=64)] = 6
    """Proposals of a request that the small model may feed on while the router has yet to judge them."""
    max_ahead: Annotated[int, Field(ge=0, le=64)] = 8
    """Proposals that it may make while the large model works on a hand-off; they stay if its token is the proposal
    that was handed off. 0 waits."""
    peer_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    """How long a request waits for a larger tier or the router that is out of reach."""
    on_peer_loss: Literal["fail", "degrade"] = "degrade"
    """After that: fail the request, or finish it with the small model alone, marked in the reply."""


class RouterSettings(_Frozen):
    """The router service and its scorer."""

    path: Path
    """Directory with `router.safetensors` and `manifest.json`, or the `.pt` file of a published R2R router."""
    address: Address = ""
    device: str = "cpu"
    num_threads: Positive = 1


class GatewaySettings(_Frozen):
    """Where clients come in, and how many."""

    host: str = "127.0.0.1"
    port: Port = 8000
    grpc_port: Port = 8001
    max_running: Positive = 64
    """Requests in the mesh at once; more wait."""
    max_waiting: Positive = 256
    """Requests that may wait; one more is refused with a time to come back."""
    queue_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    reader_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """A client that takes no byte for so long is cut off."""
    home_timeout_s: Annotated[float, Field(gt=0)] = 20.0
    """How long a request waits for the small model's service to come back."""
    max_body_bytes: Positive = 8 * 1024 * 1024
    piece_interval_s: Annotated[float, Field(ge=0)] = 0.004
    """Tokens that follow each other faster travel to the client together; slower steps are not held up."""


class MeshSettings(BaseSettings):
    """A whole mesh: four services that serve one model."""

    model_config = SettingsConfigDict(
        env_prefix="ALLROADS_", env_nested_delimiter="__", frozen=True, extra="forbid", protected_namespaces=()
    )

    model_name: Annotated[str, Field(min_length=1, max_length=200)] = "allroads"
    """The name that clients ask for."""
    slm: HomeSettings = Field(default_factory=lambda: HomeSettings(path=embedded_path("slm")))
    llm: TierSettings = Field(default_factory=lambda: TierSettings(path=embedded_path("llm")))
    router: RouterSettings = Field(default_factory=lambda: RouterSettings(path=embedded_path("router")))
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    memory_bytes: dict[str, Positive] = Field(default_factory=dict)
    """Bytes of each device, such as `cuda:0`, that weights and KV of all models on it may take together; steps need
    some besides. Without a limit where none is named. Not for a mesh on several hosts: their devices share names."""
    max_message_bytes: Positive = 64 * 1024 * 1024
    """Size of a gRPC message, the same at both ends of every stream."""
    pin_cores: bool = True
    """Whether `allroads up` gives each model service processor cores of its own, as far as they go. Turn it off where
    several meshes share a machine."""
    grace_s: Annotated[float, Field(ge=0)] = 5.0
    """How long open requests may go on after a service was told to stop."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file."""
        return env_settings, init_settings

    def with_addresses(self, directory: Path) -> Self:
        """The same mesh with a Unix socket in `directory` for each internal service that has no address."""
        return self.model_copy(
            update={
                name: part.model_copy(update={"address": part.address or f"unix:{directory}/{name}.sock"})
                for name, part in (("slm", self.slm), ("llm", self.llm), ("router", self.router))
            }
        )


def load_settings(path: Path | None = None, overrides: dict[str, Any] | None = None) -> MeshSettings:
    """Read the settings of a mesh.

    `overrides` are nested values that win over the file but not over the environment.

    Raises:
        StartupError: the file cannot be read, or a value is wrong; the message names the key.
    """
    try:
        content = {} if path is None else yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StartupError(f"cannot read the configuration {path}: {error}") from error
    if not isinstance(content, dict):
        raise StartupError(f"the configuration {path} must be a mapping of keys to values")
    defaults = _defaults()
    try:
        return MeshSettings(**_merged(_merged(defaults, content), overrides or {}))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        where = f" in {path}" if path else ""
        raise StartupError(f"configuration{where}: {key}: {problem['msg']}", field=key) from error


def save_settings(settings: MeshSettings, path: Path) -> None:
    """Write settings so that `load_settings` reads the same."""
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False))


def default_run_directory() -> Path:
    """Where sockets of a mesh lie: the user's runtime directory, else a private one in /tmp."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")  # noqa: S108 (a private directory is made below it)


def _defaults() -> dict[str, Any]:
    return {name: {"path": str(embedded_path(name))} for name in ("slm", "llm", "router")}


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
