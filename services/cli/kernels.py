"""`allroads kernels`: attention's kernels for GPUs, compiled before anybody waits for them."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import MeshSettings, ModelSettings
from ..errors import Cancelled, CheckpointError, StartupError
from ..model_size import token_kv
from ..vocabulary import read_json
from .console import stderr, stdout
from .options import Config, resolve_settings

if TYPE_CHECKING:
    from ..cuda.flashinfer_kernels import Kernel, KernelShape


def kernels(
    config: Config = None,
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="X.Y",
            help="Compute capability of the GPU that will run them, such as 8.0, 8.9, 9.0a or 10.0a. Without one: of "
            "the GPUs that are here.",
        ),
    ] = None,
) -> None:
    """Compile the kernels of attention that the mesh's models will use, which takes minutes.

    Without this a service does it when it first starts. Needs flashinfer, nvcc and ninja, and no GPU where --arch is
    given. They are kept in flashinfer's cache, in the home directory or in FLASHINFER_WORKSPACE_BASE, for this version
    of it and that architecture: a machine that is to use them needs the same directory.
    """
    # Late, so that no other command pays for torch.
    from ..cuda.flashinfer_kernels import compile_kernel, kernels_of, missing_tools, target_arch  # noqa: PLC0415
    from ..cuda.flashinfer_use import why_not_installed  # noqa: PLC0415

    shapes = _shapes(resolve_settings(config))
    if reason := why_not_installed():
        raise StartupError(reason, field="attention")
    if missing := missing_tools():
        raise StartupError(f"kernels cannot be compiled without {missing}", field="attention")
    target_arch(arch)
    wanted = {kernel.name: kernel for shape in shapes for kernel in kernels_of(shape)}
    try:
        for kernel in wanted.values():
            began_s = time.monotonic()
            with stderr().status(f"compiling {_short(kernel)}"):
                compile_kernel(kernel)
            stdout().print(f"{_short(kernel)}: there after {time.monotonic() - began_s:.0f} s")
    except KeyboardInterrupt:
        raise Cancelled("stopped; what is compiled stays") from None


def _shapes(settings: MeshSettings) -> "list[KernelShape]":
    """What the models on GPUs need kernels for; a line for each that needs none."""
    from ..cuda.flashinfer_use import why_not_fit  # noqa: PLC0415 (late, as above)

    found: list[KernelShape] = []
    for name, tier in _on_gpus(settings.tiers.items()):
        shape = _shape_of(tier, f"{settings.key_of(name)}.path")
        if reason := why_not_fit(shape):
            stderr().print(f"{name}: none by flashinfer, since {reason}")
        else:
            found.append(shape)
    if not found:
        raise StartupError(
            "no model of the mesh attends by flashinfer on a GPU: that takes a device such as cuda:0, bfloat16 or "
            'float16 as dtype, and an attention that is not "sdpa"',
            field="attention",
        )
    return found


def _on_gpus(tiers: Iterable[tuple[str, ModelSettings]]) -> list[tuple[str, ModelSettings]]:
    return [(name, tier) for name, tier in tiers if tier.device.startswith("cuda") and tier.attention != "sdpa"]


def _shape_of(tier: ModelSettings, key: str) -> "KernelShape":
    """By config.json alone: kernels may be compiled where the weights are not."""
    from ..cuda.flashinfer_kernels import KernelShape  # noqa: PLC0415 (late, as above)

    if not (tier.path / "config.json").is_file():
        raise CheckpointError(f"{key}: no config.json in {tier.path}; set it to a directory with a model", field=key)
    config = read_json(tier.path / "config.json")
    config = config.get("text_config", config)
    kv = token_kv(config, tier.path)
    group = config["num_attention_heads"] // kv.num_kv_heads
    return KernelShape.named(tier.dtype, kv.head_dim, group, batch_invariant=tier.batch_invariant)


def _short(kernel: "Kernel") -> str:
    """Its name, without what is the same in all that we use."""
    kind, _, traits = kernel.name.partition("_with_kv_cache_")
    return f"{kind}, {traits.partition('_dtype_kv')[0].removeprefix('dtype_q_')}, {_head_dim(traits)}"


def _head_dim(traits: str) -> str:
    return f"heads of {traits.partition('head_dim_qk_')[2].partition('_')[0]}"
