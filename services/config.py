"""One typed configuration tree for a whole mesh.

Read from a YAML file; every value can be overridden by an environment variable whose name is the path
to it: `ALLROADS_GATEWAY__PORT=8080`. Without a file the embedded pair is served.
"""

import os
import re
from collections.abc import Mapping
from functools import reduce
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
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from .embedded import ModelPath, embedded_scorers
from .embedded import embedded_path as embedded_path  # noqa: PLC0414 (part of what is found here)
from .errors import StartupError

ALWAYS_THERE = ("slm", "llm", "router", "gateway")
"""The services of every mesh, each served by the code in the folder of its name."""
MAX_MIDDLE_TIERS = 6

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_TAKEN_NAMES = (*ALWAYS_THERE, "mesh")


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


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            "a name has 1 to 31 characters, small letters, digits and hyphens, of which the first is a letter"
        )
    if name in _TAKEN_NAMES:
        raise ValueError(f"that name is taken, as are {', '.join(_TAKEN_NAMES)}; choose another")
    return name


Name = Annotated[str, AfterValidator(_check_name)]
"""Of a service or a scorer that a mesh has besides those that every mesh has."""
Address = Annotated[str, AfterValidator(_check_address)]
Dtype = Literal["float32", "bfloat16", "float16"]
Positive = Annotated[int, Field(gt=0)]
PositiveOrAuto = Annotated[Positive | Literal["auto"], WrapValidator(_check_number_or_auto)]
Port = Annotated[int, Field(ge=0, le=65535)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelSettings(_Frozen):
    """One model service: which model, where it runs, how much it holds."""

    path: ModelPath
    """Directory in the Hugging Face layout, or `embedded:NAME`."""
    address: Address = ""
    """Where the service listens; empty lets `allroads up` choose a Unix socket."""
    device: str = "cpu"
    """As torch names it: `cpu`, `cuda:0`."""
    dtype: Dtype = "float32"
    """Of weights and KV."""
    num_threads: Positive = 1
    """torch threads; one is steadier than two where services share cores."""
    num_kv_tokens: PositiveOrAuto = 32_768
    """Tokens that the KV pool holds. "auto": as many as fit, the same on all tiers of a device that say so; see
    `memory_bytes`."""
    block_size_tokens: Positive = 16
    """Tokens of a block of KV, the unit that is handed out and shared."""
    max_step_tokens: Positive = 128
    """Token positions computed in one step at most; longer prompts are prefilled in chunks. Others wait for a chunk:
    with 512 a long prompt holds them up twice as long (`bench.stall`). An accelerator wants more."""
    max_running: Positive = 256
    """Sequences that may hold KV at once."""
    max_waiting: Positive = 1024
    """Sequences that may wait for KV; one more is refused."""
    shares_prefixes: bool = True
    """Whether sequences that begin alike share the KV of what they have in common."""
    attention: Literal["auto", "flashinfer", "sdpa"] = "auto"
    """How attention over paged KV is computed on a GPU. "auto": by flashinfer where it is there and fits, else by
    torch's own kernels, which are slower. On the CPU it is always torch's."""
    batch_invariant: bool = False
    """Whether a GPU must compute each row's attention the same way whatever rows are beside it; slower for few rows
    with long texts. Matrix products may still differ in the last bits (docs/gpu.md)."""
    graphs: Literal["auto", "off"] = "auto"
    """Whether steps of frequent shapes are captured as CUDA graphs at start, and then launched at once."""
    max_graph_tokens: Positive = 128
    """Token positions of the largest step that is captured."""
    stream_priority: Literal["normal", "high"] = "normal"
    """Of the model's work on a GPU that several services share within one process; "high" goes first."""
    tensor_parallel: Positive = 1
    """GPUs over which the model's matrices are cut, each of which keeps the KV of its part of the heads."""

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
    adopts_from: Address = ""
    """Another service of the same model on the same host, such as the one that this one replaces: KV that it holds of a
    sequence's beginning is copied from there and not computed anew (docs/operations.md). Empty: nobody is asked."""
    lends_kv: bool = False
    """Whether others may copy KV from here; on the CPU the pool then lies in shared memory."""
    opinions_path: Path | None = None
    """File to which opinions are appended as labels for training, one JSON object a hand-off; holds users' tokens."""


Mode = Literal["on", "off", "audit", "canary"]
MODES: tuple[Mode, ...] = ("on", "off", "audit", "canary")


class HomeSettings(ModelSettings):
    """The small model's service, which owns the requests."""

    policy: str = "r2r"
    """Who writes which token, for requests that name no policy."""
    max_unjudged: Annotated[int, Field(ge=0, le=64)] = 6
    """Proposals of a request that the small model may feed on while the router has yet to judge them."""
    max_ahead: Annotated[int, Field(ge=0, le=64)] = 8
    """Proposals that it may make while the large model works on a hand-off; they stay if its token is the proposal
    that was handed off. 0 waits."""
    peer_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    """How long a request waits for a larger tier or the router that is out of reach."""
    on_peer_loss: Literal["fail", "degrade"] = "degrade"
    """After that: fail the request, or finish it with the small model alone, marked in the reply."""
    mode: Mode = "on"
    """For requests that name none: routed; off, `writer` writes alone; audit, so it does, and what the policy would
    have done is recorded; canary, a share of them is on and the rest off."""
    writer: Literal["slm", "llm"] = "llm"
    """Who writes where requests are not routed."""
    canary_share: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Of requests, or of the keys that they name."""
    target_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of tokens for the large model, at which requests of the default policy are held that name no threshold."""
    threshold_bounds: tuple[float, float] | None = None
    """How low and how high the threshold may go for it; the policy's own range where nothing is said."""
    decisions_path: Path | None = None
    """File to which decisions are appended, one JSON object each (docs/audit.md)."""
    decisions_context: Annotated[int, Field(ge=0, le=4096)] = 0
    """Token ids before each decision to record with it: what users wrote, and what was written for them."""
    decisions_max_bytes: Positive = 64 * 1024 * 1024
    """Size at which a file is put away as PATH.1, ..."""
    decisions_files: Positive = 8
    """Files to keep."""


class RouterSettings(_Frozen):
    """The router service and its scorers."""

    path: ModelPath
    """Directory with `router.safetensors` and `manifest.json`, or the `.pt` file of a published R2R router."""
    calibration: Path | None = None
    """File of `allroads calibrate` with the threshold for requests that name none, in place of the checkpoint's."""
    ignore_calibration_mismatch: bool = False
    """Whether a calibration that was made for something else than what is served is used all the same."""
    scorers: dict[Name, ModelPath] = Field(default_factory=dict)
    """Further scorers by name, such as `citer`: directories with `scorer.safetensors` and `manifest.json`."""
    address: Address = ""
    """Where the service listens; empty lets `allroads up` choose a Unix socket."""
    device: str = "cpu"
    """As torch names it: `cpu`, `cuda:0`."""
    num_threads: Positive = 1
    """torch threads."""
    graphs: Literal["auto", "off"] = "auto"
    """Whether the scorers' passes over batches of up to 64 rows are captured as CUDA graphs at start."""
    stream_priority: Literal["normal", "high"] = "high"
    """Of the scorers' work on a GPU that several services share within one process; "high" goes first."""


class AdmissionSettings(_Frozen):
    """What the gateway does by its model of the mesh's throughput (docs/admission.md)."""

    delayed_batching: Literal["auto", "off"] = "auto"
    """Whether larger tiers wait for company before they launch a batch, where that makes the mesh faster."""
    max_hold_s: Annotated[float, Field(gt=0, le=10)] = 0.05
    """How long a hand-off waits for company at most."""
    min_gain: Annotated[float, Field(ge=0, le=1)] = 0.03
    """What a change of launch thresholds must promise, as a part of the throughput, before it is made."""
    min_tokens_per_s: Annotated[float, Field(gt=0)] | None = None
    """The promise to each admitted request: as many run at once as can be served so fast."""
    max_first_token_s: Annotated[float, Field(gt=0)] | None = None
    """The other promise: who cannot have the first token so soon after arrival is refused."""
    requests_per_minute_per_key: Positive | None = None
    """Requests that one API key may start in a minute."""
    starts_per_s: Positive | None = None
    """Requests that may start in a second, so that prompts do not come all at once."""
    max_waiting_per_key: Positive | None = None
    """Requests of one API key that may wait; as many as there is room for where nothing is said."""


class TlsSettings(_Frozen):
    """A certificate with its private key, in PEM files that are read at start."""

    certificate: Path
    """The certificate, and after it those between it and its authority's."""
    key: Path
    """Its private key, without a password."""


class MeshTlsSettings(TlsSettings):
    """Mutual TLS between services, for all addresses but Unix sockets. One certificate may serve them all."""

    ca: Path
    """Certificates of the authorities whose certificates services show each other."""
    server_name: str = ""
    """The name that servers' certificates must hold; the host that is called where nothing is said."""


class LimitSettings(_Frozen):
    """What a stranger may cost the gateway (docs/security.md)."""

    max_connections: Positive = 8192
    """Of each API; further ones are closed."""
    max_headers: Positive = 128
    """Of a request."""
    max_head_bytes: Positive = 64 * 1024
    """Of a request's first line and headers; of a gRPC call's metadata."""
    head_timeout_s: Annotated[float, Field(gt=0)] = 20.0
    """For them to arrive, and for the handshake of a gRPC connection."""
    body_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """For the body to arrive."""
    max_prompt_tokens: Positive | None = None
    """Of one prompt; as many as fit the context where nothing is said."""
    max_streams: Positive = 1024
    """Calls at once on one gRPC connection; further ones wait at the client."""
    min_ping_interval_s: Annotated[float, Field(gt=0)] = 5.0
    """A gRPC connection that pings more often is closed."""
    max_idle_s: Annotated[float, Field(gt=0)] = 600.0
    """A gRPC connection without a call is closed after so long, and opened again by its client at need."""


def _check_origin(origin: str) -> str:
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise ValueError('must be an origin such as "https://chat.example.com", without a path, or "*"')
    return origin


Origin = Annotated[str, AfterValidator(_check_origin)]


class GatewaySettings(_Frozen):
    """Where clients come in, and how many."""

    host: str = "127.0.0.1"
    """The address on which both APIs listen; `0.0.0.0` is all of the machine's."""
    port: Port = 8000
    """Of REST and the playground; 0 takes a free one."""
    grpc_port: Port = 8001
    """Of gRPC; 0 takes a free one."""
    max_running: Positive = 64
    """Requests in the mesh at once; more wait."""
    max_waiting: Positive = 256
    """Requests that may wait; one more is refused with a time to come back."""
    queue_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """How long a request may wait in line before it is refused."""
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """How long a request may take from arrival to its end; one that names a shorter time gets that."""
    reader_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """A client that takes no byte for so long is cut off."""
    home_timeout_s: Annotated[float, Field(gt=0)] = 20.0
    """How long a request waits for the small model's service to come back."""
    max_body_bytes: Positive = 8 * 1024 * 1024
    """Of a request; `max_message_bytes` must be four times that."""
    piece_interval_s: Annotated[float, Field(ge=0)] = 0.004
    """Tokens that follow each other faster travel to the client together; slower steps are not held up."""
    keys_path: Path | None = None
    """File of `allroads keys`. With one, requests need a key that is in it."""
    metrics_without_key: bool = False
    """Whether `/metrics` is open all the same."""
    tls: TlsSettings | None = None
    """For REST and gRPC."""
    cors_origins: tuple[Origin, ...] = ()
    """Of web pages whose scripts may call the REST API."""
    limits: LimitSettings = Field(default_factory=LimitSettings)
    playground: bool = True
    """Whether `/` shows a page in which to ask and to see who wrote what (docs/playground.md)."""
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings)


