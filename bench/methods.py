"""What each routing method gives and costs on the embedded pair: `python -m bench.methods`.

Every policy at its published defaults (learned ones at their checkpoint's threshold; where requests must name a
parameter, the table says which value was named), then along one parameter. Greedy, held-out problems, through
two real meshes that are up at once: one of the pair, one with the middle model for `me`. In each round every
setting answers the same few problems before the next round begins, and `llm` does so again and again, so that
a slow minute of the machine hits all alike. Speeds are medians of rounds, and so are their ratios to the `llm`
that ran last. Prefixes are not shared between requests: all settings read the same prompts, and the first would
pay for the others.

`--plot FILE` draws the trade-offs, `--write-docs FILE` puts the tables between the markers of a document, and
`--results FILE` takes the figures of an earlier run from the JSON that it printed.
"""

import asyncio
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from allroads.gateway.wilson import wilson_interval
from allroads.training.problems import Problem, problems

from .answers import account
from .mesh import MODEL, Mesh, running_mesh
from .method_plot import draw
from .method_results import Figures, Results
from .method_settings import BASE, METHODS, Method
from .method_tables import show_tables, write_tables
from .report import arguments, environment, finish
from .throughput import tokens_per_second

THREE_MODELS = Path(__file__).parent.parent / "configs" / "embedded-three.yaml"
UNSCORED = "the router service has no scorer of that name"
_UNSHARED = {"ALLROADS_SLM__SHARES_PREFIXES": "false", "ALLROADS_LLM__SHARES_PREFIXES": "false"}
_THREE = {"ALLROADS_MIDDLE__MLM__SHARES_PREFIXES": "false", "ALLROADS_MODEL_NAME": MODEL}


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int
    problems: int
    """For each setting in a round, with 8 requests at once."""
    alone_problems: int
    """The same with one at a time, for the settings of the table."""
    sweep_step: int = 1
    """Every how many-th point of a sweep is taken."""


FULL = Sizes(rounds=6, problems=16, alone_problems=2)
QUICK = Sizes(rounds=1, problems=8, alone_problems=1, sweep_step=5)
_GROUP = 12
"""Settings that are measured before what they are compared with is measured again."""


@dataclass(frozen=True)
class Setting:
    """A mesh and what is asked of it."""

    mesh: Mesh
    routing: Mapping[str, Any]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Those of `routing`, and the defaults of the others."""


class Measured:
    """What a setting's rounds came to at one concurrency."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._problems: list[Problem] = []
        self._replies: list[dict[str, Any]] = []
        self.speeds: list[float] = []
        """Tokens/s of each round."""

    async def run(self, sample: Sequence[Problem], seed: int, concurrency: int) -> None:
        """A round; draws are by problem, `seed` being that of the first."""
        by_question = {problem.question: (seed + index, problem) for index, problem in enumerate(sample)}

        async def ask(question: str) -> int:
            own_seed, problem = by_question[question]
            reply = await self._setting.mesh.chat(question, dict(self._setting.routing), seed=own_seed)
            self._problems.append(problem)
            self._replies.append(reply)
            return int(reply["usage"]["completion_tokens"])

        self.speeds.append(await tokens_per_second(ask, list(sample), concurrency))

    def figures(self, base: "Measured") -> Figures:
        """Quality, shares and speed, the latter over that of `base` too."""
        sums = account(self._replies, self._problems)
        low, high = wilson_interval(sums.num_right, sums.num_answers)
        return Figures(
            policy=self._setting.routing["policy"],
            parameters={name: value for name, value in self._setting.parameters.items() if name != "policy"},
            num_problems=sums.num_answers,
            accuracy=sums.num_right / sums.num_answers,
            accuracy_low=low,
            accuracy_high=high,
            llm_share=sums.llm_share,
            shares=sums.shares,
            llm_positions=sums.computed[-1] / sums.num_positions,
            accepted_drafts=sums.num_accepted / sums.num_drafts if sums.num_drafts else None,
            tokens_per_s=statistics.median(self.speeds),
            over_llm=statistics.median(own / its for own, its in zip(self.speeds, base.speeds, strict=True)),
        )


