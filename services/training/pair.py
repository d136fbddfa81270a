"""A small and a large model with one tokenizer, loaded by transformers, and what is learned from them is made for."""

from dataclasses import asdict, dataclass
from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from ..errors import CheckpointError
from ..model_identity import identify_model
from ..router.embedding import embedding_hash, load_embedding
from ..router.manifest import MadeFor, MadeForSlm

MAX_ANSWER_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models with one tokenizer, in eval mode."""

    slm: PreTrainedModel
    llm: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


def load_pair(models: Path) -> Pair:
    """The pair in `models/slm` and `models/llm`.

    Raises:
        CheckpointError: the two do not share a tokenizer, or their files are damaged.
    """
    if identify_model(models / "slm").tokenizer_hash != identify_model(models / "llm").tokenizer_hash:
        raise CheckpointError(f"the two models in {models} do not share a tokenizer")
    slm, llm = (
        AutoModelForCausalLM.from_pretrained(models / name, use_safetensors=True, local_files_only=True).eval()
        for name in ("slm", "llm")
    )
    return Pair(slm, llm, PreTrainedTokenizerFast.from_pretrained(models / "slm"))


def describe_pair(models: Path) -> tuple[MadeForSlm, MadeFor]:
    """What a scorer that learns from the pair in `models/slm` and `models/llm` is made for."""
    slm, llm = identify_model(models / "slm"), identify_model(models / "llm")
    embedding = load_embedding(models / "slm")
    return MadeForSlm(**asdict(slm), embedding_sha256=embedding_hash(embedding)), MadeFor(**asdict(llm))
