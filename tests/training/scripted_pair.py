"""A pair that answers by a script, so that every label is known beforehand."""

from types import SimpleNamespace
from typing import cast

import torch
from allroads.training.pair import Pair
from allroads.training.pretrain import prompt_ids
from torch import Tensor, nn
from transformers import PreTrainedModel

from .small_pair import tokenizer

VOCABULARY = 472


Slips = dict[tuple[str, int], int]
"""Tokens by question and position."""


class Script:
    """What the large model answers to each question, and what the small one proposes instead, and where."""

    def __init__(self, answers: dict[str, str], slips: Slips) -> None:
        self.words = tokenizer()
        eos = self.words.eos_token_id
        self.prompts = {question: prompt_ids(self.words, question) for question in answers}
        self.answers = {q: [*self.words.encode(text), eos] if text else [20] * 300 for q, text in answers.items()}
        self.slips = slips
        self.large_slips: Slips = {}
        """What the large model proposes instead of such an answer when it reads it."""
        self.tails: dict[tuple[str, int], str] = {}
        """How it goes on when it writes from a position, if not with its answer."""

    def question_of(self, ids: list[int]) -> str:
        return next(q for q, prompt in self.prompts.items() if ids[: len(prompt)] == prompt)

    def pair(self) -> Pair:
        slm, llm = _Reader(self, self.slips), _Writer(self, self.large_slips)
        return Pair(cast("PreTrainedModel", slm), cast("PreTrainedModel", llm), self.words)


class _Reader:
    """Its hidden state is the one-hot of the answer's next token, unless it slips there."""

    def __init__(self, script: Script, slips: Slips) -> None:
        self.script, self.slips = script, slips

    def base_model(self, *, input_ids: Tensor, attention_mask: Tensor, **_: object) -> SimpleNamespace:
        hidden = torch.zeros(*input_ids.shape, VOCABULARY)
        for row, (ids, mask) in enumerate(zip(input_ids, attention_mask, strict=True)):
            text = ids[mask.bool()].tolist()
            question = self.script.question_of(text)
            prompt = len(self.script.prompts[question])
            for position in range(len(text) - prompt):
                token = self.slips.get((question, position), text[prompt + position])
                hidden[row, prompt + position - 1, token] = 5.0
        return SimpleNamespace(last_hidden_state=hidden)

    def get_output_embeddings(self) -> nn.Module:
        return nn.Identity()


class _Writer(_Reader):
    """Goes on with its own answer at whatever place it is put, whatever stands before it, unless told otherwise."""

    def generate(self, ids: Tensor, *, attention_mask: Tensor, max_new_tokens: int, **_: object) -> Tensor:
        rows = []
        for row, mask in zip(ids, attention_mask, strict=True):
            context = row[mask.bool()].tolist()
            question = self.script.question_of(context)
            position = len(context) - len(self.script.prompts[question])
            rest = self.script.answers[question][position:]
            if (tail := self.script.tails.get((question, position))) is not None:
                rest = [*self.script.words.encode(tail), self.script.words.eos_token_id]
            rest = rest[:max_new_tokens]
            rows.append(rest + [0] * (max_new_tokens - len(rest)))
        return torch.cat([ids, torch.tensor(rows)], dim=1)


def position_of(script: Script, question: str, token: str, nth: int = 0) -> int:
    tokens = script.words.convert_ids_to_tokens(script.answers[question])
    return [at for at, name in enumerate(tokens) if name == token][nth]


def token_id(script: Script, token: str) -> int:
    return script.words.get_vocab()[token]
