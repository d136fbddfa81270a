"""Label tokens by the R2R pipeline (arXiv 2505.21600, section 3.2): `python -m allroads.training.labels`.

The large model answers; the small one reads along and proposes at every position. Where it proposes
another token, the large model goes on from that token to the end of the sentence, and a judge compares
the sentence with the one that the large model wrote itself.
"""

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from .dataset import Kind, LabelDescription, LabelSet, save_labels
from .generation import Prefill, continue_greedily, prefill
from .judge import sentences_agree
from .pair import MAX_ANSWER_TOKENS, Pair, describe_pair, load_pair
from .pretrain import prompt_ids
from .problems import problems
from .sentences import sentence_bounds, sentence_end_ids, text_of

logger = logging.getLogger(__name__)

MAX_SENTENCE_TOKENS = 48

Judge = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """A place where the small model proposes another token than the large one wrote."""

    answer: int
    position: int
    proposal: int


def label_questions(
    pair: Pair, questions: Sequence[str], *, num_top_logits: int, judge: Judge = sentences_agree
) -> LabelSet:
    """Label every token of the large model's answers; answers that it does not finish are left out."""
    eos = frozenset({pair.tokenizer.eos_token_id})
    asked = [prompt_ids(pair.tokenizer, question) for question in questions]
    written = continue_greedily(pair.llm, asked, eos, MAX_ANSWER_TOKENS)
    finished = [i for i, answer in enumerate(written) if answer[-1] in eos]
    logger.info("%d of %d answers are finished", len(finished), len(asked))
    prompts, answers = [asked[i] for i in finished], [written[i] for i in finished]
    read = prefill(pair.slm, prompts, answers, num_top_logits)
    mismatches = [
        _Mismatch(number, position, proposal)
        for number, (answer, seen) in enumerate(zip(answers, read, strict=True))
        for position, proposal in enumerate(seen.predictions.tolist())
        if proposal != answer[position]
    ]
    logger.info("%d of %d proposals differ", len(mismatches), sum(map(len, answers)))
    verdicts = _judge_mismatches(pair, prompts, answers, mismatches, judge)
    return _label_set(answers, read, mismatches, verdicts)


def _judge_mismatches(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    mismatches: Sequence[_Mismatch],
    judge: Judge,
) -> list[Kind]:
    """Let the large model finish each sentence from the small one's token, and compare with its own."""
    ends = sentence_end_ids(pair.tokenizer)
    contexts = [[*prompts[m.answer], *answers[m.answer][: m.position], m.proposal] for m in mismatches]
    open_ones = [i for i, mismatch in enumerate(mismatches) if mismatch.proposal not in ends]
    tails: list[list[int]] = [[] for _ in mismatches]
    continued = continue_greedily(pair.llm, [contexts[i] for i in open_ones], ends, MAX_SENTENCE_TOKENS)
    for i, tail in zip(open_ones, continued, strict=True):
        tails[i] = tail
    verdicts = []
    for mismatch, tail in zip(mismatches, tails, strict=True):
        answer = answers[mismatch.answer]
        start, end = sentence_bounds(answer, mismatch.position, ends)
        ours = text_of(pair.tokenizer, [*answer[start : mismatch.position], mismatch.proposal, *tail])
        theirs = text_of(pair.tokenizer, answer[start:end])
        verdicts.append(Kind.NEUTRAL if judge(ours, theirs) else Kind.DIVERGENT)
    return verdicts


def _label_set(
    answers: Sequence[Sequence[int]],
    read: Sequence[Prefill],
    mismatches: Sequence[_Mismatch],
    verdicts: Sequence[Kind],
) -> LabelSet:
    kinds = [torch.full((len(answer),), Kind.IDENTICAL, dtype=torch.uint8) for answer in answers]
    for mismatch, kind in zip(mismatches, verdicts, strict=True):
        kinds[mismatch.answer][mismatch.position] = kind
    return LabelSet(
        top_logits=torch.cat([seen.top_logits for seen in read]),
        hidden_states=torch.cat([seen.hidden_states for seen in read]),
        token_ids=torch.cat([seen.predictions for seen in read]),
        kinds=torch.cat(kinds),
        problem_ids=torch.repeat_interleave(torch.tensor([len(kind) for kind in kinds])),
    )


def make_labels(models: Path, out: Path, *, num_problems: int, seed: int, num_top_logits: int) -> LabelDescription:
    """Label training problems of the pair in `models` and write them to `out`."""
    pair = load_pair(models)
    questions = [problem.question for problem in islice(problems("train", seed), num_problems)]
    labels = label_questions(pair, questions, num_top_logits=num_top_logits)
    for kind in Kind:
        logger.info("%s: %.2f %% of %d", kind.name.lower(), 100 * labels.count(kind) / len(labels), len(labels))
    slm, llm = describe_pair(models)
    description = LabelDescription(
        slm=slm,
        llm=llm,
        source="allroads.training.problems, split train; answers and continuations by the llm, greedy; exact judge",
        problem_seed=seed,
        num_asked=num_problems,
        labels_sha256="",
    )
    return save_labels(out, labels, description)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("models"), help="directory with slm/ and llm/")
    parser.add_argument("--out", type=Path, default=Path("build/labels"))
    parser.add_argument("--num-problems", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-top-logits", type=int, default=32)
    parser.add_argument("--num-threads", type=int, default=2)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.num_threads)
    make_labels(
        arguments.models,
        arguments.out,
        num_problems=arguments.num_problems,
        seed=arguments.seed,
        num_top_logits=arguments.num_top_logits,
    )


if __name__ == "__main__":
    main()
