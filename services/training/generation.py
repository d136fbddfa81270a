"""Greedy text of a model for many contexts, in batches, and the features that a router reads off one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

BATCH_SIZE = 128


@dataclass(frozen=True, slots=True)
class Prefill:
    """What a model says at each position of an answer, given all that comes before it."""

    predictions: Tensor
    """int64 [n], its own next token."""
    answer_logprobs: Tensor
    """float32 [n], log-probability of the token that the answer has."""
    top_logits: Tensor
    """float32 [n, k], raw, largest first."""
    hidden_states: Tensor
    """float32 [n, hidden], after the final norm."""


@torch.inference_mode()
def continue_greedily(
    model: PreTrainedModel, contexts: Sequence[Sequence[int]], stop_ids: frozenset[int], max_new_tokens: int
) -> list[list[int]]:
    """Each context's greedy continuation up to and with the first stop token, `max_new_tokens` at most."""
    answers: list[list[int]] = [[] for _ in contexts]
    for part in _batches([len(context) for context in contexts]):
        ids, mask = _padded([contexts[i] for i in part], left=True)
        output: Tensor = model.generate(  # type: ignore[operator] # transformers types it as a module
            ids,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=sorted(stop_ids),
            pad_token_id=0,
        )
        for i, tokens in zip(part, output[:, ids.shape[1] :].tolist(), strict=True):
            stop = next((at for at, token in enumerate(tokens) if token in stop_ids), len(tokens) - 1)
            answers[i] = tokens[: stop + 1]
    return answers


@torch.inference_mode()
def prefill(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], num_top_logits: int
) -> list[Prefill]:
    """One forward pass over each prompt and answer; row i of a result predicts answer token i."""
    results: list[Prefill | None] = [None] * len(prompts)
    texts = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    for part in _batches([len(text) for text in texts]):
        ids, mask = _padded([texts[i] for i in part], left=False)
        hidden = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        for row, i in enumerate(part):
            begin = len(prompts[i]) - 1
            states = hidden[row, begin : begin + len(answers[i])]
            logits = model.get_output_embeddings()(states).float()
            top = logits.topk(num_top_logits, dim=-1)
            answer = torch.tensor(answers[i], dtype=torch.int64)
            logprobs = logits.log_softmax(dim=-1).gather(-1, answer[:, None])[:, 0]
            results[i] = Prefill(logits.argmax(dim=-1), logprobs, top.values, states.float().clone())
    return [result for result in results if result is not None]


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices in batches of like length, so that little is padding."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    for begin in range(0, len(order), BATCH_SIZE):
        yield order[begin : begin + BATCH_SIZE]


def _padded(texts: Sequence[Sequence[int]], *, left: bool) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, int64 [n, longest]."""
    width = max(map(len, texts))
    ids = torch.zeros(len(texts), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        place = slice(width - len(text), width) if left else slice(0, len(text))
        ids[row, place] = torch.tensor(text)
        mask[row, place] = 1
    return ids, mask
