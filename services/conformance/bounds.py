"""Check that parameters out of range are refused at the door, by a message that helps."""

from collections.abc import Iterator
from dataclasses import replace

from ..mesh.routing import Parameters
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2
from .bench import Bench
from .question import Answer
from .result import Finding, passed_unless


async def bad_parameters_are_refused(bench: Bench) -> Finding:
    """Each parameter is refused below and above its range and as NaN; unknown ones are refused, too."""
    cases = [*_bad(bench.description, bench.parameters), ("no-such-parameter", (1.0,), ())]
    question = bench.questions[0]
    questions = [replace(question, parameters={**bench.parameters, name: values}) for name, values, _ in cases]
    answers = await bench.client.ask(questions)
    faults = [
        f"{name} = {', '.join(f'{value:g}' for value in values)}: {fault}"
        for (name, values, said), answer in zip(cases, answers, strict=True)
        if (fault := _fault(answer, name, said))
    ]
    return passed_unless(faults, f"{len(cases)} bad values of {len(bench.description.parameters)} parameters")


def _bad(
    description: model_pb2.PolicyDescription, good: Parameters
) -> Iterator[tuple[str, tuple[float, ...], tuple[str, ...]]]:
    """Names, values that must be refused, and what the message must say."""
    for parameter in description.parameters:
        span = parameter.maximum - parameter.minimum or 1.0
        said = f"{parameter.minimum:g}", f"{parameter.maximum:g}"
        wrong = [parameter.minimum - span, parameter.maximum + span, float("nan")]
        if parameter.is_whole:
            wrong.append(parameter.minimum + 0.5)
        for value in wrong:
            yield parameter.name, (*good[parameter.name][:-1], value), said
        yield parameter.name, (*good[parameter.name], parameter.minimum), said


def _fault(answer: Answer, name: str, said: tuple[str, ...]) -> str:
    error = answer.error
    if error is None:
        return "was served"
    if error.code != pb.ERROR_CODE_INVALID_ARGUMENT or error.field != f"routing.{name}":
        return f"was refused for another reason: {error.message}"
    missing = [number for number in said if number not in error.message]
    return f"the message does not name {' and '.join(missing)}: {error.message}" if missing else ""