class MeshSettings(BaseSettings):
    """A whole mesh: services that serve one model together."""

    model_config = SettingsConfigDict(
        env_prefix="ALLROADS_", env_nested_delimiter="__", frozen=True, extra="forbid", protected_namespaces=()
    )

    model_name: Annotated[str, Field(min_length=1, max_length=200)] = "allroads"
    """The name that clients ask for."""
    slm: HomeSettings = Field(default_factory=lambda: HomeSettings(path=embedded_path("slm")))
    middle: Annotated[dict[Name, TierSettings], Field(max_length=MAX_MIDDLE_TIERS)] = Field(default_factory=dict)
    """Models between the small and the large one, by the names of their services, smaller ones first."""
    llm: TierSettings = Field(default_factory=lambda: TierSettings(path=embedded_path("llm")))
    router: RouterSettings = Field(
        default_factory=lambda: RouterSettings(path=embedded_path("router"), scorers=embedded_scorers())
    )
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    memory_bytes: dict[str, PositiveOrAuto] = Field(default_factory=dict)
    """Bytes of each device, such as `cuda:0`, that weights and KV of all models on it may take together; steps need
    some besides. "auto", for GPUs only: `memory_share` of what it has, less what steps are reckoned to need; so it is
    too for a GPU that is not named and has a model whose `num_kv_tokens` is "auto". Otherwise without a limit where
    none is named. Not for a mesh on several hosts: their devices share names."""
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Part of a GPU's memory that "auto" shares out, all that steps need included. Lower it where others use the GPU,
    too: what it says must be free at start."""
    max_message_bytes: Positive = 64 * 1024 * 1024
    """Size of a gRPC message, the same at both ends of every stream."""
    pin_cores: bool = True
    """Whether `allroads up` gives each model service processor cores of its own, as far as they go. Turn it off where
    several meshes share a machine."""
    tls: MeshTlsSettings | None = None
    """Between services that listen elsewhere than on Unix sockets."""
    grace_s: Annotated[float, Field(ge=0)] = 5.0
    """How long open requests may go on after a service was told to stop."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What was given: `load_settings` puts the environment between a file and options."""
        return (init_settings,)

    @property
    def tiers(self) -> dict[str, ModelSettings]:
        """Models by service name; the position of one is its tier's number."""
        return {"slm": self.slm, **self.middle, "llm": self.llm}

    @property
    def internal(self) -> dict[str, ModelSettings | RouterSettings]:
        """Services that only others of the mesh call, by name: tiers in their order, then the router."""
        return {**self.tiers, "router": self.router}

    def tier_settings(self, name: str) -> TierSettings:
        """A larger tier by its service's name.

        Raises:
            StartupError: there is none of that name.
        """
        larger = {**self.middle, "llm": self.llm}
        if name not in larger:
            raise StartupError(f"no larger tier is named {name!r}; there are {', '.join(larger)}", field="middle")
        return larger[name]

    def key_of(self, name: str) -> str:
        """The key of a service's settings, for messages: `slm`, or `middle.NAME`."""
        return f"middle.{name}" if name in self.middle else name

    def with_internal(self, changed: Mapping[str, Mapping[str, Any]]) -> Self:
        """The same mesh with other values of internal services, by service name and field."""
        parts = {name: part.model_copy(update=changed.get(name)) for name, part in self.internal.items()}
        middle = {name: parts.pop(name) for name in self.middle}
        return self.model_copy(update={**parts, "middle": middle})

    def with_addresses(self, directory: Path) -> Self:
        """The same mesh with a Unix socket in `directory` for each internal service that has no address."""
        return self.with_internal(
            {name: {"address": part.address or f"unix:{directory}/{name}.sock"} for name, part in self.internal.items()}
        )


