"""Draft logits on their way to the tiers that judge the drafts, through regions where both ends reach one."""

from collections.abc import Mapping
from itertools import count

import torch

from ..mesh.tensor_sender import TensorSender
from ..mesh.wire import common_pb2 as pb
from .request import Request


class TensorsOut:
    """Leases room for each hand-off that brings logits, until its visit is over. Belongs to the decode thread."""

    def __init__(self, senders: Mapping[int, TensorSender], num_tokens: int) -> None:
        """`senders`: by tier. `num_tokens`: size of the vocabulary; rows of padding stay here."""
        self._senders = senders
        self._num_tokens = num_tokens
        self._numbers = count(1)
        self._leases: dict[int, tuple[int, int]] = {}

    def pack(self, request: Request) -> pb.TensorRef:
        """The logits of a request's drafts, float32 [drafts, vocabulary], for the tier that it visits."""
        self.release(request)
        drafts = request.draft_logits()
        logits = torch.stack(drafts) if drafts else torch.empty(0, self._num_tokens)
        number = next(self._numbers)
        self._leases[request.number] = request.visited, number
        (reference,) = self._senders[request.visited].pack(number, [logits])
        return reference

    def release(self, request: Request) -> None:
        """The tier has read what was sent last, or never will. Harmless when repeated."""
        lease = self._leases.pop(request.number, None)
        if lease is not None:
            tier, number = lease
            self._senders[tier].release(number)
