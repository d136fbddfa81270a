"""Asks a mesh every problem in every way, and keeps what it answers.

Arms take turns, a few problems at a time, so that a slow minute of the machine hits all alike.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..answer_scoring import AnswerScorer
from ..errors import Unavailable
from ..problem_file import FileProblem
from .answers import Answer, AnswerLog, ShownToken
from .arms import Arm, RunSettings
from .mesh_client import MeshClient, Reply, ServedModel

_TURN = 4
"""Problems for each client before the next arm has its turn."""

OnAnswer = Callable[[Arm], None]


@dataclass(frozen=True, slots=True)
class Measuring:
    """What all arms have in common."""

    client: MeshClient
    served: ServedModel
    problems: Sequence[FileProblem]
    scorer: AnswerScorer
    log: AnswerLog
    settings: RunSettings
    on_answer: OnAnswer

    async def measure(self, arms: Sequence[Arm], num_problems: int | None = None) -> None:
        """Have all answers of these arms, to all problems or to the first ones.

        Raises:
            AllroadsError: the mesh or the judge is out of reach, or refuses.
        """
        problems = self.problems[:num_problems]
        turn = _TURN * self.settings.concurrency
        for start in range(0, len(problems), turn):
            for arm in arms:
                await self._turn(arm, range(start, min(start + turn, len(problems))))

    async def _turn(self, arm: Arm, indices: range) -> None:
        gate = asyncio.Semaphore(self.settings.concurrency)
        wanted = [index for index in indices if not self.log.has(arm.key, self.problems[index].id)]
        tasks = [asyncio.create_task(self._answer(arm, index, gate)) for index in wanted]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, arm: Arm, index: int, gate: asyncio.Semaphore) -> None:
        problem = self.problems[index]
        async with gate:
            reply = await self.ask(problem, arm.routing, index, has_logprobs=arm.has_logprobs)
        if reply.body is None:
            answer = _none(arm, problem, reply, self.served)
        else:
            text = str(reply.body["choices"][0]["message"]["content"] or "")
            answer = _read(arm, problem, reply, text, right=await self.scorer.is_right(problem, text))
        self.log.add(answer)
        self.on_answer(arm)

    async def ask(
        self, problem: FileProblem, routing: dict[str, Any], index: int, *, has_logprobs: bool = False
    ) -> Reply:
        """One answer of the mesh; draws are by the problem's index."""
        body: dict[str, Any] = {"temperature": self.settings.temperature, "seed": self.settings.seed + index}
        if self.settings.max_tokens is not None:
            body["max_tokens"] = self.settings.max_tokens
        if has_logprobs:
            body["logprobs"] = True
        routing = {**routing, "report_tokens": True}
        return await self.client.chat(self.served.name, problem.messages, routing, **body)


def _none(arm: Arm, problem: FileProblem, reply: Reply, served: ServedModel) -> Answer:
    """No answer, to a problem that does not fit."""
    return Answer(
        arm=arm.key,
        problem=problem.id,
        text="",
        right=False,
        finish="error",
        prompt_tokens=0,
        tokens=dict.fromkeys(served.tiers, 0),
        computed=(0,) * len(served.tiers),
        scored=0,
        rejected=0,
        hand_offs=0,
        tiers=(),
        degraded=False,
        started_s=reply.started_s,
        ended_s=reply.ended_s,
    )


def _read(arm: Arm, problem: FileProblem, reply: Reply, text: str, *, right: bool | None) -> Answer:
    try:
        body = reply.body or {}
        choice, routing = body["choices"][0], body["routing"]
        computed, rejected, drafts = routing["computed_tokens"], routing["rejected_tokens"], routing["drafts"]
        entries = (choice["logprobs"] or {}).get("content") or []
        return Answer(
            arm=arm.key,
            problem=problem.id,
            text=text,
            right=right,
            finish=choice["finish_reason"],
            prompt_tokens=body["usage"]["prompt_tokens"],
            tokens=routing["tokens"],
            computed=None if computed is None else tuple(computed),
            scored=routing["scored_tokens"],
            rejected=None if rejected is None else rejected + drafts["judged"] - drafts["accepted"],
            hand_offs=routing["hand_offs"],
            tiers=tuple(routing["tiers"]),
            degraded=routing["degraded"],
            started_s=round(reply.started_s, 6),
            ended_s=round(reply.ended_s, 6),
            logprob=sum(entry["logprob"] for entry in entries) / len(entries) if entries else None,
            shown=tuple(
                ShownToken(tuple(entry["bytes"]), tier)
                for entry, tier in zip(entries, routing["tiers"] if entries else (), strict=True)
            ),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(f"the mesh answers in another form than this version reads ({error!r})") from error
