"""A run of the labelling, which may be interrupted at any moment and goes on when it is started again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedTokenizerFast

from ..config import MeshSettings, ModelSettings
from ..engine.engine import Engine
from ..errors import StartupError, TokenizerMismatch
from ..gateway.text.tokenizer import load_tokenizer
from ..model_identity import identify_model
from ..problem_file import FileProblem
from ..router.embedding import embedding_hash, hidden_size_of, load_embedding
from ..router.manifest import MadeFor, MadeForSlm
from ..vocabulary import load_vocabulary
from .dataset import (
    MANIFEST_FILE,
    Counts,
    DatasetManifest,
    EngineDescription,
    RunDescription,
    ShardEntry,
    labels_hash,
    load_manifest,
    write_part,
)
from .judging import AnswerJudge, Judge, SentenceJudge
from .labeller import Labeller, Progress
from .model_judges import EndpointJudge, OwnModelJudge
from .problems import Problems, Prompt, encode
from .report import REPORT_FILE, report_of
from .settings import ExactAnswer, JudgeSettings, LabelSettings, LlmJudge, OpenAiJudge
from .shards import Shard, ShardCounts, require_arrow, shard_name, write_shard
from .statistics import measure
from .workplace import claim, clear, exclusive, missing_shards, read_own_shard


class RunProgress(Progress, Protocol):
    """Is told of shards besides."""

    def shards(self, done: int, total: int) -> None:
        """So many of them are written."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is labelled, by whom, and where the rows go."""

    directory: Path
    slm: ModelSettings
    llm: ModelSettings
    settings: LabelSettings
    problems: Problems

    def describe(self) -> RunDescription:
        """All that decides the rows.

        Raises:
            StartupError: the models' files are missing or damaged, or do not share a tokenizer.
        """
        slm, llm = identify_model(self.slm.path), identify_model(self.llm.path)
        return RunDescription(
            slm=MadeForSlm(**asdict(slm), embedding_sha256=embedding_hash(load_embedding(self.slm.path))),
            llm=MadeFor(**asdict(llm)),
            llm_embedding_sha256=embedding_hash(load_embedding(self.llm.path)),
            hidden_size=hidden_size_of(self.slm.path),
            source=self.problems.source,
            problem_seed=self.problems.seed,
            prompts_sha256=self.problems.sha256,
            num_asked=len(self.problems.problems),
            settings=self.settings,
            slm_engine=_describe_engine(self.slm),
            llm_engine=_describe_engine(self.llm),
        )


def plan_run(directory: Path, mesh: MeshSettings, settings: LabelSettings, problems: Problems) -> Run:
    """Choose how the models of a mesh are run to label.

    Raises:
        StartupError: something that can be told before any work is wrong; the message says what.
    """
    require_arrow()
    small, large = load_vocabulary(mesh.slm.path), load_vocabulary(mesh.llm.path)
    if (difference := small.first_difference(large)) is not None:
        raise TokenizerMismatch(
            f"the two models do not share a tokenizer: {difference} ({mesh.slm.path} and {mesh.llm.path}); choose "
            "models of one family",
            field="llm.path",
        )
    if settings.num_top_logits > len(small):
        raise StartupError(
            f"num_top_logits is {settings.num_top_logits}, and the tokenizer has {len(small)} tokens: lower it",
            field="num_top_logits",
        )
    if not large.eos_token_ids:
        raise StartupError(f"the model in {mesh.llm.path} names no token that ends a text, so no answer could end")
    if not problems.problems:
        raise StartupError("there is no problem to label", field="num_problems")
    # One process, one number of threads.
    changed = {
        "max_step_tokens": settings.max_step_tokens,
        "num_threads": max(mesh.slm.num_threads, mesh.llm.num_threads),
    }
    # What only a service needs is left aside.
    slm, llm = (
        ModelSettings(**{**part.model_dump(include=set(ModelSettings.model_fields)), **changed})
        for part in (mesh.slm, mesh.llm)
    )
    return Run(directory, slm, llm, settings, problems)


