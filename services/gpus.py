"""Which GPUs there are, for processes that have no torch: asked of a child that has it.

torch's own view is asked for, in a process that ends, since it alone has the numbers of devices as settings mean them
(CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, MIG), knows if this torch can use them, and measures memory as a service will
find it. The driver's management library counts devices otherwise, and is one dependency more. The price is a second
or two at the start of a mesh that uses a GPU.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .config import Dtype
from .errors import StartupError

_TIMEOUT_S = 120.0
"""For torch's import and CUDA's start on a busy machine with many GPUs."""
_BFLOAT16_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What a GPU is and has."""

    ordinal: int
    """As in `cuda:0`."""
    name: str
    uuid: str
    """The same in every process and container, whatever number the GPU has there."""
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int
    """When it was asked."""

    def require_dtype(self, dtype: Dtype) -> None:
        """Refuse a kind of numbers that this GPU cannot multiply by itself.

        Raises:
            StartupError: bfloat16 on a GPU that is too old for it.
        """
        if dtype == "bfloat16" and self.capability < _BFLOAT16_CAPABILITY:
            major, minor = self.capability
            raise StartupError(
                f"cuda:{self.ordinal} ({self.name}) has compute capability {major}.{minor}, and bfloat16 needs "
                f"{_BFLOAT16_CAPABILITY[0]}.{_BFLOAT16_CAPABILITY[1]}: set dtype to float16, or choose another device",
                field="device",
            )


AskGpus = Callable[[Collection[int]], Mapping[int, GpuFacts]]
"""Facts of the GPUs with these ordinals, by ordinal. Raises StartupError where one of them cannot be used."""


def canonical(device: str) -> str:
    """One spelling of a device: torch takes `cuda` for `cuda:0`, and there is one `cpu`."""
    kind, _, index = device.partition(":")
    return kind if kind == "cpu" else f"{kind}:{index or 0}"


def ordinal_of(device: str) -> int | None:
    """The number of a GPU by its device's name; None for a device of another kind, or a name that is none."""
    kind, _, index = canonical(device).partition(":")
    return int(index) if kind == "cuda" and index.isdecimal() else None


def ask_gpus(ordinals: Collection[int]) -> Mapping[int, GpuFacts]:
    """See `AskGpus`. Starts a child with torch and waits for it.

    Raises:
        StartupError: CUDA cannot be used, or there is no such GPU; the message says what to do.
    """
    command = [sys.executable, "-m", f"{__package__}.cuda.probe", *map(str, sorted(ordinals))]
    try:
        child = subprocess.run(  # noqa: S603 (our own program)
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise StartupError(
            f"the GPUs did not answer within {_TIMEOUT_S:g} s; see if nvidia-smi does", field="device"
        ) from error
    if child.returncode:
        words = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
        raise StartupError(f"the GPUs could not be asked: {words[-1]}", field="device")
    return facts_from_json(child.stdout)


def facts_to_json(facts: Collection[GpuFacts], refusal: str = "") -> str:
    """What the child answers: facts, or why there are none."""
    return json.dumps({"refusal": refusal, "gpus": [asdict(gpu) for gpu in facts]})


def facts_from_json(text: str) -> Mapping[int, GpuFacts]:
    """The facts in a child's answer, which may follow other lines.

    Raises:
        StartupError: it refused, or its answer is none.
    """
    try:
        answer: dict[str, Any] = json.loads(text.strip().rpartition("\n")[2])
        refusal = str(answer["refusal"])
        gpus = [GpuFacts(**{**gpu, "capability": tuple(gpu["capability"])}) for gpu in answer["gpus"]]
    except (ValueError, KeyError, TypeError) as error:
        raise StartupError(f"the GPUs could not be asked: the answer is {text[-200:]!r}", field="device") from error
    if refusal:
        raise StartupError(refusal, field="device")
    return {gpu.ordinal: gpu for gpu in gpus}
