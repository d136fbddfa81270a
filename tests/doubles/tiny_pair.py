"""A small and a large model and their scorers with random weights, in the real formats, made in a moment.

Random models write varied tokens, so that a fault in positions, masks or hand-offs shows at once.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from allroads.config import embedded_path
from allroads.model_identity import identify_model
from allroads.router.checkpoint import save_router
from allroads.router.classifier import ClassifierArguments, HiddenStatesTokenLMHeadLogitsClassifier
from allroads.router.embedding import embedding_hash, load_embedding
from allroads.router.head_checkpoint import save_head
from allroads.router.head_manifest import CiterManifest, CoLlmManifest, ReferenceData, ReferenceSplit
from allroads.router.heads import CiterNetwork, CoLlmHead
from allroads.router.manifest import MadeFor, MadeForSlm, Quality, TrainingDescription
from allroads.router.router_manifest import DataDescription, RouterManifest, SplitData
from allroads.training.pretrain import ModelShape
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

SHAPES = {"slm": ModelShape(num_layers=2, width=32), "llm": ModelShape(num_layers=3, width=48)}


def write_tiny_pair(
    directory: Path, *, seed: int = 0, vocab_size: dict[str, int] | None = None, likeness: float = 0.0
) -> None:
    """Write `slm`, `llm` and the scorers `router`, `citer` and `co-llm` below a directory.

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
    write_random_heads(directory, slm=directory / "slm", llm=directory / "llm", seed=seed)


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
    none = SplitData(num_problems=0, num_tokens=0, num_identical=0, num_neutral=0, num_divergent=0)
    manifest = RouterManifest(
        init_args=arguments,
        data=DataDescription(**_NO_DATA, train=none, validation=none, test=none),
        **_common(slm, llm),
    )
    save_router(directory, classifier, manifest)


def write_random_heads(directory: Path, *, slm: Path, llm: Path, seed: int = 0) -> None:
    """Write `citer` and `co-llm` with random weights: scores all over (0, 1), about half of them above 0.5."""
    torch.manual_seed(seed)
    width = load_embedding(slm).shape[1]
    none = ReferenceSplit(
        num_problems=0, num_tokens=0, num_slm_right=0, num_llm_right=0, num_neither=0, num_neither_suffices=0
    )
    given = {
        **_common(slm, llm),
        "hidden_states_size": width,
        "positives": "none",
        "data": ReferenceData(**_NO_DATA, train=none, validation=none, test=none),
    }
    citer = CiterNetwork(width)
    for parameter in citer.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=(2 / parameter.shape[1]) ** 0.5)
    _spread(citer, citer.output, width)
    save_head(directory / "citer", citer, CiterManifest(**given))
    co_llm = CoLlmHead(width)
    _spread(co_llm, co_llm.row, width)
    save_head(directory / "co-llm", co_llm, CoLlmManifest(**given))


@torch.no_grad()
def _spread(head: torch.nn.Module, output: torch.nn.Linear, width: int) -> None:
    """Scale and shift the last layer: logits of normalised states get the median 0 and the deviation 2."""
    states = torch.randn(2000, width)
    logits = head.eval()(states / states.square().mean(-1, keepdim=True).sqrt())
    output.weight.mul_(2 / logits.std())
    if output.bias is not None:
        output.bias.sub_(logits.median()).mul_(2 / logits.std())


_NO_DATA: dict[str, Any] = {"source": "none", "problem_seed": 0, "split_seed": 0, "labels_sha256": "0" * 64}


def _common(slm: Path, llm: Path) -> dict[str, Any]:
    """What the manifests of all scorers have."""
    quality = Quality(
        num_tokens=1, num_positives=1, base_rate=0.5, recall=0.5, precision=0.5, positive_rate=0.5,
        pr_auc=0.5, mean_probability=0.5,
    )  # fmt: skip
    return {
        "slm": MadeForSlm(**asdict(identify_model(slm)), embedding_sha256=embedding_hash(load_embedding(slm))),
        "llm": MadeFor(**asdict(identify_model(llm))),
        "weights_sha256": "0" * 64,
        "threshold": 0.5,
        "threshold_rule": "random weights",
        "training": TrainingDescription(
            optimizer="none", rate=0.0, weight_decay=0.0, batch_size=1, max_epochs=0, patience=0, seed=0
        ),
        "validation": quality,
        "test": quality,
    }
