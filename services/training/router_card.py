"""The card that lies beside a router."""

from pathlib import Path

from ..router.router_manifest import RouterManifest, SplitData
from .quality_table import quality_table

_CARD = """\
---
license: apache-2.0
library_name: allroads
---
# allroads router: {name}

R2R's classifier (arXiv 2505.21600), {num_parameters:,} parameters: hidden state after the final norm, proposed token
and the {logits_size} largest raw logits of `{slm}` -> probability that its proposal would change the meaning of the
sentence that `{llm}` writes. Hidden widths {hidden_dims}, expansion {expansion}. It fits these two models only, by
parameters, tokenizer and the small model's very weights, and is refused elsewhere.

Made by {made_by}
(problem seed {problem_seed}, seed {seed}, AdamW {rate}, weight decay {weight_decay}, batch {batch_size}).
Labels follow the R2R pipeline, from: {source}.
Class weights were used in training only; probabilities were calibrated on validation (Platt).

| split | problems | tokens | identical | neutral | divergent |
|---|---|---|---|---|---|
{splits}

Threshold **{threshold:.5f}**: {rule}. Of the divergent class, at this threshold:

{qualities}

The test split took no part in any choice. The share is that of the LLM's own texts; on other text it shifts, and so
does what the threshold means. `manifest.json` has all of this for machines.
"""


def write_router_card(directory: Path, num_parameters: int, manifest: RouterManifest, made_by: str) -> None:
    """Write `README.md` into the router's directory; `made_by` names the commands."""
    data, training, arguments = manifest.data, manifest.training, manifest.init_args
    splits = (("train", data.train), ("validation", data.validation), ("test", data.test))
    text = _CARD.format(
        name=manifest.name,
        num_parameters=num_parameters,
        logits_size=arguments.logits_size,
        slm=manifest.slm.model_id,
        llm=manifest.llm.model_id,
        hidden_dims=list(arguments.hidden_dims),
        expansion=arguments.expansion_factor,
        made_by=made_by,
        source=data.source,
        problem_seed=data.problem_seed,
        seed=training.seed,
        rate=training.rate,
        weight_decay=training.weight_decay,
        batch_size=training.batch_size,
        splits="\n".join(_split_row(name, part) for name, part in splits),
        threshold=manifest.threshold,
        rule=manifest.threshold_rule,
        qualities=quality_table(manifest, "divergent tokens"),
    )
    (directory / "README.md").write_text(text)


def _split_row(name: str, part: SplitData) -> str:
    kinds = (part.num_identical, part.num_neutral, part.num_divergent)
    shares = " | ".join(f"{100 * count / part.num_tokens:.2f} %" for count in kinds)
    return f"| {name} | {part.num_problems:,} | {part.num_tokens:,} | {shares} |"
