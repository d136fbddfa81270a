"""Make the embedded models: `python -m allroads.training.embedded_pair {tokenizer,llm,mlm,slm}`.

The pair is `slm` and `llm`; `mlm` stands between them, for meshes of three. Each part is written under `models/` as
soon as it is done, with a model card that tells its held-out accuracy. On two idle cores the tokenizer takes seconds,
the LLM about 0.7 s a step, the one between 0.4 s, the SLM (one thread) about 0.2 s.
"""

import argparse
import logging
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from .model_card import write_model_card
from .pretrain import ModelShape, Recipe, accuracy, save_model, train_model
from .problems import problems
from .tokenizer import save_tokenizer, train_tokenizer

logger = logging.getLogger(__name__)

SHAPES = {
    "slm": ModelShape(num_layers=2, width=64),
    "mlm": ModelShape(num_layers=4, width=96),
    "llm": ModelShape(num_layers=8, width=128),
}
RECIPES = {"slm": Recipe(num_steps=950), "mlm": Recipe(num_steps=1600), "llm": Recipe(num_steps=3200)}
NUM_HELD_OUT = 200


def make_model(name: str, models: Path, recipe: Recipe, *, start: Path | None, num_threads: int) -> None:
    """Train one model of the pair, from scratch or on from another, and save it with its card."""
    torch.set_num_threads(num_threads)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(models / "llm")
    validation = list(islice(problems("validation", 0), 100))

    def report(step: int, model: Qwen3ForCausalLM) -> bool:
        logger.info("step %d: %.0f %% of validation problems right", step, 100 * accuracy(model, tokenizer, validation))
        save_model(model, tokenizer, models / f"{name}.part")
        return False

    first = None if start is None else Qwen3ForCausalLM.from_pretrained(start)
    model = train_model(SHAPES[name], recipe, tokenizer, start=first, on_interval=report)
    held_out = accuracy(model, tokenizer, list(islice(problems("test", 0), NUM_HELD_OUT)))
    save_model(model, tokenizer, models / name)
    write_model_card(models / name, name, model, recipe, held_out, NUM_HELD_OUT)
    logger.info("%s: %.1f %% of %d held-out problems right", name, 100 * held_out, NUM_HELD_OUT)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("tokenizer", *SHAPES))
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--num-steps", type=int, help="instead of the recipe's")
    parser.add_argument("--start", type=Path, help="go on from this model, with half the rates and another seed")
    parser.add_argument("--num-threads", type=int, default=2)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if arguments.part == "tokenizer":
        tokenizer = train_tokenizer()
        for name in SHAPES:
            save_tokenizer(tokenizer, arguments.models / name)
    else:
        recipe = RECIPES[arguments.part]
        if arguments.num_steps:
            recipe = replace(recipe, num_steps=arguments.num_steps)
        if arguments.start:
            recipe = replace(recipe, muon_rate=recipe.muon_rate / 2, adam_rate=recipe.adam_rate / 2, seed=1)
        make_model(arguments.part, arguments.models, recipe, start=arguments.start, num_threads=arguments.num_threads)


if __name__ == "__main__":
    main()