async def measure(settings: Sequence[Setting], rounds: int, per_round: int, concurrency: int) -> list[Figures]:
    """Figures of each setting, from so many rounds of so many problems each; speeds are compared with the first's."""
    first, *others = settings
    parts = [others[start : start + _GROUP] for start in range(0, len(others), _GROUP)] or [[]]
    groups = [[Measured(setting) for setting in (first, *part)] for part in parts]
    sample = list(islice(problems("test", 0), rounds * per_round))
    for start in range(0, len(sample), per_round):
        for measured in chain(*groups):
            await measured.run(sample[start : start + per_round], start, concurrency)
    figures = [[measured.figures(group[0]) for measured in group] for group in groups]
    return [figures[0][0], *chain(*(own for _, *own in figures))]


async def served_policies(mesh: Mesh) -> dict[str, dict[str, Any]]:
    """The policies that a mesh serves, with the parameters that have a default."""
    reply = await mesh.client.get("/v1/models")
    reply.raise_for_status()
    (card,) = reply.json()["data"]
    return {
        policy["name"]: {one["name"]: one["default"] for one in policy["parameters"] if one["default"] is not None}
        for policy in card["allroads"]["policies"]
    }


async def measure_methods(methods: Sequence[Method], sizes: Sizes) -> Results:
    """All figures of these methods, of which the first is `BASE`."""
    machine = environment()
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(running_mesh(**_UNSHARED))
        mesh_of = dict.fromkeys(methods, pair)
        if middle := [method for method in methods if method.has_middle]:
            three = running_mesh("--config", str(THREE_MODELS), **_UNSHARED, **_THREE)
            mesh_of |= dict.fromkeys(middle, await stack.enter_async_context(three))
        defaults = {mesh: await served_policies(mesh) for mesh in set(mesh_of.values())}

        def setting(method: Method, routing: Mapping[str, Any]) -> Setting:
            mesh = mesh_of[method]
            return Setting(mesh, routing, {**defaults[mesh][method.policy], **routing})

        known = [method for method in methods if method.policy in defaults[mesh_of[method]]]
        served = [setting(method, method.routing) for method in known]
        curves = [(method, parameter) for method in known for parameter in method.sweeps]
        swept = [
            [setting(method, routing) for routing in method.swept(parameter)[:: sizes.sweep_step]]
            for method, parameter in curves
        ]
        await measure(served, 1, 2, 2)  # each is used once before any counts
        alone = await measure(served, sizes.rounds, sizes.alone_problems, 1)
        points = iter(await measure([*served, *chain(*swept)], sizes.rounds, sizes.problems, 8))
    eight = list(islice(points, len(served)))
    sweeps: dict[str, dict[str, list[Figures]]] = {}
    for (method, parameter), settings in zip(curves, swept, strict=True):
        sweeps.setdefault(method.policy, {})[parameter] = list(islice(points, len(settings)))
    return Results(
        rounds=sizes.rounds,
        defaults={one.policy: one for one in eight},
        alone={one.policy: one for one in alone},
        sweeps=sweeps,
        skipped={method.policy: UNSCORED for method in methods if method not in known},
        environment=machine,
    )


def main() -> None:
    """Command line."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", metavar="NAME,...", help="measure these policies, and llm, alone")
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON that --json printed; nothing is measured")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the trade-offs as SVG")
    parser.add_argument("--write-docs", type=Path, metavar="FILE", help="rewrite the tables between its markers")
    options = parser.parse_args()
    if options.write_docs and options.only:
        parser.error("--write-docs needs all policies: leave out --only")
    names = options.only.split(",") if options.only else [method.policy for method in METHODS]
    if unknown := set(names) - {method.policy for method in METHODS}:
        known = ", ".join(method.policy for method in METHODS)
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}; there are {known}")
    if options.results:
        results = Results.from_json(json.loads(options.results.read_text(encoding="utf-8").splitlines()[-1]))
    else:
        methods = [method for method in METHODS if method is BASE or method.policy in names]
        results = asyncio.run(measure_methods(methods, QUICK if options.quick else FULL))
    for name, reason in results.skipped.items():
        print(f"{name} is left out: {reason}", file=sys.stderr)
    show_tables(results)
    if options.plot:
        draw(results, options.plot)
    if options.write_docs:
        write_tables(results, options.write_docs)
    finish(results.to_json(), as_json=options.json)


if __name__ == "__main__":
    main()
