"""A process that computes its part of a model and does nothing else: it follows the first one."""

import logging

from ..config import ModelSettings
from ..errors import Internal
from ..vocabulary import load_vocabulary
from .execution import Execution, load_execution
from .loading import load_config
from .rank_orders import Assign, Begin, Clear, Forward, Order, Stop
from .tensor_parallel import Follower

logger = logging.getLogger(__name__)


def follow(settings: ModelSettings, follower: Follower) -> None:
    """Load this process's part of the model and run what the first process runs, until that says stop.

    Raises:
        StartupError: the model cannot be loaded.
        Internal: the first process is gone.
    """
    orders = follower.link.receive()
    if orders == [Stop()]:
        return
    match orders:
        case [Begin(num_kv_tokens)]:
            settings = settings.model_copy(update={"num_kv_tokens": num_kv_tokens})
        case _:
            raise Internal(f"the first order is to begin, and not {orders}")
    num_tokens = len(load_vocabulary(settings.path))
    execution = load_execution(settings, load_config(settings.path), num_tokens, follower)
    logger.info("process %d of %d follows", follower.rank, follower.size)
    while all(_obey(execution, order) for order in follower.link.receive()):
        pass


def _obey(execution: Execution, order: Order) -> bool:
    """Whether there is more to come."""
    match order:
        case Forward(rows, token_ids):
            execution.runner.forward(list(rows), list(token_ids))
        case Assign(slot, blocks):
            execution.backend.assign(slot, list(blocks))
        case Clear(blocks):
            execution.backend.clear(list(blocks))
        case Stop():
            return False
        case Begin():
            raise Internal("the order to begin came twice")
    return True
