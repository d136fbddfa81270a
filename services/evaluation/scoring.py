"""An audit for the report: the large model writes everything, and each score meets the token that it was about."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from ..answer_scoring import AnswerScorer
from ..errors import InvalidArgument
from .answers import AnswerLog
from .arms import Arm
from .evaluating import Evaluation
from .measuring import Measuring
from .mesh_client import MeshClient
from .report_file import Reliability

SCORES_FILE = "scores.json"
MAX_AUDITED = 100
"""Problems that are asked in an audit."""


def scored_arms(arms: Sequence[Arm], scorers: dict[str, str | None]) -> list[Arm]:
    """Arms whose policies have scores; `scorers` by policy."""
    return [arm for arm in arms if scorers.get(arm.routing["policy"]) is not None]


async def audit(evaluation: Evaluation, client: MeshClient, arms: Sequence[Arm]) -> None:
    """Ask the first problems once for each arm, acting on none of its decisions; the mesh records them.

    Raises:
        AllroadsError: the mesh is out of reach, or refuses.
    """
    problems, settings = evaluation.problems.problems[:MAX_AUDITED], evaluation.settings
    with AnswerLog(evaluation.directory) as log:
        served = await client.served()
        measuring = Measuring(client, served, problems, AnswerScorer(), log, settings, lambda arm: None)
        gate = asyncio.Semaphore(settings.concurrency)

        async def ask(arm: Arm, index: int) -> None:
            async with gate:
                await measuring.ask(problems[index], {**arm.routing, "mode": "audit"}, index)

        await asyncio.gather(*(ask(arm, index) for arm in arms for index in range(len(problems))))


def save_reliability(directory: Path, found: Sequence[Reliability]) -> None:
    """Keep what an audit found, so that it need not be done again."""
    unfinished = directory / f"{SCORES_FILE}.part"
    unfinished.write_text(json.dumps([one.model_dump() for one in found]) + "\n", encoding="utf-8")
    unfinished.replace(directory / SCORES_FILE)


def read_reliability(directory: Path) -> list[Reliability] | None:
    """What an audit found; None where there was none.

    Raises:
        InvalidArgument: the file is damaged.
    """
    path = directory / SCORES_FILE
    if not path.exists():
        return None
    try:
        return [Reliability.model_validate(one) for one in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, ValidationError) as error:
        raise InvalidArgument(f"{path} is damaged; remove it, and scores are looked at again", field="out") from error
