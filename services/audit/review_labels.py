"""Answers of a review as labelled rows, beside those of a dataset, so that a router can learn from them.

The features of a decision are computed again, by one pass of the small model over the tokens before it; that takes
all of these, so decisions whose context was cut are left out.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from ..engine.loading import DTYPES
from ..errors import CheckpointError, StartupError
from ..labelling.dataset import (
    MANIFEST_FILE,
    DatasetManifest,
    ShardEntry,
    labels_hash,
    load_manifest,
    read_shards,
    write_part,
)
from ..labelling.shards import Rows, ShardCounts, read_shard, shard_name, write_shard
from ..labelling.statistics import measure
from ..model_identity import identify_model
from ..router.embedding import embedding_hash, load_embedding
from ..router.manifest import MadeForSlm
from ..training.dataset import Kind
from ..training.whole_directory import require_free, whole_directory
from .review_queue import Answer, Item, ReviewQueue

_KINDS = {Answer.SAME: Kind.IDENTICAL, Answer.NEUTRAL: Kind.NEUTRAL, Answer.DIVERGENT: Kind.DIVERGENT}


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of the answers."""

    num_added: int
    num_cut: int
    """Left out, since the log did not keep their whole context."""
    num_skipped: int
    """Without an answer that is a label."""
    num_otherwise: int
    """Of those added, the ones where the small model's likeliest token is not the one that was judged: it was drawn at
    random, or another model was served."""


def merge_reviewed(queue: ReviewQueue, dataset: Path, slm: Path, out: Path) -> Merged:
    """Write a dataset that has the rows of another and those of a review.

    Args:
        queue: the answers.
        dataset: what `allroads label` wrote.
        slm: the small model of both.
        out: a directory that does not exist yet, or is empty.

    Raises:
        CheckpointError: the dataset or the model is damaged, or it was made with another small model.
        StartupError: `out` is there already, or no answer can become a label.
    """
    require_free(out)
    manifest = load_manifest(dataset)
    _require_same_model(manifest, dataset, slm)
    labelled = [(item, _KINDS[answer]) for item, answer in _answered(queue) if answer in _KINDS]
    whole = [(item, kind) for item, kind in labelled if item.is_whole]
    if not whole:
        raise StartupError(
            f"no answer in the queue can become a label: of {len(labelled)} the log did not keep the whole context. "
            "Set slm.decisions_context to as many tokens as prompts and answers have, serve, and review again",
            field="slm.decisions_context",
        )
    rows, num_otherwise = _rows(whole, slm, manifest, _first_free_problem(dataset, manifest))
    with whole_directory(out) as partial:
        _write(partial, dataset, manifest, rows)
    return Merged(len(whole), len(labelled) - len(whole), len(queue.items) - len(labelled), num_otherwise)


def _answered(queue: ReviewQueue) -> list[tuple[Item, Answer]]:
    return [(queue.items[item_id], answer) for item_id, answer in queue.answers.items()]


def _first_free_problem(dataset: Path, manifest: DatasetManifest) -> int:
    return 1 + max(int(shard.column("problem").max(initial=-1)) for shard in read_shards(dataset, manifest))


def _require_same_model(manifest: DatasetManifest, dataset: Path, slm: Path) -> None:
    embedding = embedding_hash(load_embedding(slm))
    if manifest.slm != MadeForSlm(**asdict(identify_model(slm)), embedding_sha256=embedding):
        raise CheckpointError(f"--slm: the labels in {dataset} were made with another model than {slm}", field="slm")


@torch.inference_mode()
def _rows(
    answered: Sequence[tuple[Item, Kind]], slm: Path, manifest: DatasetManifest, first_problem: int
) -> tuple[Rows, int]:
    """The rows, and of how many the judged token is not the likeliest."""
    model = _load(slm, manifest.run.slm_engine.dtype)
    # By request, as splits go by problem: decisions of one answer must not be on both sides.
    answered = sorted(answered, key=lambda pair: (pair[0].request, pair[0].position))
    problems = {request: n for n, request in enumerate(dict.fromkeys(item.request for item, _ in answered))}
    read = [_read(model, item.context) for item, _ in answered]
    items = [item for item, _ in answered]
    rows = Rows(
        problems=torch.tensor([first_problem + problems[item.request] for item in items]),
        problem_ids=[f"review/{item.request}" for item in items],
        positions=torch.tensor([item.position for item in items], dtype=torch.int32),
        token_ids=torch.tensor([_written(item) for item in items], dtype=torch.int32),
        proposals=torch.tensor([item.proposal for item in items], dtype=torch.int32),
        kinds=torch.tensor([kind for _, kind in answered], dtype=torch.uint8),
        entropies=torch.stack([_entropy(logits) for logits, _ in read]),
        top_logits=torch.stack([logits.topk(manifest.run.num_top_logits).values for logits, _ in read]),
        hidden_states=torch.stack([hidden for _, hidden in read]),
    )
    num_otherwise = sum(int(logits.argmax()) != item.proposal for (logits, _), item in zip(read, items, strict=True))
    return rows, num_otherwise


def _load(slm: Path, dtype: str) -> PreTrainedModel:
    """The small model as the dataset was read with."""
    if dtype not in DTYPES:
        raise CheckpointError(f"the dataset's dtype {dtype!r} is none of {', '.join(DTYPES)}", field="dtype")
    transformers_logging.disable_progress_bar()
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        slm, dtype=DTYPES[dtype], use_safetensors=True, local_files_only=True
    ).eval()
    return model


def _read(model: PreTrainedModel, context: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Logits [vocabulary] and hidden state [hidden] after a context, float32."""
    output = model.base_model(input_ids=torch.tensor([list(context)]), use_cache=False)
    hidden: Tensor = output.last_hidden_state[0, -1]
    return model.get_output_embeddings()(hidden).float(), hidden.float()


def _entropy(logits: Tensor) -> Tensor:
    logprobs = logits.log_softmax(dim=-1)
    return -(logprobs.exp() * logprobs).sum()


def _written(item: Item) -> int:
    """What the answer has there: the large model's token, or the small one's where that is not known."""
    return item.proposal if item.large is None else item.large


def _write(out: Path, dataset: Path, manifest: DatasetManifest, rows: Rows) -> None:
    num_problems = len(rows.problems.unique())
    run = manifest.run.model_copy(
        update={
            "source": f"{manifest.run.source}; and {len(rows)} tokens judged by a person",
            "num_asked": manifest.run.num_asked + num_problems,
        }
    )
    for entry in manifest.shards:
        shutil.copyfile(dataset / entry.name, out / entry.name)
    path = out / shard_name(1 + max(int(entry.name[len("rows-") : -len(".parquet")]) for entry in manifest.shards))
    counts = ShardCounts(
        run_sha256=run.sha256,
        index=len(manifest.shards),
        num_asked=num_problems,
        num_finished=num_problems,
        num_unfinished=0,
        num_failed=0,
    )
    write_shard(path, rows, counts)
    added = read_shard(path, num_top_logits=run.num_top_logits, hidden_size=run.hidden_size)
    entries = (*manifest.shards, ShardEntry(name=path.name, sha256=added.sha256, num_rows=len(rows)))
    merged = manifest.model_copy(
        update={
            "run": run,
            "labels_sha256": labels_hash([entry.sha256 for entry in entries]),
            "counts": manifest.counts.model_copy(update={"num_finished": manifest.counts.num_finished + num_problems}),
            "statistics": measure(chain(read_shards(dataset, manifest), [added])),
            "shards": entries,
        }
    )
    write_part(out / MANIFEST_FILE, merged)
