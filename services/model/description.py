"""What a model service tells of itself, and whether two of them fit."""

import torch

from ..config import ModelSettings
from ..cuda.runtime import device_uuid
from ..engine.engine import Engine
from ..errors import TokenizerMismatch
from ..mesh.wire import model_pb2, model_pb2_grpc
from ..vocabulary import Vocabulary

_PAGE = 4096


def describe(engine: Engine, settings: ModelSettings, tier: int) -> model_pb2.DescribeResponse:
    """The description of an engine's model."""
    facts, pool = engine.facts, engine.pool
    return model_pb2.DescribeResponse(
        model_id=facts.model_id,
        tier=tier,
        dtype=settings.dtype,
        device=settings.device,
        device_uuid=device_uuid(torch.device(settings.device)),
        tokenizer_hash=facts.vocabulary.hash,
        num_tokens=len(facts.vocabulary),
        num_output_rows=facts.num_output_rows,
        eos_token_ids=facts.vocabulary.eos_token_ids,
        max_context_tokens=facts.max_context,
        block_size_tokens=pool.block_size,
        num_kv_tokens=pool.num_blocks * pool.block_size,
        num_parameters=facts.num_parameters,
        kv_bytes_per_token=facts.kv_bytes_per_token,
    )


def load_of(engine: Engine) -> model_pb2.Load:
    """How full an engine is."""
    scheduler, pool = engine.scheduler, engine.pool
    return model_pb2.Load(
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting,
        num_free_kv_tokens=pool.num_free * pool.block_size,
        num_kv_tokens=pool.num_blocks * pool.block_size,
        num_prompt_tokens=scheduler.num_prompt_tokens,
        num_cached_tokens=scheduler.num_cached_tokens,
    )


def vocabulary_page(vocabulary: Vocabulary, request: model_pb2.GetVocabularyRequest) -> model_pb2.GetVocabularyResponse:
    """A page of tokens, at most `_PAGE` of them."""
    end = request.start + min(request.count, _PAGE)
    return model_pb2.GetVocabularyResponse(
        tokens=vocabulary.tokens[request.start : end], special_tokens=vocabulary.special_tokens
    )


async def require_same_tokenizer(
    mine: Vocabulary, its: model_pb2.DescribeResponse, stub: "model_pb2_grpc.TierServiceAsyncStub"
) -> None:
    """Compare vocabularies by hash; where they differ, fetch the other and name the first difference.

    Raises:
        TokenizerMismatch: they differ.
    """
    if its.tokenizer_hash == mine.hash:
        return
    tokens: list[str] = []
    special: dict[str, str] = {}
    while len(tokens) < its.num_tokens:
        page = await stub.GetVocabulary(model_pb2.GetVocabularyRequest(start=len(tokens), count=_PAGE), timeout=10)
        if not page.tokens:
            break
        tokens += page.tokens
        special = dict(page.special_tokens)
    difference = mine.first_difference(Vocabulary(tuple(tokens), special, ()))
    raise TokenizerMismatch(
        f"{its.model_id} has another tokenizer than this model: {difference or 'the special tokens differ'}; "
        "a mesh needs models that share one"
    )
