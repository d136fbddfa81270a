"""A small and a large model and a router with random weights, in the real formats, made in a moment.

Random models write varied tokens, so that a fault in positions, masks or hand-offs shows at once.
"""

from pathlib import Path

import torch
from allroads.config import embedded_path
from allroads.model_identity import identify_model
from allroads.router.checkpoint import save_router
from allroads.router.classifier import ClassifierArguments, HiddenStatesTokenLMHeadLogitsClassifier
from allroads.router.embedding import embedding_hash, load_embedding
from allroads.router.manifest import (
    DataDescription,
    MadeFor,
    MadeForSlm,
    Quality,
    RouterManifest,
    SplitData,
    TrainingDescription,
)
from allroads.training.pretrain import ModelShape
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

SHAPES = {"slm": ModelShape(num_layers=2, width=32), "llm": ModelShape(num_layers=3, width=48)}


def write_tiny_pair(
    directory: Path, *, seed: int = 0, vocab_size: dict[str, int] | None = None, likeness: float = 0.0
) -> None:
    """Write `slm`, `llm` and `router` below a directory.

    `vocab_size` pads the output layer of a model. With a `likeness` above 0 the large model is the small one but
    for some noise, so that the two agree often; without it they have nothing in common.
    """
    tokenizer = PreTrainedTokenizerFast.from_pretrained(embedded_path("llm"))
    for index, (name, shape) in enumerate(SHAPES.items()):
        torch.manual_seed(seed + (0 if likeness else index))
        config = (SHAPES["slm"] if likeness else shape).config(tokenizer)
        config.vocab_size = (vocab_size or {}).get(name, config.vocab_size)
        model = Qwen3ForCausalLM(config)
        # Wider than the default initialisation: flat random models would leave every choice to rounding.
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.15)
        torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.5)
        if likeness and name == "llm":
            for parameter in model.parameters():
                parameter.data += (1 - likeness) * parameter.std(correction=0) * torch.randn_like(parameter)
        model.save_pretrained(directory / name)
        tokenizer.save_pretrained(str(directory / name))
    write_random_router(directory / "router", slm=directory / "slm", llm=directory / "llm", seed=seed)


def write_random_router(directory: Path, *, slm: Path, llm: Path, seed: int = 0) -> None:
    """Write a router with random weights that scores about half of all tokens above its threshold."""
    torch.manual_seed(seed)
    embedding = load_embedding(slm)
    width = embedding.shape[1]
    arguments = ClassifierArguments(hidden_states_size=width, logits_size=8, hidden_dims=(16, 16))
    classifier = HiddenStatesTokenLMHeadLogitsClassifier(arguments, width)
    for name, parameter in classifier.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
        elif parameter.ndim == 2:
            # The raw logits share a large part that says nothing; the rest must be heard.
            torch.nn.init.normal_(parameter, std=0.01 if name.startswith("logits") else 0.3)
    small, large = identify_model(slm), identify_model(llm)
    none = SplitData(num_problems=0, num_tokens=0, num_identical=0, num_neutral=0, num_divergent=0)
    quality = Quality(
        num_tokens=1, num_positives=1, base_rate=0.5, recall=0.5, precision=0.5, positive_rate=0.5,
        pr_auc=0.5, mean_probability=0.5,
    )  # fmt: skip
    manifest = RouterManifest(
        init_args=arguments,
        slm=MadeForSlm(
            model_id=small.model_id,
            num_parameters=small.num_parameters,
            tokenizer_hash=small.tokenizer_hash,
            embedding_sha256=embedding_hash(embedding),
        ),
        llm=MadeFor(model_id=large.model_id, num_parameters=large.num_parameters, tokenizer_hash=large.tokenizer_hash),
        weights_sha256="0" * 64,
        threshold=0.5,
        threshold_rule="random weights",
        data=DataDescription(
            source="none", problem_seed=0, split_seed=0, labels_sha256="0" * 64, train=none, validation=none, test=none
        ),
        training=TrainingDescription(
            optimizer="none", rate=0.0, weight_decay=0.0, batch_size=1, max_epochs=0, patience=0, seed=seed
        ),
        validation=quality,
        test=quality,
    )
    save_router(directory, classifier, manifest)
