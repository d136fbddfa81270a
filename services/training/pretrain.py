"""Train one model of the embedded pair from scratch.

Rows of packed text: worked problems in chat form with loss on the answer only, and dense drills of bare
sums with loss on the result. Hidden matrices learn by Muon (Jordan et al. 2024), the rest by AdamW;
both rates fall linearly to zero.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from .problems import Problem, drills, problems, read_answer

logger = logging.getLogger(__name__)

ROW_LENGTH = 224
IGNORED = -100


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What sets one model of the pair apart from the other."""

    num_layers: int
    width: int
    num_heads: int = 4
    num_kv_heads: int = 2

    def config(self, tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
        """The Hugging Face configuration of this shape for a tokenizer."""
        return Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=self.width,
            intermediate_size=3 * self.width,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            head_dim=self.width // self.num_heads,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )


@dataclass(frozen=True, slots=True)
class Recipe:
    """How long and how fast to train."""

    num_steps: int
    rows_per_step: int = 32
    muon_rate: float = 0.02
    adam_rate: float = 2e-3
    drill_share: float = 0.15
    num_warmup_steps: int = 100
    seed: int = 0


def train_model(
    shape: ModelShape,
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerFast,
    *,
    start: Qwen3ForCausalLM | None = None,
    compiled: bool = True,
    every: int = 500,
    on_interval: Callable[[int, Qwen3ForCausalLM], bool] = lambda step, model: False,
) -> Qwen3ForCausalLM:
    """Train and return a model in eval mode, fp32.

    `start` is a model to go on from instead of a new one; `on_interval` may end the training by returning True.
    """
    torch.manual_seed(recipe.seed)
    model = start or Qwen3ForCausalLM(shape.config(tokenizer))
    forward = torch.compile(model) if compiled else model
    optimizers = _optimizers(model, recipe)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: _rate(step, recipe)) for o in optimizers]
    rows = _rows(tokenizer, recipe)
    started = time.monotonic()
    for step in range(1, recipe.num_steps + 1):
        batch = torch.stack(list(islice(rows, recipe.rows_per_step)))
        ids, targets = batch[:, 0], batch[:, 1]
        logits = forward(input_ids=ids, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=IGNORED)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        if step % every == 0:
            logger.info(
                "step %d of %d: loss %.4f, %.0f s", step, recipe.num_steps, loss.item(), time.monotonic() - started
            )
            if on_interval(step, model):
                break
    model.eval()
    return model


@torch.inference_mode()
def accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, sample: list[Problem], batch: int = 100
) -> float:
    """Share of problems whose greedy answer is right."""
    model.eval()
    right = 0
    for begin in range(0, len(sample), batch):
        part = sample[begin : begin + batch]
        prompts = [prompt_ids(tokenizer, problem.question) for problem in part]
        width = max(map(len, prompts))
        pad = tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
        out = model.generate(
            ids, attention_mask=(ids != pad).long(), max_new_tokens=200, do_sample=False, pad_token_id=pad
        )
        texts = tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
        right += sum(read_answer(text) == problem.answer for text, problem in zip(texts, part, strict=True))
    model.train()
    return right / len(sample)


def prompt_ids(tokenizer: PreTrainedTokenizerFast, question: str) -> list[int]:
    """Token ids of a question in chat form, up to where the answer begins."""
    return list(
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
    )


def save_model(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write model and tokenizer in the standard Hugging Face layout."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(str(directory))


def _optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(hidden, lr=recipe.muon_rate, weight_decay=0.01),
        torch.optim.AdamW(others, lr=recipe.adam_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _rate(step: int, recipe: Recipe) -> float:
    warm = min(1.0, (step + 1) / recipe.num_warmup_steps)
    return warm * max(0.0, 1 - step / recipe.num_steps)


def _rows(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Iterator[Tensor]:
    """Rows int64 [2, ROW_LENGTH]: token ids, and targets with IGNORED where no loss is wanted."""
    worked = _packed(_worked_documents(tokenizer, recipe.seed))
    sums = _packed(_drill_documents(tokenizer, recipe.seed))
    period = round(1 / recipe.drill_share) if recipe.drill_share else 0
    count = 0
    while True:
        count += 1
        yield next(sums if period and count % period == 0 else worked)


def _packed(documents: Iterator[tuple[list[int], list[int]]]) -> Iterator[Tensor]:
    ids: list[int] = []
    targets: list[int] = []
    for context, continuation in documents:
        ids += context + continuation
        targets += [IGNORED] * len(context) + continuation
        while len(ids) >= ROW_LENGTH:
            yield torch.tensor([ids[:ROW_LENGTH], targets[:ROW_LENGTH]])
            ids, targets = ids[ROW_LENGTH:], targets[ROW_LENGTH:]


def _worked_documents(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    source = problems("train", seed)
    while True:
        block = list(islice(source, 512))
        solutions = tokenizer([p.solution for p in block], add_special_tokens=False)["input_ids"]
        for problem, solution in zip(block, solutions, strict=True):
            yield prompt_ids(tokenizer, problem.question), [*solution, tokenizer.eos_token_id]


def _drill_documents(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    for sum_text, result in drills(seed):
        yield tokenizer.encode(sum_text + " ")[:-1], tokenizer.encode(result)
