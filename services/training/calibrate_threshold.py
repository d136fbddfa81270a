"""`allroads calibrate`: a threshold for a target, chosen on some labelled problems and measured on others."""

import math
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..errors import CheckpointError, StartupError
from ..router.calibration_file import CALIBRATION_FILE, Achieved, Calibration, Target
from ..router.manifest import DataOrigin, MadeFor
from ..router.scorer import Scorer, ScorerFacts
from ..router.scorers import load_scorer
from .dataset import LabelOrigin, LabelSet, split_by_problem
from .fitting import in_parts
from .metrics import inner_quantiles
from .threshold_targets import Side, choose_threshold, side_of
from .train_router import fitting_embedding

_BILLION = 1e9
_SEED = 0


def calibrate_threshold(
    path: Path,
    slm_directory: Path,
    labels: LabelSet,
    origin: LabelOrigin,
    target: Target,
    *,
    slm_dtype: str,
    num_threads: int | None = None,
) -> Calibration:
    """Choose a threshold and measure what it comes to.

    Args:
        path: a scorer of any kind, as `router.path` or `router.scorers` take it.
        slm_directory: the small model.
        labels: labelled tokens. Those that the scorer learned from are left out.
        origin: what they were made from.
        target: what is asked for.
        slm_dtype: in which the small model computed the features.
        num_threads: torch threads; as many as there are now where None.

    Raises:
        CheckpointError: the scorer cannot be loaded, or the labels are of another pair than it was made for.
        StartupError: the target cannot be met.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    share_target = _as_share(target, origin)
    fitting_embedding(slm_directory, origin)
    scorer = load_scorer(path, slm_directory)
    _require_same_llm(scorer.facts, origin.llm)
    chosen_on, held_out, split = _parts(scorer.facts.data, labels, origin)
    scores, held_out_scores = (scores_of(scorer, part) for part in (chosen_on, held_out))
    side = side_of(scorer.facts.name)
    threshold = choose_threshold(side, scores, chosen_on.divergent, share_target)
    return Calibration(
        scorer=scorer.facts.name,
        weights_sha256=scorer.facts.weights_sha256,
        features=scorer.facts.features,
        slm=origin.slm,
        slm_dtype=slm_dtype,
        llm=origin.llm,
        dataset_sha256=origin.labels_sha256,
        dataset_source=origin.source,
        split=split,
        target=target,
        threshold=threshold,
        score_quantiles=inner_quantiles(scores),
        calibration=_achieved(side, threshold, scores, chosen_on, origin),
        held_out=_achieved(side, threshold, held_out_scores, held_out, origin),
    )


def make_target(kind: Literal["recall", "share", "cost"], value: float) -> Target:
    """A target, seen to be in its range as far as that is the same for all models.

    Raises:
        StartupError: it is not.
    """
    limit = math.inf if kind == "cost" else 1.0
    if not (0 < value <= limit or (kind == "share" and value == 0)) or math.isinf(value):
        wanted = {"recall": "above 0 and at most 1", "share": "from 0 to 1", "cost": "above 0"}[kind]
        raise StartupError(f"--target-{kind} must be {wanted}, not {value:g}", field=f"target-{kind}")
    return Target(kind=kind, value=value)


def place_beside(path: Path) -> Path:
    """Where the calibration of a scorer lies unless another place is named: in its directory, or beside its file."""
    return (path if path.is_dir() else path.parent) / CALIBRATION_FILE


def scores_of(scorer: Scorer, labels: LabelSet) -> Tensor:
    """What a scorer would be served as giving, float32 [n].

    Raises:
        StartupError: the labels have too few logits, or some score is not a number.
    """
    num_logits, num_there = scorer.facts.num_top_logits, labels.top_logits.shape[1]
    if num_logits > num_there:
        raise StartupError(
            f"the scorer reads {num_logits} logits a token, but the labels have only {num_there}: label with more",
            field="dataset",
        )

    def forward(rows: LabelSet) -> Tensor:
        features = (rows.top_logits[:, :num_logits].contiguous(), rows.hidden_states, rows.token_ids)
        scorer.check(*features)
        return scorer.score(*features)

    scores = in_parts(forward, labels)
    if bool(scores.isnan().any()):
        raise CheckpointError(f"{int(scores.isnan().sum())} labelled tokens have features that are not numbers")
    return scores


def _as_share(target: Target, origin: LabelOrigin) -> Target:
    """A cost as the share that comes to it; other targets as they are."""
    if target.kind != "cost":
        return target
    low, high = (model.num_parameters / _BILLION for model in (origin.slm, origin.llm))
    if not low <= target.value <= high or low == high:
        raise StartupError(
            f"target-cost must be from {low:.4g} billion parameters a token, the small model alone, to {high:.4g}, the "
            f"large model alone, not {target.value:g}",
            field="target-cost",
        )
    return Target(kind="share", value=(target.value - low) / (high - low))


def _require_same_llm(facts: ScorerFacts, llm: MadeFor) -> None:
    if isinstance(facts.llm, MadeFor) and facts.llm != llm:
        raise CheckpointError(
            f"the labels were made with another large model ({llm.model_id}) than the scorer ({facts.llm.model_id}): "
            "label with that one, or train a router on these labels"
        )


def _parts(learned_from: DataOrigin | None, labels: LabelSet, origin: LabelOrigin) -> tuple[LabelSet, LabelSet, str]:
    """Rows to calibrate on, rows held out, and in words which these are. None that the scorer learned from."""
    if learned_from is not None and learned_from.labels_sha256 == origin.labels_sha256:
        own = split_by_problem(labels, learned_from.split_seed)
        return (
            own.validation,
            own.test,
            "its own validation problems; its test problems held out",
        )
    halves = split_by_problem(labels, _SEED, held_out_share=0.5)
    if not len(halves.validation) or not len(halves.test):
        raise StartupError(
            f"the labels are of {labels.num_problems} problems: at least 2 are needed, one to calibrate on and one "
            "held out",
            field="dataset",
        )
    return halves.validation, halves.test, f"halves by problem, seed {_SEED}"


def _achieved(side: Side, threshold: float, scores: Tensor, labels: LabelSet, origin: LabelOrigin) -> Achieved:
    sent, divergent = side.sent(scores, threshold), labels.divergent > 0
    num_divergent = int(divergent.sum())
    share = int(sent.sum()) / len(labels)
    small, large = origin.slm.num_parameters, origin.llm.num_parameters
    return Achieved(
        num_problems=len(labels.problem_ids.unique()),
        num_tokens=len(labels),
        num_divergent=num_divergent,
        recall=int(sent[divergent].sum()) / num_divergent if num_divergent else None,
        share=share,
        cost=((1 - share) * small + share * large) / _BILLION,
    )
