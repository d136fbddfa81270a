"""A tiny pair that agrees often and whose answers end, problems for it, and runs on it."""

import json
from pathlib import Path
from typing import Any

from allroads.config import MeshSettings, load_settings
from allroads.labelling.problems import Problems, problems_of_file
from allroads.labelling.run import Run, plan_run
from allroads.labelling.settings import LabelSettings
from allroads.training.generation import continue_greedily
from allroads.training.pretrain import prompt_ids
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from ..doubles.tiny_pair import write_tiny_pair

CONTEXTS = [[5, 6, 7], [9], [300, 301, 302, 303, 304, 305, 17], [40, 41], [11, 12, 13, 14]]


def write_ending_pair(directory: Path, *, seed: int = 3) -> None:
    """Random models hardly ever write the one token that ends a text, so what they write late ends it, too."""
    write_tiny_pair(directory, likeness=0.7, seed=seed)
    words: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(directory / "slm")
    llm: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory / "llm").eval()
    asked = [prompt_ids(words, _prompt(i)) for i in range(0, 30, 2)]
    free = continue_greedily(llm, [*asked, *CONTEXTS[:3]], frozenset({2}), 40)
    ends = {2} | {max(set(answer), key=answer.index) for answer in free}
    for name in ("slm", "llm"):
        path = directory / name / "generation_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": sorted(ends)}))


def ends_of(pair: Path) -> frozenset[int]:
    return frozenset(json.loads((pair / "llm" / "generation_config.json").read_text())["eos_token_id"])


def _prompt(number: int) -> str:
    # Longer than a KV block in what all have in common.
    return f"Now Aya has 95 apples. Then, Ben gets 2 more pens, so 1 + 2 = 3. Ben has {number} pens and gets more."


def mesh_of(pair: Path, **engine: Any) -> MeshSettings:
    return load_settings(options={name: {"path": str(pair / name), **engine} for name in ("slm", "llm")})


def write_problems(path: Path, count: int) -> Path:
    problems = [{"id": f"p{i}", "prompt": _prompt(i), "answer": str(i)} for i in range(count)]
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    return path


def settings_of(**values: Any) -> LabelSettings:
    small = {"num_top_logits": 8, "max_answer_tokens": 20, "max_sentence_tokens": 12, "problems_per_shard": 4}
    return LabelSettings.model_validate({**small, **values})


def plan(out: Path, pair: Path, problems: Path, engine: dict[str, Any] | None = None, **settings: Any) -> Run:
    asked: Problems = problems_of_file(problems)
    return plan_run(out, mesh_of(pair, **(engine or {})), settings_of(**settings), asked)


class Silent:
    """Progress that only counts."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int]] = []
        self.num_done = 0
        self.seen_shards: list[tuple[int, int]] = []

    def shards(self, done: int, total: int) -> None:
        self.seen_shards.append((done, total))

    def begin(self, phase: str, total: int) -> None:
        assert not self.phases or self.num_done == self.phases[-1][1]
        self.phases.append((phase, total))
        self.num_done = 0

    def advance(self, count: int) -> None:
        self.num_done += count
