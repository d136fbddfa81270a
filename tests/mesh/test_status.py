import math

import pytest
from allroads.errors import Code, InvalidArgument, ResourceExhausted, error_of
from allroads.mesh.status import from_wire, to_wire
from allroads.mesh.wire import common_pb2 as pb


@pytest.mark.parametrize("code", list(Code))
def test_an_error_comes_back_as_it_was(code: Code) -> None:
    sent = error_of(code, "too much of it", field="max_tokens")
    sent.retry_after_s = 1.5
    found = from_wire(pb.Error.FromString(to_wire(sent).SerializeToString()))
    assert (type(found), found.code) == (type(sent), code)
    assert (found.message, found.field, found.retry_after_s) == ("too much of it", "max_tokens", 1.5)


@pytest.mark.parametrize(
    ("sent_s", "found_s"),
    [(None, None), (0.0, 0.0), (0.0001, 0.001), (-3.0, 0.0), (math.inf, (2**32 - 1) / 1000)],
)
def test_the_time_to_come_back_is_rounded_up(sent_s: float | None, found_s: float | None) -> None:
    assert from_wire(to_wire(ResourceExhausted("full", retry_after_s=sent_s))).retry_after_s == found_s


def test_an_unknown_code_is_an_internal_error() -> None:
    assert from_wire(pb.Error(code=999, message="?")).code is Code.INTERNAL  # type: ignore[arg-type]
    assert from_wire(to_wire(InvalidArgument("no"))).retry_after_s is None