def label(run: Run, progress: RunProgress, *, restart: bool = False) -> DatasetManifest:
    """Label all problems, or those that an earlier start of the same run has left.

    Args:
        run: what is labelled.
        progress: is told of it.
        restart: whether what the directory holds of any run is thrown away first.

    Raises:
        StartupError: the directory holds another run, another process works in it, or a problem cannot be labelled.
        AllroadsError: the judge cannot judge; what was written stays, and the run can go on.
    """
    description = run.describe()
    with exclusive(run.directory):
        if restart:
            clear(run.directory)
        claim(run.directory, description)
        missing = missing_shards(run.directory, description)
        total = description.num_shards
        progress.shards(total - len(missing), total)
        if missing:
            (run.directory / MANIFEST_FILE).unlink(missing_ok=True)
            work = _Work(run, description)
            for count, index in enumerate(missing, 1):
                work.make(index, progress)
                progress.shards(total - len(missing) + count, total)
        elif (run.directory / MANIFEST_FILE).is_file():
            return load_manifest(run.directory)
        return _finish(run.directory, description)


class _Work:
    """Loaded models, and all prompts."""

    def __init__(self, run: Run, description: RunDescription) -> None:
        tokenizer = load_tokenizer(run.slm.path)
        words = PreTrainedTokenizerFast.from_pretrained(run.slm.path)
        self._run = run
        self._description = description
        self._prompts = encode(tokenizer, run.problems.problems)
        slm, llm = Engine.load(run.slm), Engine.load(run.llm)
        judge = _judge(
            run.settings.judge,
            run.problems.problems,
            lambda own: OwnModelJudge(own, llm, tokenizer, sorted(words.added_tokens_encoder)),
        )
        _require_room(self._prompts, run.settings, min(slm.facts.max_context, llm.facts.max_context), judge)
        self._labeller = Labeller(slm, llm, words, judge, run.settings)

    def make(self, index: int, progress: Progress) -> None:
        """Label the problems of a shard and write it."""
        size = self._run.settings.problems_per_shard
        prompts = self._prompts[index * size : (index + 1) * size]
        labelled = self._labeller.label(prompts, progress)
        counts = ShardCounts(
            run_sha256=self._description.sha256,
            index=index,
            num_asked=len(prompts),
            num_finished=labelled.num_finished,
            num_unfinished=labelled.num_unfinished,
            num_failed=labelled.num_failed,
        )
        write_shard(self._run.directory / shard_name(index), labelled.rows, counts)


def _judge(settings: JudgeSettings, problems: Sequence[FileProblem], own_model: Callable[[LlmJudge], Judge]) -> Judge:
    if isinstance(settings, ExactAnswer):
        return AnswerJudge(settings, problems)
    if isinstance(settings, LlmJudge):
        return own_model(settings)
    return EndpointJudge(settings) if isinstance(settings, OpenAiJudge) else SentenceJudge()


def _require_room(prompts: Sequence[Prompt], settings: LabelSettings, max_context: int, judge: Judge) -> None:
    """Refuse a prompt whose answer and continuations could not be written."""
    room = settings.max_answer_tokens + (0 if judge.reads_answers else settings.max_sentence_tokens)
    for prompt in prompts:
        if len(prompt.token_ids) + room > max_context:
            raise StartupError(
                f"problem {prompt.problem.id!r} has {len(prompt.token_ids)} tokens and its answer may take {room} more "
                f"(max_answer_tokens and max_sentence_tokens), but models and KV pool have room for {max_context}: "
                "shorten the problem, lower these, or raise num_kv_tokens if that is the limit",
                field="max_answer_tokens",
            )


def _describe_engine(settings: ModelSettings) -> EngineDescription:
    return EngineDescription(
        device=settings.device,
        dtype=settings.dtype,
        num_threads=settings.num_threads,
        num_kv_tokens=settings.allotted_kv_tokens,
        block_size_tokens=settings.block_size_tokens,
        max_running=settings.max_running,
        shares_prefixes=settings.shares_prefixes,
    )


def _finish(directory: Path, description: RunDescription) -> DatasetManifest:
    """Read all shards and write what they are, and the report."""
    entries: list[ShardEntry] = []
    counts: list[ShardCounts] = []

    def shards() -> Iterator[Shard]:
        for index in range(description.num_shards):
            shard = read_own_shard(directory, index, description)
            entries.append(ShardEntry(name=shard.path.name, sha256=shard.sha256, num_rows=shard.table.num_rows))
            counts.append(shard.counts)
            yield shard

    statistics = measure(shards())
    manifest = DatasetManifest(
        run=description,
        labels_sha256=labels_hash([entry.sha256 for entry in entries]),
        counts=Counts(
            num_finished=sum(one.num_finished for one in counts),
            num_unfinished=sum(one.num_unfinished for one in counts),
            num_failed=sum(one.num_failed for one in counts),
        ),
        statistics=statistics,
        shards=tuple(entries),
    )
    write_part(directory / REPORT_FILE, report_of(manifest))
    write_part(directory / MANIFEST_FILE, manifest)
    return manifest
