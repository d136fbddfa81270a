"""The engine: one model, its KV pool, and the four primitives that routing is made of.

*extend* (append known tokens, or drafts whose logits are wanted), *propose* (a step gives each finished row the
model's next token, which nobody has accepted yet), *truncate* (roll back), *pend* and *resume* (keep the KV, skip the
sequence).
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import accumulate

import torch

from ..config import CatchUp, ModelSettings
from ..cuda.launch_counts import LaunchCounts
from ..cuda.upload import upload
from ..errors import StartupError
from ..model_identity import identify_model
from ..model_size import token_kv
from ..vocabulary import Vocabulary, load_vocabulary
from .attention import Row
from .block_pool import BlockPool
from .choices import choose
from .execution import Execution, load_execution
from .kv_adoption import KvAdoption
from .kv_blocks import Allocate, KvBlocks, zeros
from .kv_lending import KvLending
from .loading import load_config
from .matcher import GrammarBuilder
from .opinions import Opinion, Past, first_output, opinion_on, places_of_opinion
from .runner import Output
from .sampling_params import Row as SamplingRow
from .scheduler import Batch, Scheduler
from .sequence import Sequence, State
from .step import Asked, Drafted, Step, take_drafted
from .tensor_parallel import Leader


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What others need to know of the model that an engine runs."""

    model_id: str
    vocabulary: Vocabulary
    num_output_rows: int
    hidden_size: int
    num_parameters: int
    max_context: int
    kv_bytes_per_token: int


