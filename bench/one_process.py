"""R2R on our engine in one thread of one process: both models and the router called directly, no messages.

What the mesh would be if talking cost nothing and nothing ran side by side. Same batches (continuous, one
step of the small model for all requests, one of the large for all that were turned down), same answers.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from allroads.config import MeshSettings
from allroads.engine.engine import Engine
from allroads.engine.features import top_logits
from allroads.engine.sampling import SamplingParams
from allroads.engine.sequence import Sequence
from allroads.router.checkpoint import load_router
from allroads.router.r2r_scorer import R2RScorer

_GREEDY = SamplingParams(temperature=0.0)


@dataclass(eq=False, slots=True)
class _Request:
    small: Sequence
    large: Sequence | None = None


class OneProcess:
    """Both engines and the scorer. With as many threads as torch has at the time."""

    def __init__(self, settings: MeshSettings) -> None:
        self._slm = Engine.load(settings.slm)
        self._llm = Engine.load(settings.llm)
        router = load_router(settings.router.path, settings.slm.path)
        self._scorer = R2RScorer(router)
        self._num_top_logits = router.manifest.init_args.logits_size
        self._threshold = router.manifest.threshold
        self._eos = frozenset(self._slm.facts.vocabulary.eos_token_ids + self._llm.facts.vocabulary.eos_token_ids)
        self._requests: dict[Sequence, _Request] = {}

    @torch.inference_mode()
    def answer(self, prompts: Iterable[list[int]], *, concurrency: int, max_tokens: int) -> list[list[int]]:
        """Answers in the order of the prompts, `concurrency` of them at work at any time."""
        waiting = deque(prompts)
        opened: list[Sequence] = []
        while waiting or self._requests:
            while waiting and len(self._requests) < concurrency:
                prompt = waiting.popleft()
                sequence = Sequence(list(prompt), len(prompt) + max_tokens, _GREEDY, len(prompt))
                self._requests[sequence] = _Request(sequence)
                self._slm.open(sequence)
                opened.append(sequence)
            self._slm.admit()
            if turned_down := self._small_step():
                self._large_steps(turned_down)
        return [sequence.tokens[sequence.num_prompt_tokens :] for sequence in opened]

    def _small_step(self) -> list[_Request]:
        """Let the small model write; requests whose proposal was turned down."""
        step = self._slm.step()
        if step is None:
            return []
        features = (top_logits(step.logits, self._num_top_logits), step.hidden_states, torch.tensor(step.proposals))
        turned_down = []
        for sequence, token_id, score in zip(
            step.sequences, step.proposals, self._scorer.score(*features).tolist(), strict=True
        ):
            request = self._requests[sequence]
            if score < self._threshold:
                self._commit(request, token_id)
            else:
                self._slm.pend(sequence)
                turned_down.append(request)
        return turned_down

    def _large_steps(self, requests: list[_Request]) -> None:
        """Let the large model write one token of each request."""
        left = {}
        for request in requests:
            tokens = request.small.tokens
            if request.large is None:
                request.large = Sequence(
                    list(tokens), request.small.max_length, _GREEDY, request.small.num_prompt_tokens
                )
                self._llm.open(request.large)
            else:
                request.large.append(tokens[len(request.large) :])
                self._llm.resume(request.large)
            left[request.large] = request
        self._llm.admit()
        while left:
            step = self._llm.step()
            for sequence, token_id in zip(step.sequences, step.proposals, strict=True) if step else ():
                sequence.append([token_id])
                self._llm.pend(sequence)
                request = left.pop(sequence)
                self._slm.resume(request.small)
                self._commit(request, token_id)

    def _commit(self, request: _Request, token_id: int) -> None:
        request.small.append([token_id])
        if token_id in self._eos or len(request.small) == request.small.max_length:
            del self._requests[request.small]
            self._slm.close(request.small)
            if request.large is not None:
                self._llm.close(request.large)
