"""Judges that are language models: the large one of the pair, or any behind an OpenAI-compatible endpoint."""

import asyncio
import re
from collections.abc import Callable, Sequence
from itertools import groupby

from ..answer_scoring import final_text
from ..engine.engine import Engine
from ..gateway.text.tokenizer import TextTokenizer
from ..judge_endpoint import EndpointSettings, JudgeEndpoint
from .judging import Branch, Comparison
from .settings import LlmJudge, ModelJudge, OpenAiJudge
from .writing import Ask, nobody, write

_TASK = """You compare two ways of going on with an answer. Does the difference between them change the meaning, the \
reasoning, the logic or the conclusion, or is it only another wording? Reply with one word: DIFFERENT if it changes \
any of these, SAME if it is only wording."""
_CASE = """{task}

Question:
{question}

The answer so far:
{context}

First way of going on:
{theirs}

Second way of going on:
{ours}

SAME or DIFFERENT?"""
_END = " [end of the answer]"
_WORD = re.compile(r"\b(same|different)\b", re.IGNORECASE)


class OwnModelJudge:
    """The large model judges itself, greedily, in batches on its own engine."""

    reads_answers = False

    def __init__(
        self, settings: LlmJudge, engine: Engine, tokenizer: TextTokenizer, special_tokens: Sequence[str]
    ) -> None:
        """`special_tokens`: texts that the tokenizer would not read as text."""
        self._settings = settings
        self._special_tokens = special_tokens
        self._engine = engine
        self._tokenizer = tokenizer
        self._final = frozenset(engine.facts.vocabulary.eos_token_ids)

    def agree(self, comparisons: Sequence[Comparison], on_done: Callable[[int], None] = nobody) -> list[bool | None]:
        """See `Judge`. What does not fit the model's context gets no label."""
        texts = asyncio.run(self._encode(comparisons))
        limit = self._settings.max_tokens
        fitting = [i for i, ids in enumerate(texts) if len(ids) + limit <= self._engine.facts.max_context]
        # Those of one answer begin alike.
        groups = [list(group) for _, group in groupby(fitting, key=lambda i: comparisons[i].prompt.index)]
        on_done(len(comparisons) - len(fitting))
        asks = [[Ask(texts[i], limit, self._final) for i in group] for group in groups]
        written = write(self._engine, asks, on_done)
        opinions: list[bool | None] = [None] * len(comparisons)
        for group, replies in zip(groups, written, strict=True):
            for i, reply in zip(group, replies, strict=True):
                if reply is not None:
                    opinions[i] = read_opinion(self._tokenizer.decode(reply))
        return opinions

    async def _encode(self, comparisons: Sequence[Comparison]) -> list[list[int]]:
        cases = [_defused(case_of(one, self._settings), self._special_tokens) for one in comparisons]
        return [await self._tokenizer.encode_chat([{"role": "user", "content": case}]) for case in cases]


class EndpointJudge:
    """Asks an endpoint, a bounded number of questions at a time."""

    reads_answers = False

    def __init__(self, settings: OpenAiJudge) -> None:
        """See that the endpoint can be asked; it is not asked yet.

        Raises:
            StartupError: the variable that should hold the key is not set.
        """
        self._settings = settings
        self._endpoint_settings = EndpointSettings(
            url=settings.url,
            model=settings.model,
            key_variable=settings.api_key_env or "",
            max_tokens=settings.max_tokens,
        )
        # Only for its checks: each batch has a client of its own, since each has a loop of its own.
        JudgeEndpoint(self._endpoint_settings)

    def agree(self, comparisons: Sequence[Comparison], on_done: Callable[[int], None] = nobody) -> list[bool | None]:
        """See `Judge`.

        Raises:
            InvalidArgument: the endpoint refuses.
            Unavailable: it is out of reach, or stays busy.
        """
        return asyncio.run(self._agree(comparisons, on_done))

    async def _agree(self, comparisons: Sequence[Comparison], on_done: Callable[[int], None]) -> list[bool | None]:
        opinions: list[bool | None] = [None] * len(comparisons)
        places = iter(range(len(comparisons)))

        async def ask_in_turn(endpoint: JudgeEndpoint) -> None:
            for place in places:
                case = case_of(comparisons[place], self._settings)
                opinions[place] = read_opinion(await endpoint.ask([{"role": "user", "content": case}]))
                on_done(1)

        try:
            async with JudgeEndpoint(self._endpoint_settings) as endpoint, asyncio.TaskGroup() as tasks:
                for _ in range(self._settings.max_concurrent):
                    tasks.create_task(ask_in_turn(endpoint))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return opinions


def case_of(one: Comparison, settings: ModelJudge) -> str:
    """What a model is asked. What stands the same for all tokens of an answer comes first."""
    limit = settings.max_context_characters
    return _CASE.format(
        task=_TASK,
        question=_end_of(one.prompt.question, limit),
        context=_end_of(one.context, limit) or "(it begins here)",
        theirs=_shown(one.theirs),
        ours=_shown(one.ours),
    )


def read_opinion(reply: str) -> bool | None:
    """Whether a reply says SAME, by its first word of the two; None where it has neither, or is still thinking."""
    if "<think>" in reply and "</think>" not in reply:
        return None
    found = _WORD.search(final_text(reply))
    return None if found is None else found[1].lower() == "same"


def _shown(branch: Branch) -> str:
    return branch.text + _END * branch.ends


def _end_of(text: str, limit: int) -> str:
    return text if len(text) <= limit else "…" + text[len(text) - limit :]


def _defused(text: str, special_tokens: Sequence[str]) -> str:
    """A text in which nothing is read as a special token, so that what was written cannot end the question."""
    for token in special_tokens:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text