class Engine:
    """Runs one model. Belongs to one thread."""

    def __init__(
        self,
        execution: Execution,
        scheduler: Scheduler,
        facts: ModelFacts,
        grammars: GrammarBuilder,
    ) -> None:
        self._runner = execution.runner
        self._backend = execution.backend
        self._draws = execution.draws
        self.recorder = execution.recorder
        """For work that this engine's thread does again and again; None where nothing is recorded."""
        self._grammars = grammars
        self._scheduler = scheduler
        self._suspect: set[int] = set()
        """Blocks that may hold NaN and that others still read."""
        self._lending: KvLending | None = None
        self._adoption: KvAdoption | None = None
        self.facts = facts

    @classmethod
    def load(
        cls,
        settings: ModelSettings,
        *,
        catch_up: CatchUp = "off",
        clock: Callable[[], float] = time.monotonic,
        allocate: Allocate = zeros,
        member: Leader | None = None,
    ) -> "Engine":
        """Load the model that the settings name.

        Args:
            settings: of the model.
            catch_up: when sequences that are ahead are computed.
            clock: in seconds, by which a batch waits for company.
            allocate: gives the memory for the KV pool.
            member: this process, where several run the model and it is the first of them.

        Raises:
            StartupError: its files are missing, damaged, or do not fit each other or the settings.
            Internal: another process of the model ended meanwhile.
        """
        vocabulary = load_vocabulary(settings.path)
        config = load_config(settings.path)
        if config.vocab_size < len(vocabulary):
            raise StartupError(
                f"the model in {settings.path} has {config.vocab_size} output rows for {len(vocabulary)} tokens"
            )
        execution = load_execution(settings, config, len(vocabulary), member, allocate=allocate)
        scheduler = Scheduler(
            BlockPool(execution.num_blocks, settings.block_size_tokens, shares_prefixes=settings.shares_prefixes),
            max_context=execution.max_context,
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            max_step_tokens=settings.max_step_tokens,
            catch_up=catch_up,
            clock=clock,
        )
        identity = identify_model(settings.path)
        facts = ModelFacts(
            model_id=identity.model_id,
            vocabulary=vocabulary,
            num_output_rows=config.vocab_size,
            hidden_size=config.hidden_size,
            num_parameters=identity.num_parameters,
            max_context=execution.max_context,
            kv_bytes_per_token=token_kv(config.to_dict(), settings.path).num_bytes(settings.dtype),
        )
        grammars = GrammarBuilder(settings.path, vocabulary.eos_token_ids)
        return cls(execution, scheduler, facts, grammars)

    @property
    def scheduler(self) -> Scheduler:
        """Who runs and who waits, for its counters."""
        return self._scheduler

    @property
    def launch_counts(self) -> LaunchCounts:
        """How its steps were launched."""
        return self._runner.counts

    @property
    def pool(self) -> BlockPool:
        """The KV pool, for its counters."""
        return self._scheduler.pool

    @property
    def held_s(self) -> float | None:
        """For how many seconds a batch still waits for company, if none comes; None where none waits.

        0 while KV is being copied.
        """
        if self._adoption is not None and self._adoption.is_copying:
            return 0.0
        gate = self._scheduler.gate
        return gate.held_s if gate.is_holding else None

    def launch(self, threshold: int, flush_s: float) -> None:
        """From now on let a batch wait for so many sequences, but none of them longer than so many seconds."""
        self._scheduler.gate.set(threshold, flush_s)

    def open(self, sequence: Sequence) -> None:
        """Let a new sequence in; it waits until its KV is reserved and its grammar is built.

        Raises:
            ContextLengthExceeded: it can never fit; the message has the numbers.
            ResourceExhausted: too many wait.
            InvalidArgument: its grammar is known to be wrong.
        """
        if sequence.sampling.grammar is not None:
            sequence.matcher = self._grammars.matcher(sequence.sampling.grammar)
        self._scheduler.add(sequence)
        if self._adoption is not None:
            self._adoption.begin(sequence)

    def admit(self) -> list[Sequence]:
        """Reserve KV for waiting sequences; those that got it are running now."""
        if self._lending is not None:
            self._lending.expire()
        if self._adoption is not None:
            self._adoption.turn()
        admitted = self._scheduler.admit()
        for sequence in admitted:
            self._backend.assign(sequence.slot, sequence.blocks)
        return admitted

    def pend(self, sequence: Sequence) -> None:
        """Skip a sequence until it is resumed; its KV stays."""
        sequence.move(State.PENDING)

    def resume(self, sequence: Sequence) -> None:
        """Schedule a pending sequence again."""
        sequence.move(State.RUNNING)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forget a sequence's tokens from `length` on. A block that others may share is not written again.

        Nor is the one with the last token that is kept, since that may be fed once more (`Sequence.rewind`).

        Raises:
            Internal: the length is negative or beyond the end.
            ResourceExhausted: a shared block must be replaced, and none is free; nothing was changed.
        """
        first = max(length - 1, 0) // self.pool.block_size
        if first < sequence.num_registered_blocks:
            self._leave_shared(sequence, first)
        sequence.truncate(length)

    def close(self, sequence: Sequence) -> None:
        """Free everything that a sequence holds, whatever its state; what it computed can be shared until reused."""
        if sequence.slot >= 0:
            self.pool.register(sequence.blocks, sequence.tokens[: sequence.num_computed])
        if self._suspect:
            self._clear(self._suspect.intersection(sequence.blocks))
        self._scheduler.remove(sequence)

    @property
    def kv_blocks(self) -> KvBlocks:
        """The KV memory, block by block."""
        return self._backend.kv_blocks()

    def share_kv(self, *, lending: KvLending | None = None, adoption: KvAdoption | None = None) -> None:
        """From now on lend KV to other processes, or look for that of new sequences there before they are admitted."""
        self._lending, self._adoption = lending, adoption

    def give_up(self, blocks: SequenceOf[int]) -> None:
        """See `KvKeeper.give_up`."""
        if self._suspect:
            self._clear(self._suspect.intersection(blocks))
        self.pool.free(blocks)

    def spoil(self, blocks: SequenceOf[int]) -> None:
        """See `KvKeeper.spoil`."""
        if blocks:
            self._backend.clear(list(blocks))

    @torch.inference_mode()
    def step(self) -> Step | None:
        """Run one batch; None where no sequence has tokens to compute, or those that have wait for company."""
        batch = self._scheduler.next_batch()
        if not batch:
            return None
        rows: list[Row] = []
        token_ids: list[int] = []
        for sequence, count in batch:
            start, end = sequence.num_computed, sequence.num_computed + count
            rows.append(Row(sequence.slot, start, end, end - first_output(sequence, end)))
            token_ids += sequence.tokens[start:end]
        output = self._runner.forward(rows, token_ids)
        for sequence, count in batch:
            sequence.num_computed += count
            sequence.num_positions += count
        step = self._propose(batch, rows, output)
        self._scheduler.gate.ended()
        return step

    def _propose(self, batch: Batch, rows: list[Row], output: Output) -> Step:
        """Choose a token for each row that is complete and sound; say what was asked of the others."""
        ends = list(accumulate(row.num_outputs for row in rows))
        wishes: dict[int, SamplingRow] = {}
        asked = [
            self._ask(sequence, row, end, wishes) for (sequence, _), row, end in zip(batch, rows, ends, strict=True)
        ]
        written = [end - 1 for one, end in zip(asked, ends, strict=True) if one.proposes]
        choices = choose(output, wishes, written, self._draws)
        kept: list[int] = []
        sequences: list[Sequence] = []
        opinions: list[Opinion] = []
        drafted: list[Drafted] = []
        failed: list[Sequence] = []
        for (sequence, _), row, end, one in zip(batch, rows, ends, asked, strict=True):
            begin, start = end - row.num_outputs, row.end - row.num_outputs + 1
            chosen = choices.token_ids[begin:end]
            if min(chosen, default=0) < 0:
                self._disown(sequence)
                failed.append(sequence)
                continue
            if one.opinion:
                own = chosen[one.opinion.start - start : one.opinion.stop - start]
                opinions.append(opinion_on(sequence, one.opinion, own))
            if one.has_drafts:
                wanted = slice(begin + max(0, sequence.drafts_from - start), end)
                sequence.draft_logits.append(output.logits[wanted])
                if sequence.keeps_hidden_states:
                    sequence.draft_hidden_states.append(output.hidden_states[wanted])
            if not one.is_complete:
                continue
            if not sequence.is_prompt_registered:
                self._register_prompt(sequence)
            if sequence.draft_logits:
                drafted.append(take_drafted(sequence))
            elif one.proposes:
                kept.append(end - 1)
                sequences.append(sequence)
            else:
                failed.append(sequence)
        logits, hidden_states = output.logits, output.hidden_states
        if len(kept) < len(logits):
            index = upload(kept, logits.device, torch.int64)
            logits, hidden_states = logits[index], hidden_states[index]
        return Step(
            sequences,
            [choices.token_ids[index] for index in kept],
            logits,
            hidden_states,
            [choices.logprobs.get(index) for index in kept],
            opinions,
            drafted,
            failed,
            wanted=[sequence for sequence, _ in batch if not sequence.is_ahead],
            num_positions=sum(count for _, count in batch),
        )

    def _ask(self, sequence: Sequence, row: Row, end: int, wishes: dict[int, SamplingRow]) -> Asked:
        """What a row's outputs, which end at `end` among all, are for. Nothing of what they hold is known yet.

        `wishes`: gets those of the row whose token is not just the likeliest, as `choose` takes them.
        """
        has_drafts = row.end > sequence.drafts_from - 1
        is_complete = not sequence.num_uncomputed and not sequence.is_ahead
        proposes = is_complete and not has_drafts and not sequence.draft_logits and sequence.can_go_on
        opinion = places_of_opinion(sequence, row.end - row.num_outputs + 1, row.num_outputs)
        if not sequence.sampling.is_plain:
            if opinion:
                wishes.update((end - 1 - row.end + length, Past(sequence, length)) for length in opinion)
            if proposes:
                wishes[end - 1] = sequence
        return Asked(is_complete, proposes, has_drafts, opinion)

    def _register_prompt(self, sequence: Sequence) -> None:
        """Let others share a prompt as soon as it is computed; not its last token, which may be fed again."""
        sequence.is_prompt_registered = True
        prompt = sequence.tokens[: sequence.num_prompt_tokens - 1]
        self.pool.register(sequence.blocks, prompt)
        num_blocks = len(prompt) // self.pool.block_size
        sequence.num_registered_blocks = max(sequence.num_registered_blocks, num_blocks)

    def _leave_shared(self, sequence: Sequence, first: int) -> None:
        """Make a sequence's blocks from `first` on its own, so that they can be written again."""
        pool = self.pool
        own = slice(first, sequence.num_registered_blocks)
        if self._lending is not None:
            self._lending.revoke(sequence.blocks[own])
        shared = [index for index in range(own.start, own.stop) if pool.is_shared(sequence.blocks[index])]
        fresh = pool.allocate(len(shared))
        pool.forget([block for block in sequence.blocks[own] if not pool.is_shared(block)])
        pool.free([sequence.blocks[index] for index in shared])
        for index, block in zip(shared, fresh, strict=True):
            sequence.blocks[index] = block
        if shared:
            # A fresh block holds nothing yet: what the kept tokens need of it is computed again.
            sequence.num_computed = min(sequence.num_computed, shared[0] * pool.block_size)
            self._backend.assign(sequence.slot, sequence.blocks)
        sequence.num_registered_blocks = first

    def _disown(self, sequence: Sequence) -> None:
        """Keep NaN in a sequence's KV from whoever gets its blocks next."""
        self.pool.forget(sequence.blocks)
        self._clear(set(sequence.blocks))
        sequence.take_draft_logits()
        sequence.num_computed = 0

    def _clear(self, blocks: set[int]) -> None:
        """Clear blocks whose only holder is about to give them up; the others when theirs does."""
        shared = {block for block in blocks if self.pool.is_shared(block)}
        self._backend.clear(sorted(blocks - shared))
        self._suspect = (self._suspect - blocks) | shared
