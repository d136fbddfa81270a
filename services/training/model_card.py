"""The card that lies beside each embedded model."""

from pathlib import Path

from transformers import Qwen3ForCausalLM

from .pretrain import ROW_LENGTH, Recipe

_CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---
# allroads embedded pair: {title}

Qwen3 architecture, {num_layers} layers, width {width}, {num_parameters:,} parameters, float32, one tokenizer for the
pair. Trained from scratch by `python -m allroads.training.embedded_pair {name}`: {num_steps} steps of {rows} rows of
{row_length} tokens, seed {seed}.

It answers one kind of question: addition and subtraction word problems with numbers up to 99, in English, with worked
steps. It knows nothing else. Rows had {row_length} tokens, so text much longer than that is beyond what it has seen,
although its window is {window} positions.

| held-out problems (split `test`, seed 0) | right, greedy |
|---|---|
| {num_held_out} | {accuracy:.1f} % |
"""

_TITLES = {
    "slm": "the small language model",
    "mlm": "a language model between the two, for meshes of three",
    "llm": "the large language model",
}


def write_model_card(
    directory: Path, name: str, model: Qwen3ForCausalLM, recipe: Recipe, held_out_accuracy: float, num_held_out: int
) -> None:
    """Write `README.md` into the model's directory."""
    text = _CARD.format(
        title=_TITLES[name],
        name=name,
        num_layers=model.config.num_hidden_layers,
        width=model.config.hidden_size,
        num_parameters=model.num_parameters(),
        num_steps=recipe.num_steps,
        rows=recipe.rows_per_step,
        row_length=ROW_LENGTH,
        seed=recipe.seed,
        window=model.config.max_position_embeddings,
        num_held_out=num_held_out,
        accuracy=100 * held_out_accuracy,
    )
    (directory / "README.md").write_text(text)