def service_names(settings: MeshSettings) -> tuple[str, ...]:
    """The services of a mesh in the order in which they start, whoever is called first; the largest model leads."""
    largest_first = reversed(settings.tiers)
    return (*(name for name in largest_first if name != "slm"), "router", "slm", "gateway")


def load_settings(
    path: Path | None = None, overrides: dict[str, Any] | None = None, options: dict[str, Any] | None = None
) -> MeshSettings:
    """Read the settings of a mesh.

    `overrides` are nested values that win over the file, but not over the environment; `options` win over both.

    Raises:
        StartupError: the file cannot be read, or a value is wrong; the message names the key.
    """
    try:
        content = {} if path is None else yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StartupError(f"cannot read the configuration {path}: {error}") from error
    if not isinstance(content, dict):
        raise StartupError(f"the configuration {path} must be a mapping of keys to values")
    try:
        environment = EnvSettingsSource(MeshSettings)()
        given = reduce(_merged, (content, overrides or {}, environment, options or {}))
        return MeshSettings(**_merged(_defaults(given), given))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"] if part != "[key]")
        where = f" in {path}" if path else ""
        raise StartupError(f"configuration{where}: {key}: {problem['msg']}", field=key) from error
    except SettingsError as error:
        raise StartupError(f"configuration: {error}; a variable for more than one value must be JSON") from error


def save_settings(settings: MeshSettings, path: Path) -> None:
    """Write settings so that `load_settings` reads the same."""
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False))


def default_run_directory() -> Path:
    """Where sockets of a mesh lie: the user's runtime directory, else a private one in /tmp."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")  # noqa: S108 (a private directory is made below it)


def _defaults(given: dict[str, Any]) -> dict[str, Any]:
    """The embedded pair and router, and its scorers where nothing was given that they may not have been made for."""
    defaults: dict[str, Any] = {name: {"path": embedded_path(name)} for name in ("slm", "llm", "router")}
    if not any(_is_given(given, *key) for key in (("slm", "path"), ("router", "path"), ("router", "scorers"))):
        defaults["router"]["scorers"] = embedded_scorers()
    return defaults


def _is_given(values: dict[str, Any], part: str, key: str) -> bool:
    return isinstance(values.get(part), dict) and key in values[part]


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
