"""Fits a published router to the small model that it is served with, of which its file tells next to nothing."""

import hashlib
import logging
from pathlib import Path

from torch import Tensor

from ..errors import CheckpointError
from ..model_identity import identify_model
from ..policies.r2r import R2R
from .checkpoint_files import fill_module
from .classifier import HiddenStatesTokenLMHeadLogitsClassifier
from .embedding import hidden_size_of, load_embedding
from .loaded_router import LoadedRouter
from .manifest import MadeFor
from .official_file import OfficialFile, read_official
from .router_manifest import AssumedManifest

logger = logging.getLogger(__name__)

SUFFIX = ".pt"
_INPUT = "combined_projection.weight"


def load_official(path: Path, slm_directory: Path) -> LoadedRouter:
    """Load a published router for a small model, whose own input embedding it reads.

    Such a file does not name the models that it was made for. Sizes are checked, and a warning tells the rest.

    Raises:
        CheckpointError: the file is missing, damaged or refused (see `read_official`), or a size differs from the
            small model's; the message names the key or the tensor.
    """
    official = read_official(path)
    identity = identify_model(slm_directory)
    embedding = load_embedding(slm_directory)
    _require_fit(official, embedding, slm_directory)
    classifier = fill_module(
        lambda: HiddenStatesTokenLMHeadLogitsClassifier(official.arguments, embedding.shape[1]), official.state, path
    )
    logger.warning(
        "%s is a published checkpoint, which does not tell what it was made for: its sizes fit %s, but neither the "
        "small model's weights and tokenizer nor the large model could be compared; see that they are the right ones",
        path,
        identity.model_id,
    )
    manifest = AssumedManifest(
        init_args=official.arguments,
        slm=MadeFor(
            model_id=identity.model_id,
            num_parameters=identity.num_parameters,
            tokenizer_hash=identity.tokenizer_hash,
        ),
        weights_sha256=_hash_of(path),
        threshold=_threshold(official),
    )
    return LoadedRouter(classifier, embedding.float(), manifest)


def _require_fit(official: OfficialFile, embedding: Tensor, slm_directory: Path) -> None:
    arguments = official.arguments
    for what, its, right in (
        ("init_args.hidden_states_size", arguments.hidden_states_size, hidden_size_of(slm_directory)),
        (f"the embedding size by {_INPUT}", _embedding_size(official), embedding.shape[1]),
        ("the shape of token_embeddings.weight", official.embedding_shape, tuple(embedding.shape)),
    ):
        if its is not None and its != right:
            raise CheckpointError(
                f"{official.path} was made for another small model than the one in {slm_directory}: {what} is {its}, "
                f"not {right}; serve the model that it was made for, or take another router"
            )
    if arguments.logits_size > len(embedding):
        raise CheckpointError(
            f"{official.path}: init_args.logits_size is {arguments.logits_size}, but the small model in "
            f"{slm_directory} has only {len(embedding)} logits; take another router",
            field="init_args.logits_size",
        )


def _embedding_size(official: OfficialFile) -> int | None:
    """By the width of the layer that reads [hidden state, embedding, projected logits]; None where it has no width."""
    projection = official.state.get(_INPUT)
    if projection is None or projection.ndim != 2:
        return None
    return projection.shape[1] - 2 * official.arguments.hidden_states_size


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _threshold(official: OfficialFile) -> float:
    if official.threshold is not None:
        return official.threshold
    (default,) = (p.default for p in R2R.parameters if p.name == "threshold")
    if not isinstance(default, float):
        raise TypeError("the policy's threshold has no default")
    logger.warning(
        "%s holds no threshold (common_args.threshold is None): requests that name none get %g, the policy's own",
        official.path,
        default,
    )
    return default
