"""Log-probabilities of prompts: what the model thinks of each token of a text that it did not write.

A prompt is fed as drafts are, whose logits a pass gives at all places. No KV of an earlier request is used, since only
what is fed gives logits; what was computed can be shared by those that come later. A part of the prompt is fed at a
time, so that logits of a few places only are held, whatever its length.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from ..engine.engine import Engine
from ..engine.logprobs import TokenLogprobs, token_logprobs
from ..engine.sampling_params import SamplingParams
from ..engine.sequence import Sequence
from ..engine.step import Drafted
from ..errors import AllroadsError, InvalidArgument, NotANumber
from ..model.step_clock import Arrival

MAX_PLACES = 128
"""Places whose logits are held at once."""

Answer = list[TokenLogprobs] | AllroadsError
"""An entry for each token but the first, or why there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadPrompt(Arrival):
    """Tell the log-probabilities of these tokens; `tell` is called once, in the decode thread, unless it is left."""

    token_ids: tuple[int, ...]
    num_logprobs: int
    tell: Callable[[Answer], None]


@dataclass(frozen=True, slots=True)
class LeavePrompt(Arrival):
    """Nobody waits for the answer any more."""

    prompt: ReadPrompt


@dataclass(eq=False, slots=True)
class _Reading:
    prompt: ReadPrompt
    sequence: Sequence
    logprobs: list[TokenLogprobs]


class PromptReader:
    """The prompts that are being read. Belongs to the decode thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._readings: dict[Sequence, _Reading] = {}

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._readings

    def take(self, prompt: ReadPrompt) -> None:
        """Begin to read; what cannot be read is told so at once."""
        try:
            self._check(prompt)
            if len(prompt.token_ids) == 1:
                prompt.tell([])
                return
            sequence = Sequence(
                list(prompt.token_ids[:1]),
                max_length=len(prompt.token_ids),
                sampling=SamplingParams(num_logprobs=prompt.num_logprobs),
                num_prompt_tokens=1,
            )
            _feed(sequence, prompt)
            self._engine.open(sequence)
        except AllroadsError as error:
            prompt.tell(error)
            return
        self._readings[sequence] = _Reading(prompt, sequence, [])

    def leave(self, prompt: ReadPrompt) -> None:
        """Free what a prompt holds, if it is still being read."""
        for reading in [reading for reading in self._readings.values() if reading.prompt is prompt]:
            self._close(reading)

    def read(self, drafted: SequenceOf[Drafted]) -> list[Drafted]:
        """Take the parts of prompts out of what a step computed; the rest, which are drafts for others."""
        others: list[Drafted] = []
        for part in drafted:
            if part.sequence in self._readings:
                self._read(self._readings[part.sequence], part)
            else:
                others.append(part)
        return others

    def fail(self, failed: SequenceOf[Sequence]) -> list[Sequence]:
        """Of the sequences for which the model produced NaN end the prompts; the rest."""
        others: list[Sequence] = []
        for sequence in failed:
            if sequence in self._readings:
                reading = self._readings[sequence]
                self._close(reading)
                reading.prompt.tell(NotANumber("the large model produced NaN for this prompt"))
            else:
                others.append(sequence)
        return others

    def _read(self, reading: _Reading, part: Drafted) -> None:
        """Keep the log-probabilities of a part, and feed the next or tell them all."""
        token_ids = reading.prompt.token_ids
        scored = token_ids[part.start : part.start + len(part.logits)]
        entries = token_logprobs(part.logits, [part.sequence] * len(scored), scored)
        reading.logprobs += [entry for entry in entries if entry is not None]
        end = part.start + len(scored)
        if end < len(token_ids):
            part.sequence.append([token_ids[end - 1]])
            _feed(part.sequence, reading.prompt)
        else:
            self._close(reading)
            reading.prompt.tell(reading.logprobs)

    def _check(self, prompt: ReadPrompt) -> None:
        num_tokens = len(self._engine.facts.vocabulary)
        if not prompt.token_ids:
            raise InvalidArgument("the prompt is empty", field="prompt")
        if max(prompt.token_ids) >= num_tokens:
            raise InvalidArgument(
                f"token id {max(prompt.token_ids)} is not in the vocabulary of {num_tokens}", field="prompt"
            )

    def _close(self, reading: _Reading) -> None:
        del self._readings[reading.sequence]
        self._engine.close(reading.sequence)


def _feed(sequence: Sequence, prompt: ReadPrompt) -> None:
    """Draft the next tokens: the place before each, and that of the last, tell of the token that follows."""
    start = len(sequence)
    sequence.draft(list(prompt.token_ids[start : min(start + MAX_PLACES, len(prompt.token_ids)) - 1]))
