from allroads.gateway.text.stop import StopMatcher
from hypothesis import given
from hypothesis import strategies as st

text = st.text("ab", max_size=30)
stops = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def shown_at_once(whole: str, stops: list[str]) -> tuple[str, bool]:
    """By definition: the match that ends first, of those the longest."""
    for end in range(len(whole) + 1):
        starts = [end - len(stop) for stop in stops if whole[:end].endswith(stop)]
        if starts:
            return whole[: min(starts)], True
    return whole, False


@given(st.lists(text, max_size=8), stops)
def test_any_cut_gives_the_same(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
        if matcher.matched:
            break
    if not matcher.matched:
        shown += matcher.flush()
    assert (shown, matcher.matched) == shown_at_once("".join(pieces), stops)


@given(st.lists(text, max_size=8), stops)
def test_only_what_may_become_a_stop_string_is_held(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    given_text = shown = ""
    for piece in pieces:
        given_text += piece
        shown += matcher.push(piece)
        if matcher.matched:
            return
        held = given_text[len(shown) :]
        assert given_text.startswith(shown)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_without_stop_strings_nothing_is_held() -> None:
    matcher = StopMatcher([])
    assert matcher.push("abc") == "abc"
    assert matcher.flush() == ""
