"""How long a prompt may be, where the operator allows less than the models' context."""

from collections.abc import Sequence

from ...errors import ContextLengthExceeded


def check_prompt_size(token_ids: Sequence[int], limit: int | None, field: str) -> None:
    """Hold a prompt to a limit of tokens, if there is one.

    Raises:
        ContextLengthExceeded: it is longer.
    """
    if limit is not None and len(token_ids) > limit:
        raise ContextLengthExceeded(f"{field} has {len(token_ids)} tokens, and may have {limit} here", field=field)
