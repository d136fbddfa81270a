"""The engine: one model, its KV pool, and the four primitives that routing is made of.

*extend* (append known tokens), *propose* (a step gives each finished row the model's next token, which
nobody has accepted yet), *truncate* (roll back), *pend* and *resume* (keep the KV, skip the sequence).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import ModelSettings
from ..errors import StartupError
from ..model_identity import identify_model
from ..vocabulary import Vocabulary, load_vocabulary
from .attention import Row, SdpaBackend
from .block_pool import BlockPool
from .loading import DTYPES, load_config, load_model
from .runner import ModelRunner
from .sampling import sample
from .scheduler import Scheduler
from .sequence import Sequence, State


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


@dataclass(frozen=True, slots=True)
class Step:
    """What a step gave: one proposal for each sequence whose tokens are all computed."""

    sequences: list[Sequence]
    proposals: list[int]
    logits: Tensor
    """[len(sequences), output rows], raw, padding at -inf."""
    hidden_states: Tensor
    """[len(sequences), hidden], after the final norm."""
    failed: list[Sequence]
    """Sequences for which the model produced NaN; they have no proposal."""


class Engine:
    """Runs one model. Belongs to one thread."""

    def __init__(self, runner: ModelRunner, backend: SdpaBackend, scheduler: Scheduler, facts: ModelFacts) -> None:
        self._runner = runner
        self._backend = backend
        self._scheduler = scheduler
        self.facts = facts

    @classmethod
    def load(cls, settings: ModelSettings) -> "Engine":
        """Load the model that the settings name.

        Raises:
            StartupError: its files are missing, damaged, or do not fit each other or the settings.
        """
        if torch.device(settings.device).type != "cpu":
            raise StartupError(f"device {settings.device!r} is not supported, only cpu is", field="device")
        vocabulary = load_vocabulary(settings.path)
        config = load_config(settings.path)
        if config.vocab_size < len(vocabulary):
            raise StartupError(
                f"the model in {settings.path} has {config.vocab_size} output rows for {len(vocabulary)} tokens"
            )
        torch.set_num_threads(settings.num_threads)
        model = load_model(settings.path, dtype=settings.dtype, device=settings.device)
        num_blocks = settings.num_kv_tokens // settings.block_size_tokens
        max_context = min(config.max_position_embeddings, num_blocks * settings.block_size_tokens)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        num_kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        backend = SdpaBackend(
            num_layers=config.num_hidden_layers,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            num_blocks=num_blocks,
            block_size=settings.block_size_tokens,
            num_slots=settings.max_running,
            max_blocks=-(-max_context // settings.block_size_tokens),
            dtype=DTYPES[settings.dtype],
            device=torch.device(settings.device),
        )
        scheduler = Scheduler(
            BlockPool(num_blocks, settings.block_size_tokens),
            max_context=max_context,
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            max_step_tokens=settings.max_step_tokens,
        )
        identity = identify_model(settings.path)
        facts = ModelFacts(
            model_id=identity.model_id,
            vocabulary=vocabulary,
            num_output_rows=config.vocab_size,
            hidden_size=config.hidden_size,
            num_parameters=identity.num_parameters,
            max_context=max_context,
            kv_bytes_per_token=2 * config.num_hidden_layers * num_kv_heads * head_dim * DTYPES[settings.dtype].itemsize,
        )
        return cls(ModelRunner(model, backend, len(vocabulary)), backend, scheduler, facts)

    @property
    def pool(self) -> BlockPool:
        """The KV pool, for its counters."""
        return self._scheduler.pool

    @property
    def num_running(self) -> int:
        """Sequences with KV, pending ones included."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for KV."""
        return self._scheduler.num_waiting

    def open(self, sequence: Sequence) -> None:
        """Let a new sequence in; it waits until its KV is reserved.

        Raises:
            ContextLengthExceeded: it can never fit; the message has the numbers.
            ResourceExhausted: too many wait.
        """
        self._scheduler.add(sequence)

    def admit(self) -> list[Sequence]:
        """Reserve KV for waiting sequences; those that got it are running now."""
        admitted = self._scheduler.admit()
        for sequence in admitted:
            blocks = torch.tensor(sequence.blocks, device=self._backend.block_table.device)
            self._backend.block_table[sequence.slot, : len(blocks)] = blocks
        return admitted

    def pend(self, sequence: Sequence) -> None:
        """Skip a sequence until it is resumed; its KV stays."""
        sequence.move(State.PENDING)

    def resume(self, sequence: Sequence) -> None:
        """Schedule a pending sequence again."""
        sequence.move(State.RUNNING)

    def close(self, sequence: Sequence) -> None:
        """Free everything that a sequence holds, whatever its state."""
        self._scheduler.remove(sequence)

    @torch.inference_mode()
    def step(self) -> Step | None:
        """Run one batch; None where no sequence has tokens to compute."""
        batch = self._scheduler.next_batch()
        if not batch:
            return None
        rows: list[Row] = []
        token_ids: list[int] = []
        for sequence, count in batch:
            start, end = sequence.num_computed, sequence.num_computed + count
            rows.append(Row(sequence.slot, start, end))
            token_ids += sequence.tokens[start:end]
        output = self._runner.forward(rows, token_ids)
        for sequence, count in batch:
            sequence.num_computed += count
            sequence.num_positions += count
        return self._propose(batch, output.logits, output.hidden_states)

    def _propose(self, batch: list[tuple[Sequence, int]], logits: Tensor, hidden_states: Tensor) -> Step:
        """Draw a token for each row that is complete and sound."""
        sound = (~logits.isnan().any(dim=-1)).tolist()
        failed = [sequence for (sequence, _), fine in zip(batch, sound, strict=True) if not fine]
        for sequence in failed:
            self._backend.clear(sequence.blocks)
        kept = [row for row, (sequence, _) in enumerate(batch) if sound[row] and not sequence.num_uncomputed]
        if len(kept) < len(batch):
            index = torch.tensor(kept, dtype=torch.int64, device=logits.device)
            logits, hidden_states = logits[index], hidden_states[index]
        sequences = [batch[row][0] for row in kept]
        proposals = (
            sample(logits, [s.sampling for s in sequences], [s.position for s in sequences]).tolist()
            if sequences
            else []
        )
        return Step(sequences, proposals, logits, hidden_states, failed)
