"""What comes back from a larger tier: tokens that are taken, and visits that failed."""

from ..errors import AllroadsError, OutOfStep
from ..mesh.status import from_wire
from ..mesh.wire import model_pb2
from .journeys import Journeys
from .request import Place, Request

_TIER = 1


class Visits:
    """Turns a tier's messages into commits and homecomings."""

    def __init__(self, journeys: Journeys) -> None:
        self._journeys = journeys

    def take(self, response: model_pb2.VisitResponse) -> None:
        """Take a message of the tier. What belongs to a request or a visit that is over is left aside."""
        for failure in response.errors:
            if (request := self._journeys.table.numbered(failure.sequence_id)) is not None:
                self._take_error(request, from_wire(failure.error))
        begin = 0
        for number, visit, num_tokens, returned, num_computed in zip(
            response.sequence_ids,
            response.visit_numbers,
            response.num_tokens,
            response.returned,
            response.num_computed_tokens,
            strict=True,
        ):
            token_ids = list(response.token_ids[begin : begin + num_tokens])
            begin += num_tokens
            request = self._journeys.table.numbered(number)
            if request is None or request.place is not Place.AWAY or request.num_visits != visit:
                continue
            request.usage.num_computed_tokens[_TIER] += num_computed
            self._take_tokens(request, token_ids, returned=returned)

    def _take_tokens(self, request: Request, token_ids: list[int], *, returned: bool) -> None:
        """Commit what the tier wrote; bring the request home when its visit is over."""
        kept = self._journeys.ask_policy(request, lambda: request.policy.receive(request.view, token_ids))
        if kept is None:
            return
        for token_id in token_ids[:kept]:
            request.sequence.append([token_id])
            if not self._journeys.commit(request, token_id, _TIER):
                return
        request.tier_length = request.length
        if returned or kept < len(token_ids):
            self._journeys.proceed(request)

    def _take_error(self, request: Request, error: AllroadsError) -> None:
        """A tier that lost its place is told everything again; any other error ends the request."""
        # Either way the tier has freed what it held.
        request.tier_length = 0
        if isinstance(error, OutOfStep) and request.place is Place.AWAY:
            self._journeys.hand_off(request)
        else:
            self._journeys.end(request, error)
