"""The straightforward loop of research code: transformers in one process, one request at a time, no pages, no graphs.

As `bench.research_loop`, with the script of `plugin` in place of the threshold. It waits for the device at each token
it writes, since each decides what comes next.
"""

from pathlib import Path

import torch
from allroads.router.checkpoint import load_router

from ..research_loop import CachedModel
from .made_up import ROUTER_FILE, Note, made_up_model
from .plugin import drawn


class ScriptedLoop:
    """Both models and the router on one device, the models made up anew."""

    def __init__(self, directory: Path, *, dtype: torch.dtype, slm_device: str, llm_device: str) -> None:
        self._slm = made_up_model(directory / "slm", dtype=dtype, note=Note(slm_device, 0))
        self._llm = made_up_model(directory / "llm", dtype=dtype, note=Note(llm_device, 1))
        router = load_router(directory / ROUTER_FILE, directory / "slm")
        self._classifier = router.classifier.to(slm_device)
        self._embedding = router.embedding.to(slm_device)

    @torch.inference_mode()
    def answer(self, prompt: list[int], *, seed: int, share: float, max_tokens: int) -> int:
        """Write an answer of `max_tokens`; how many of them the large model wrote."""
        slm, llm = CachedModel(self._slm), CachedModel(self._llm)
        tokens, num_large = list(prompt), 0
        for position in range(max_tokens):
            logits, hidden = slm.extend(tokens)
            token_id = int(logits.argmax())
            top = logits.topk(self._classifier.arguments.logits_size).values
            score = self._classifier(hidden[None].float(), self._embedding[token_id][None], top[None].float())
            float(score.sigmoid())
            if drawn(seed, position, share):
                token_id = int(llm.extend(tokens)[0].argmax())
                num_large += 1
            tokens.append(token_id)
        return num_large
