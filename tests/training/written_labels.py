"""Labels with a divergent class that can be found, in memory and as a dataset of `allroads label`."""

from pathlib import Path

import torch
from allroads.labelling.dataset import DatasetManifest, RunDescription
from allroads.labelling.run import _finish
from allroads.labelling.shards import Rows, ShardCounts, shard_name, write_shard
from allroads.training.dataset import LabelSet
from allroads.training.pair import describe_pair
from allroads.training.router_fit import RouterRecipe

from .small_pair import WIDTHS

RECIPE = RouterRecipe(
    logits_size=4,
    hidden_dims=(16,),
    normalize_input=False,
    rate=1e-2,
    max_epochs=12,
    batch_size=256,
    target_recall=0.95,
)
TOKENS_PER_PROBLEM, NUM_LOGITS = 20, 8


def synthetic(num_problems: int, share: float, *, seed: int = 0, distance: float = 4.0) -> LabelSet:
    """Divergent tokens lie along one direction of the hidden state, with some noise; 0 lets nothing be found."""
    generator = torch.Generator().manual_seed(seed)
    n = num_problems * TOKENS_PER_PROBLEM
    divergent = torch.rand(n, generator=generator) < share
    hidden = torch.randn(n, WIDTHS["slm"], generator=generator)
    hidden[:, 0] += distance * divergent
    neutral = ~divergent & (torch.rand(n, generator=generator) < 0.05)
    return LabelSet(
        top_logits=torch.randn(n, NUM_LOGITS, generator=generator).sort(descending=True).values,
        hidden_states=hidden,
        token_ids=torch.randint(0, 472, (n,), generator=generator),
        kinds=(2 * divergent + neutral).to(torch.uint8),
        problem_ids=torch.arange(num_problems).repeat_interleave(TOKENS_PER_PROBLEM),
    )


def write_dataset(models: Path, directory: Path, labels: LabelSet, *, dtype: str = "float32") -> DatasetManifest:
    """Write labels as if the pair in `models` had been labelled."""
    slm, llm = describe_pair(models)
    engine = {
        "device": "cpu", "dtype": dtype, "num_threads": 1, "num_kv_tokens": 64, "block_size_tokens": 16,
        "max_running": 4, "shares_prefixes": True,
    }  # fmt: skip
    num_problems = labels.num_problems
    run = RunDescription.model_validate(
        {
            "slm": slm.model_dump(), "llm": llm.model_dump(), "llm_embedding_sha256": "0" * 64,
            "hidden_size": labels.hidden_states.shape[1], "source": "synthetic", "problem_seed": 0,
            "prompts_sha256": "0" * 64, "num_asked": num_problems,
            "settings": {"num_top_logits": labels.top_logits.shape[1], "problems_per_shard": num_problems},
            "slm_engine": engine, "llm_engine": engine,
        }
    )  # fmt: skip
    n = len(labels)
    rows = Rows(
        problems=labels.problem_ids,
        problem_ids=[f"p{number}" for number in labels.problem_ids.tolist()],
        positions=torch.arange(n, dtype=torch.int32),
        token_ids=labels.token_ids.int(),
        proposals=labels.token_ids.int(),
        kinds=labels.kinds,
        entropies=torch.ones(n),
        top_logits=labels.top_logits,
        hidden_states=labels.hidden_states,
    )
    directory.mkdir()
    counts = ShardCounts(
        run_sha256=run.sha256, index=0, num_asked=num_problems, num_finished=num_problems, num_unfinished=0,
        num_failed=0,
    )  # fmt: skip
    write_shard(directory / shard_name(0), rows, counts)
    return _finish(directory, run)
