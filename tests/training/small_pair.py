"""A pair of tiny random models in the real layout, with the embedded pair's tokenizer, and a router for them."""

from dataclasses import asdict
from pathlib import Path

import torch
from allroads.config import embedded_path
from allroads.model_identity import identify_model
from allroads.router.checkpoint import save_router
from allroads.router.classifier import ClassifierArguments, HiddenStatesTokenLMHeadLogitsClassifier
from allroads.router.embedding import embedding_hash, load_embedding
from allroads.router.manifest import MadeFor, MadeForSlm, Quality, TrainingDescription
from allroads.router.router_manifest import DataDescription, RouterManifest, SplitData
from allroads.training.pretrain import ModelShape, save_model
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

WIDTHS = {"slm": 16, "llm": 32}
NUM_TOP_LOGITS = 8


def tokenizer() -> PreTrainedTokenizerFast:
    words: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(embedded_path("slm"))
    return words


def write_pair(directory: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    words = tokenizer()
    for name, width in WIDTHS.items():
        config = ModelShape(num_layers=1, width=width, num_heads=2, num_kv_heads=1).config(words)
        save_model(Qwen3ForCausalLM(config), words, directory / name)
    return directory


def write_router(models: Path, out: Path, *, threshold: float = 0.5, seed: int = 0) -> RouterManifest:
    torch.manual_seed(seed)
    arguments = ClassifierArguments(
        hidden_states_size=WIDTHS["slm"], logits_size=NUM_TOP_LOGITS, hidden_dims=(12, 8), expansion_factor=2
    )
    embedding = load_embedding(models / "slm")
    split = SplitData(num_problems=1, num_tokens=10, num_identical=8, num_neutral=1, num_divergent=1)
    quality = Quality(
        num_tokens=10, num_positives=1, base_rate=0.1, recall=1.0, precision=1.0, positive_rate=0.1, pr_auc=1.0,
        mean_probability=0.1,
    )  # fmt: skip
    manifest = RouterManifest(
        init_args=arguments,
        slm=MadeForSlm(**asdict(identify_model(models / "slm")), embedding_sha256=embedding_hash(embedding)),
        llm=MadeFor(**asdict(identify_model(models / "llm"))),
        weights_sha256="0" * 64,
        threshold=threshold,
        threshold_rule="chosen for a test",
        data=DataDescription(
            source="none",
            problem_seed=0,
            split_seed=0,
            labels_sha256="0" * 64,
            train=split,
            validation=split,
            test=split,
        ),
        training=TrainingDescription(
            optimizer="none", rate=0.0, weight_decay=0.0, batch_size=1, max_epochs=0, patience=0, seed=seed
        ),
        validation=quality,
        test=quality,
    )
    save_router(out, HiddenStatesTokenLMHeadLogitsClassifier(arguments, embedding.shape[1]), manifest)
    return manifest
