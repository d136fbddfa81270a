"""How tokens are labelled: one typed tree, read from a YAML file."""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from ..errors import StartupError
from ..router.manifest import Part

Count = Annotated[int, Field(gt=0)]


class SameContinuation(Part):
    """Two sentences say the same if their numbers, names and directions do: exact for the embedded pair's language."""

    kind: Literal["same-continuation"] = "same-continuation"


class ExactAnswer(Part):
    """The large model goes on to the end of the answer; does that end as it should?"""

    kind: Literal["exact-answer"] = "exact-answer"
    against: Literal["llm", "reference"] = "llm"
    """The large model's own answer: the last number of both, or all words where it has none. Or the problem's `answer`,
    by the problem's scorer: then every token counts as divergent after which the large model gets it wrong."""


class ModelJudge(Part):
    """What judges that are models have in common."""

    max_tokens: Count = 16
    """Of the judge's reply."""
    max_context_characters: Annotated[int, Field(ge=0)] = 4000
    """How much of question and answer so far it is shown: so much of the end of each."""


class LlmJudge(ModelJudge):
    """The large model itself is asked whether the difference matters."""

    kind: Literal["llm"] = "llm"


class OpenAiJudge(ModelJudge):
    """A model behind an OpenAI-compatible endpoint is asked."""

    kind: Literal["openai"] = "openai"
    url: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")]
    """Where the API begins, such as `https://host/v1`; without a name or password."""
    model: Annotated[str, Field(min_length=1)]
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Environment variable that holds the key. The key itself is neither stored nor logged."""
    max_concurrent: Annotated[int, Field(gt=0, le=1024)] = 8
    """Requests that are open at a time."""


JudgeSettings = Annotated[SameContinuation | ExactAnswer | LlmJudge | OpenAiJudge, Field(discriminator="kind")]


class LabelSettings(Part):
    """What decides the labels, besides models and prompts."""

    judge: JudgeSettings = SameContinuation()
    num_top_logits: Count = 100
    """The small model's largest logits that are kept at each position; the published routers read 100."""
    max_answer_tokens: Count = 256
    """Longer answers are not finished, and are left out."""
    max_sentence_tokens: Count = 48
    """Of a continuation to the end of a sentence."""
    num_sentences: Count = 1
    """Sentence ends at which a continuation ends. Published: 2."""
    problems_per_shard: Count = 64
    """Problems that are worked on together, and written together or not at all."""
    max_step_tokens: Count = 512
    """Token positions that either model computes in a step; replaces the mesh's, which is chosen for waiting users."""


def load_label_settings(path: Path | None, options: dict[str, Any] | None = None) -> LabelSettings:
    """Settings from a YAML file, or the defaults; `options` win over the file.

    Raises:
        StartupError: the file cannot be read, or a value is wrong; the message names the key.
    """
    try:
        content = {} if path is None else yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StartupError(f"cannot read the labelling settings {path}: {error}") from error
    if not isinstance(content, dict):
        raise StartupError(f"the labelling settings {path} must be a mapping of keys to values")
    try:
        return LabelSettings.model_validate({**content, **(options or {})})
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        where = f" in {path}" if path else ""
        raise StartupError(f"labelling settings{where}: {key}: {problem['msg']}", field=key) from error
