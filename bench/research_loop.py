"""The straightforward way to route tokens: one process, one request at a time, a blocking call per token.

Plain transformers with a KV cache for each model and the same rule, threshold and weights as the mesh. It
computes exactly what R2R defines, so its answers are the mesh's; only the serving differs.
"""

import torch
from allroads.config import MeshSettings
from allroads.router.checkpoint import load_router
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel


class CachedModel:
    """A model and its own KV cache of one text."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache = DynamicCache()
        self._num_cached = 0

    def extend(self, tokens: list[int]) -> tuple[Tensor, Tensor]:
        """Feed what is not cached yet; logits [V] and post-norm hidden state [H] at the last token."""
        unseen = tokens[self._num_cached :]
        # The keyword was renamed between versions of the library; both take the cache as it is.
        token_ids = torch.tensor([unseen], device=self._model.device)
        output = self._model.model(token_ids, past_key_values=self._cache, use_cache=True)
        self._num_cached = len(tokens)
        hidden = output.last_hidden_state[0, -1]
        return self._model.lm_head(hidden), hidden


class ResearchLoop:
    """R2R by the book."""

    def __init__(self, settings: MeshSettings) -> None:
        self._slm = AutoModelForCausalLM.from_pretrained(settings.slm.path, dtype=torch.float32).eval()
        self._llm = AutoModelForCausalLM.from_pretrained(settings.llm.path, dtype=torch.float32).eval()
        router = load_router(settings.router.path, settings.slm.path)
        self._classifier, self._embedding = router.classifier, router.embedding
        self._threshold = router.manifest.threshold

    @torch.inference_mode()
    def answer(self, prompt: list[int], *, max_tokens: int, eos_token_id: int) -> tuple[list[int], int]:
        """Token ids of a greedy answer, and how many of them the large model wrote."""
        slm, llm = CachedModel(self._slm), CachedModel(self._llm)
        tokens, num_large = list(prompt), 0
        while len(tokens) < len(prompt) + max_tokens:
            logits, hidden = slm.extend(tokens)
            token_id = int(logits.argmax())
            if self._score(logits, hidden, token_id) >= self._threshold:
                token_id = int(llm.extend(tokens)[0].argmax())
                num_large += 1
            tokens.append(token_id)
            if token_id == eos_token_id:
                break
        return tokens[len(prompt) :], num_large

    def _score(self, logits: Tensor, hidden: Tensor, token_id: int) -> float:
        top = logits.topk(self._classifier.arguments.logits_size).values
        logit = self._classifier(hidden[None], self._embedding[token_id][None], top[None])
        return float(logit.sigmoid())
