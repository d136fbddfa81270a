"""Sampling parameters on the wire and back."""

import secrets

from ..engine.grammar import Grammar
from ..engine.sampling import SamplingParams
from ..mesh.wire import common_pb2 as pb


def sampling_from_wire(wire: pb.SamplingParams, stop_token_ids: frozenset[int]) -> SamplingParams:
    """The parameters of a request; a seed is drawn where it has none.

    Raises:
        InvalidArgument: a value is out of range; names the field.
    """
    return SamplingParams(
        temperature=wire.temperature if wire.HasField("temperature") else 1.0,
        top_p=wire.top_p if wire.HasField("top_p") else 1.0,
        top_k=wire.top_k,
        min_p=wire.min_p,
        seed=wire.seed if wire.HasField("seed") else secrets.randbits(63),
        stop_token_ids=stop_token_ids,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        repetition_penalty=wire.repetition_penalty if wire.HasField("repetition_penalty") else 1.0,
        logit_bias=tuple(sorted(wire.logit_bias.items())),
        min_tokens=wire.min_tokens,
        num_logprobs=wire.num_logprobs if wire.HasField("num_logprobs") else None,
        grammar=_grammar(wire.grammar) if wire.HasField("grammar") else None,
    )


def sampling_to_wire(params: SamplingParams) -> pb.SamplingParams:
    """What a larger tier must know to draw as the home would, and to tell as much of it."""
    grammar = params.grammar
    return pb.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        stop_token_ids=sorted(params.stop_token_ids),
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=dict(params.logit_bias),
        min_tokens=params.min_tokens,
        num_logprobs=params.num_logprobs,
        grammar=None if grammar is None else _grammar_to_wire(grammar),
    )


def _grammar(wire: pb.Grammar) -> Grammar:
    return Grammar(wire.kind, wire.text, frozenset(wire.end_token_ids))


def _grammar_to_wire(grammar: Grammar) -> pb.Grammar:
    return pb.Grammar(kind=grammar.kind, text=grammar.text, end_token_ids=sorted(grammar.end_token_ids))
