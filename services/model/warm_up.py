"""Run a model once at every size that matters before anybody asks."""

from ..engine.engine import Engine
from ..engine.sampling import SamplingParams
from ..engine.sequence import Sequence

_PROMPT_LENGTHS = (1, 8, 64)
_NUM_STEPS = 4


def warm_up(engine: Engine) -> None:
    """Prefill and decode a few sequences, then free them.

    Raises:
        AllroadsError: the model does not run.
    """
    params = SamplingParams(temperature=0.0)
    lengths = [length for length in _PROMPT_LENGTHS if length + _NUM_STEPS <= engine.facts.max_context]
    sequences = [Sequence([0] * length, length + _NUM_STEPS, params, length) for length in lengths]
    for sequence in sequences:
        engine.open(sequence)
    engine.admit()
    for _ in range(_NUM_STEPS):
        step = engine.step()
        if step is not None:
            for sequence, token_id in zip(step.sequences, step.proposals, strict=True):
                sequence.append([token_id])
    for sequence in sequences:
        engine.close(sequence)
