"""How the first process of a model takes the others along: what it does to its KV, and each step that it runs.

Before a step it broadcasts the step's rows and tokens; then all of them run the same pass, each over its own KV.
"""

from ..errors import StartupError
from .attention import AttentionBackend, Plan, Row
from .kv_blocks import KvBlocks
from .rank_link import LeaderLink
from .rank_orders import Assign, Clear, Forward
from .runner import Output, Runner


class LeaderBackend:
    """The first process's backend; what is done to it is done to the others' as well, before the next step."""

    def __init__(self, own: AttentionBackend, link: LeaderLink) -> None:
        self._own, self._link = own, link

    def assign(self, slot: int, blocks: list[int]) -> None:
        """See `AttentionBackend.assign`."""
        self._link.queue(Assign(slot, tuple(blocks)))
        self._own.assign(slot, blocks)

    def plan(self, rows: list[Row]) -> Plan:
        """See `AttentionBackend.plan`. Of this process alone."""
        return self._own.plan(rows)

    def clear(self, blocks: list[int]) -> None:
        """See `AttentionBackend.clear`."""
        self._link.queue(Clear(tuple(blocks)))
        self._own.clear(blocks)

    def kv_blocks(self) -> KvBlocks:
        """See `AttentionBackend.kv_blocks`, which cannot be given: each process holds a part of every block.

        Raises:
            StartupError: always.
        """
        raise StartupError(
            "with tensor_parallel above 1 a service can neither lend KV nor adopt any: its KV is in parts; unset "
            "lends_kv and adopts_from",
            field="tensor_parallel",
        )


class LeaderRunner:
    """The first process's runner; the others run each step with it."""

    def __init__(self, own: Runner, link: LeaderLink) -> None:
        self._own, self._link = own, link
        self.counts = own.counts

    def forward(self, rows: list[Row], token_ids: list[int]) -> Output:
        """See `Runner.forward`.

        Raises:
            Internal: another process is gone.
        """
        self._link.send(Forward(tuple(rows), tuple(token_ids)))
        return self._own.forward(rows, token_ids)
