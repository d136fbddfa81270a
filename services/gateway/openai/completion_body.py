"""What a completion may ask for: prompts in four shapes, and their echo."""

from ...errors import InvalidArgument
from ..gateway import Prompt
from .fields import PromptField
from .schema import GenerationBody

_MAX_TOKENS = 16
"""OpenAI's default for `/v1/completions`; chat has none but the window."""


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    max_tokens: int | None = _MAX_TOKENS
    """Tokens of the answer at most; 0 only with `echo`. What does not fit the context window is cut off."""
    prompt: PromptField
    """A text, several texts, token ids, or several lists of token ids. Each prompt gives `n` choices."""
    echo: bool = False
    """Whether the answer begins with the prompt; with `logprobs`, those of the largest model are told for it."""
    logprobs: int | None = None
    """From 0 to 20: tell the log-probability of each token, and of so many of the likeliest ones."""
    best_of: int | None = None
    """As in OpenAI's API, where only the best of so many answers are given: here it must equal `n`."""

    @property
    def echoes(self) -> bool:
        """Whether the prompt is shown before the answer."""
        return self.echo

    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens are to be told; None for no log-probabilities at all."""
        return self.logprobs

    def prompts(self) -> list[Prompt]:
        """The prompts, each of which gives `n` choices.

        Raises:
            InvalidArgument: the shape is none of the four, or `best_of` asks for a choice among answers.
        """
        if self.best_of is not None and self.best_of != self.n:
            raise InvalidArgument(f"best_of must equal n, which is {self.n}, or be left out", field="best_of")
        prompt = self.prompt
        if isinstance(prompt, str) or _is_ids(prompt):
            return [prompt]
        if isinstance(prompt, list) and prompt:
            if all(isinstance(item, str) for item in prompt) or all(_is_ids(item) for item in prompt):
                return list(prompt)
            if all(item == [] for item in prompt):
                raise InvalidArgument("the prompt is empty: it must have at least one token", field="prompt")
        raise InvalidArgument("prompt must be a text, token ids, or a list of either, and not empty", field="prompt")


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
