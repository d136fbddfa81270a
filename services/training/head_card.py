"""The card that lies beside a scorer over hidden states."""

from pathlib import Path

from torch import nn

from ..router.head_manifest import HeadManifest, ReferenceSplit
from .quality_table import quality_table

_CARD = """\
---
license: apache-2.0
library_name: allroads
---
# allroads scorer: {name}

{what}

{num_parameters:,} parameters; reads the hidden state of `{slm}` after the final norm, at the place where a token
is to be written, and was trained with `{llm}`. It fits these two models only, by parameters, tokenizer
and the small model's very weights, and is refused elsewhere.

Made by `python -m allroads.training.references` (problem seed {problem_seed}) and `python -m
allroads.training.{trainer}` (seed {seed}, AdamW {rate}, weight decay {weight_decay}, batch {batch_size}): both
models read the worked solutions of training problems, whose wording is partly chance.

| split | problems | tokens | SLM right | only LLM right | neither | of these good enough |
|---|---|---|---|---|---|---|
{splits}

Threshold **{threshold:.5f}**: {rule}.

The rare class is {positives}. Of it, at this threshold:

{qualities}

The test split took no part in any choice. `manifest.json` has all of this for machines.
"""

_WHAT = {
    "citer": (
        "train_citer",
        """\
CITER's network (arXiv 2502.01976): hidden state -> probability that the small model suffices. A token is the large
model's where that is below the threshold. The small model suffices where its likeliest token is the reference's; where
only the large model's is, it does not; where neither is, it does if the large model, going on from the small one's
token, comes to the right answer.""",
    ),
    "co-llm": (
        "train_co_llm",
        """\
Co-LLM's head (arXiv 2403.03870): hidden state -> P_defer. One extra row of the small model's output layer, kept apart
from it. A token is the large model's where P_defer is above the threshold. Trained on the weak label "only the large
model is right", then, at a tenth of the rate for half the epochs, on the marginal likelihood of the reference text,
with both models frozen (the paper trains the small one along).""",
    ),
}


def write_head_card(directory: Path, network: nn.Module, manifest: HeadManifest) -> None:
    """Write `README.md` into the scorer's directory."""
    data, training = manifest.data, manifest.training
    trainer, what = _WHAT[manifest.name]
    splits = (("train", data.train), ("validation", data.validation), ("test", data.test))
    text = _CARD.format(
        name=manifest.name,
        what=what,
        trainer=trainer,
        num_parameters=sum(parameter.numel() for parameter in network.parameters()),
        slm=manifest.slm.model_id,
        llm=manifest.llm.model_id,
        problem_seed=data.problem_seed,
        seed=training.seed,
        rate=training.rate,
        weight_decay=training.weight_decay,
        batch_size=training.batch_size,
        splits="\n".join(_split_row(name, part) for name, part in splits),
        threshold=manifest.threshold,
        rule=manifest.threshold_rule,
        positives=manifest.positives,
        qualities=quality_table(manifest, "rare class"),
    )
    (directory / "README.md").write_text(text)


def _split_row(name: str, part: ReferenceSplit) -> str:
    shares = (part.num_slm_right, part.num_llm_right, part.num_neither)
    cells = " | ".join(f"{100 * count / part.num_tokens:.2f} %" for count in shares)
    good = f"{part.num_neither_suffices:,}"
    return f"| {name} | {part.num_problems:,} | {part.num_tokens:,} | {cells} | {good} |"
