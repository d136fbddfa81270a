"""Let both models read along reference texts: `python -m allroads.training.references`.

The references are the problems' own worked solutions. At each token it is noted what both models would have
written, and how likely the reference was to them: that is all that Co-LLM (arXiv 2403.03870) learns from.

CITER (arXiv 2502.01976) labels a token by who is right: the small model, else the large one, else by what comes of
the small model's token. For the last case the paper writes the answer to its end as the router of the moment would
route it. Here the large model goes on alone from the small one's token, greedily, and the token is good enough if the
answer is right: the label then depends on that token only, and needs no second round.
"""

import argparse
import logging
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from .dataset import save_labels
from .generation import Prefill, continue_greedily, prefill
from .pair import MAX_ANSWER_TOKENS, Pair, describe_pair, load_pair
from .pretrain import prompt_ids
from .problems import Problem, problems, read_answer
from .reference_set import ReferenceDescription, ReferenceSet
from .sentences import text_of

logger = logging.getLogger(__name__)


def read_references(pair: Pair, asked: Sequence[Problem]) -> ReferenceSet:
    """What both models make of each token of the problems' solutions, the one that ends the text included."""
    prompts = [prompt_ids(pair.tokenizer, problem.question) for problem in asked]
    texts = [[*pair.tokenizer.encode(problem.solution), pair.tokenizer.eos_token_id] for problem in asked]
    small, large = prefill(pair.slm, prompts, texts, 0), prefill(pair.llm, prompts, texts, 0)
    reference = torch.tensor([token for text in texts for token in text])
    proposals = torch.cat([seen.predictions for seen in small])
    slm_right = proposals == reference
    llm_right = torch.cat([seen.predictions for seen in large]) == reference
    neither = ~slm_right & ~llm_right
    logger.info(
        "%d tokens: the slm is right at %.2f %%, only the llm at %.2f %%, neither at %.2f %%",
        len(reference),
        *(100 * float(part.float().mean()) for part in (slm_right, llm_right & ~slm_right, neither)),
    )
    return ReferenceSet(
        problem_ids=torch.repeat_interleave(torch.tensor([len(text) for text in texts])),
        hidden_states=torch.cat([seen.hidden_states for seen in small]),
        slm_logprobs=torch.cat([seen.answer_logprobs for seen in small]),
        llm_logprobs=torch.cat([seen.answer_logprobs for seen in large]),
        slm_right=slm_right,
        llm_right=llm_right,
        rollout_right=_rollouts(pair, asked, prompts, texts, small, neither),
    )


def _rollouts(
    pair: Pair,
    asked: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    small: Sequence[Prefill],
    wanted: Tensor,
) -> Tensor:
    """Is the answer right when the large model goes on from the small one's token? Bool [n], False where not wanted."""
    eos = pair.tokenizer.eos_token_id
    rows, owners, written = [], [], []
    row = 0
    for owner, (text, seen) in enumerate(zip(texts, small, strict=True)):
        for position, proposal in enumerate(seen.predictions.tolist()):
            if wanted[row]:
                rows.append(row)
                owners.append(owner)
                written.append([*text[:position], proposal])
            row += 1
    open_ones = [i for i, tokens in enumerate(written) if tokens[-1] != eos]
    contexts = [[*prompts[owners[i]], *written[i]] for i in open_ones]
    for i, tail in zip(
        open_ones, continue_greedily(pair.llm, contexts, frozenset({eos}), MAX_ANSWER_TOKENS), strict=True
    ):
        written[i] += tail
    right = torch.zeros(len(wanted), dtype=torch.bool)
    for at, owner, tokens in zip(rows, owners, written, strict=True):
        right[at] = read_answer(text_of(pair.tokenizer, tokens)) == asked[owner].answer
    logger.info("%d rollouts, %d with the right answer", len(rows), int(right.sum()))
    return right


def make_references(models: Path, out: Path, *, num_problems: int, seed: int) -> ReferenceDescription:
    """Read the solutions of training problems with the pair in `models`, and write what was found to `out`."""
    pair = load_pair(models)
    references = read_references(pair, list(islice(problems("train", seed), num_problems)))
    slm, llm = describe_pair(models)
    description = ReferenceDescription(
        slm=slm,
        llm=llm,
        source="allroads.training.problems, split train; their worked solutions; rollouts by the llm, greedy",
        problem_seed=seed,
        num_asked=num_problems,
        labels_sha256="",
    )
    return save_labels(out, references, description)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("models"), help="directory with slm/ and llm/")
    parser.add_argument("--out", type=Path, default=Path("build/references"))
    parser.add_argument("--num-problems", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-threads", type=int, default=2)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.num_threads)
    make_references(arguments.models, arguments.out, num_problems=arguments.num_problems, seed=arguments.seed)


if __name__ == "__main__":
    main()
