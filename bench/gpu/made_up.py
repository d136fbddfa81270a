"""Checkpoints whose weights nobody trained, in the real formats, and services that make up what is not on disk.

The small model and the router are whole files, as the router reads the small model's embedding out of them. Of the
large model, which may be larger than the disk, only the header of its file is written; the rest is a hole. Beside it
lies `made-up.json`, and where that lies `AutoModelForCausalLM.from_pretrained`, once `install` was called, makes
random weights right on the device. Random and not zero: hardware is faster and cooler on zeros.
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from allroads.config import embedded_path
from allroads.router.classifier import ClassifierArguments, HiddenStatesTokenLMHeadLogitsClassifier
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from .headers import write_hole
from .shapes import RouterShape, Shape

logger = logging.getLogger("allroads.bench")

ROUTER_FILE = "default_router.pt"
MADE_UP = "weights are made up"
"""A service says so in its log; one that does not has read zeros."""
_NOTE = "made-up.json"
_TAKEN = frozenset(
    {"dtype", "attn_implementation", "use_safetensors", "local_files_only", "output_loading_info", "device_map"}
)
"""What the engine asks of `from_pretrained` and is granted here; anything else is refused."""
_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_from_pretrained = AutoModelForCausalLM.from_pretrained


@dataclass(frozen=True, slots=True)
class Note:
    """How the weights of a directory are made up."""

    device: str
    seed: int


def write_pair(
    directory: Path,
    slm: Shape,
    llm: Shape,
    router: RouterShape,
    *,
    dtype: torch.dtype,
    slm_device: str,
    llm_device: str,
) -> None:
    """Write `slm`, `llm` and the router below a directory; weights in `dtype`, each model's made on its device."""
    for name, shape in (("slm", slm), ("llm", llm)):
        _write_config(directory / name, shape, dtype)
        AutoTokenizer.from_pretrained(embedded_path("llm")).save_pretrained(directory / name)
    made_up_model(directory / "slm", dtype=dtype, note=Note(slm_device, 0)).save_pretrained(directory / "slm")
    _write_large(directory / "llm", dtype, Note(llm_device, 1))
    _write_router(directory / ROUTER_FILE, slm, router)


def install() -> None:
    """Let models be made up in this process where a directory says so; all others load as ever."""
    # Set by name, as a method of the class is not to be assigned to.
    setattr(AutoModelForCausalLM, "from_pretrained", _load_or_make_up)  # noqa: B010


def made_up_model(
    directory: Path, *, dtype: torch.dtype, note: Note, attn_implementation: str | None = None
) -> PreTrainedModel:
    """The model of a config.json with the random weights that transformers gives a new one, on the note's device."""
    torch.manual_seed(note.seed)
    config = AutoConfig.from_pretrained(directory)
    with torch.device(note.device):
        made: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attn_implementation)
    model: PreTrainedModel = made.eval()
    return model


def _load_or_make_up(directory: Any, **options: Any) -> Any:
    note = Path(directory) / _NOTE
    if not note.is_file():
        return _from_pretrained(directory, **options)
    if unknown := options.keys() - _TAKEN:
        raise ValueError(f"{', '.join(sorted(unknown))}: not with weights that are made up")
    model = made_up_model(
        Path(directory),
        dtype=options["dtype"],
        note=Note(**json.loads(note.read_text())),
        attn_implementation=options.get("attn_implementation"),
    )
    logger.info("%s: %s on %s", directory, MADE_UP, model.device)
    return (model, {}) if options.get("output_loading_info") else model


def _write_config(directory: Path, shape: Shape, dtype: torch.dtype) -> None:
    config = AutoConfig.for_model(shape.model_type, **shape.config(), max_window_layers=shape.num_layers)
    # The embedded pair's end of text: the services compare what both models name.
    config.update({"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None, "dtype": dtype})
    architectures = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    config.architectures = [architectures[shape.model_type]]
    config.save_pretrained(directory)


def _write_large(directory: Path, dtype: torch.dtype, note: Note) -> None:
    """The header of the model's tensors, and word of how they are made up."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=dtype)
    tied = set(model.all_tied_weights_keys)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}
    write_hole(directory / "model.safetensors", shapes, _NAMES[dtype])
    (directory / _NOTE).write_text(json.dumps(asdict(note)))


def _write_router(path: Path, slm: Shape, shape: RouterShape) -> None:
    """In the format in which R2R's authors publish theirs, with torch's initial weights."""
    torch.manual_seed(2)
    given: dict[str, Any] = {
        "hidden_states_size": slm.hidden_size,
        "logits_size": shape.logits_size,
        "hidden_dims": list(shape.hidden_dims),
        "dropout_rate": 0.1,
    }
    arguments = ClassifierArguments(**given | {"hidden_dims": shape.hidden_dims})
    classifier = HiddenStatesTokenLMHeadLogitsClassifier(arguments, slm.hidden_size)
    content = {
        "model_type": "HiddenStatesTokenLMHeadLogitsClassifier",
        "init_args": given,
        "common_args": {"threshold": 0.5, "input_type": ["hidden_states", "logits", "token"]},
        "model_specific_args": {},
        "state_dict": classifier.state_dict(),
    }
    torch.save(content, path)
