"""Which devices a model is on, and how much of it on each."""

from .config import MeshSettings, ModelSettings
from .errors import StartupError
from .gpus import canonical, ordinal_of
from .model_size import DTYPE_BYTES, model_size, token_kv
from .vocabulary import read_json
from .weight_headers import input_embedding, stored_tensors


def devices_of(settings: ModelSettings) -> tuple[str, ...]:
    """The devices that hold parts of a model, its own first.

    With tensor parallel that is its own GPU and those after it; on the CPU every part is in the same memory.
    """
    first = ordinal_of(settings.device)
    if first is None:
        return (canonical(settings.device),) * settings.tensor_parallel
    return tuple(f"cuda:{first + rank}" for rank in range(settings.tensor_parallel))


def services_on(settings: MeshSettings) -> dict[str, list[str]]:
    """Names of the internal services by the devices that they are on; a model's as often as it has parts there."""
    placed: dict[str, list[str]] = {}
    for name, tier in settings.tiers.items():
        for device in devices_of(tier):
            placed.setdefault(device, []).append(name)
    placed.setdefault(canonical(settings.router.device), []).append("router")
    return placed


def part_size(settings: ModelSettings, key: str = "") -> tuple[int, int]:
    """Bytes of weights, and of KV per token, on each of a model's devices.

    Of a model that is cut each device has the whole input embedding, and its part of all else; norms, which are whole
    as well, are too small to count. So it is in transformers' plans for the families that are served.

    Args:
        settings: of the model.
        key: of its settings in a mesh, for messages.

    Raises:
        StartupError: its heads cannot be shared out evenly.
        CheckpointError: files are missing or damaged.
    """
    size = model_size(settings.path, settings.dtype)
    count = settings.tensor_parallel
    if count == 1:
        return size.weight_bytes, size.kv_bytes_per_token
    require_even_heads(settings, key)
    tensors = stored_tensors(settings.path)
    whole = tensors[input_embedding(tensors, settings.path)].num_values * DTYPE_BYTES[settings.dtype]
    return whole + -(-(size.weight_bytes - whole) // count), size.kv_bytes_per_token // count


def require_even_heads(settings: ModelSettings, key: str = "") -> None:
    """Refuse to cut a model where a device would get a part of a head.

    Raises:
        StartupError: heads, or KV heads, are no multiple of `tensor_parallel`.
        CheckpointError: its config.json is missing, damaged, or does not tell.
    """
    config = read_json(settings.path / "config.json")
    config = config.get("text_config", config)
    num_kv_heads = token_kv(config, settings.path).num_kv_heads
    num_heads = int(config["num_attention_heads"])
    count = settings.tensor_parallel
    if num_kv_heads % count or num_heads % count:
        fitting = [n for n in range(1, num_kv_heads + 1) if num_kv_heads % n == 0 and num_heads % n == 0]
        field = f"{key}.tensor_parallel".removeprefix(".")
        raise StartupError(
            f"{field} is {count}, but the model in {settings.path} has {num_heads} heads and "
            f"{num_kv_heads} KV heads, which must both be multiples of it: set it to one of {fitting}",
            field=field,
        )
