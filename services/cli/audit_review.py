"""A person judges decisions on a terminal, one after the other."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from ..audit.review_queue import Answer, Item, ReviewQueue
from ..audit.token_class import TokenClasses

_KEYS = {"d": Answer.DIVERGENT, "n": Answer.NEUTRAL, "s": Answer.SAME, "k": Answer.SKIP}
_BACK, _QUIT = "b", "q"
_HELP = (
    "d divergent: it changes meaning, reasoning or outcome; n neutral: other words, same meaning; s same: no "
    "difference; k skip; b back to the one before; q quit"
)
_MAX_CONTEXT_CHARACTERS = 2000
_ALLOWED_CONTROLS = "\n\t"


class Reviewer:
    """Shows decisions of a queue and writes down the answers."""

    def __init__(self, queue: ReviewQueue, texts: TokenClasses, console: Console) -> None:
        self._queue, self._texts, self._console = queue, texts, console

    def run(self, items: Sequence[Item]) -> None:
        """Ask about each item, until the last one, `q`, Ctrl-C or the end of the input."""
        if not items:
            self._console.print("nothing to review: every decision worth a look has an answer (--again shows them)")
            return
        self._console.print(_HELP, style="dim")
        place = 0
        while place < len(items):
            self._show(items[place], f"{place + 1} of {len(items)}")
            key = self._ask(items[place])
            if key == _QUIT:
                break
            if key == _BACK:
                place = max(0, place - 1)
                continue
            self._queue.answer(items[place], _KEYS[key])
            place += 1
        self._show_totals()

    def _ask(self, item: Item) -> str:
        known = self._queue.answers.get(item.id)
        question = f"d/n/s/k/b/q{f' (now {known})' if known else ''}: "
        while True:
            try:
                key = self._console.input(question).strip().lower()[:1]
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                return _QUIT
            if key in (*_KEYS, _BACK, _QUIT):
                return key
            self._console.print(_HELP, style="dim")

    def _show(self, item: Item, title: str) -> None:
        for token_id in (*item.context, item.proposal, *(() if item.large is None else (item.large,))):
            self._texts.require(token_id)
        context = self._texts.tokenizer.decode(item.context)
        cut = len(context) > _MAX_CONTEXT_CHARACTERS or not item.is_whole
        self._console.print(Rule(title))
        self._console.print(Text(("… " if cut else "") + _safe(context[-_MAX_CONTEXT_CHARACTERS:])))
        large = "not known" if item.large is None else self._texts.text(item.large)
        self._console.print(Text.assemble("small model: ", (self._texts.text(item.proposal), "bold")))
        self._console.print(Text.assemble("large model: ", (large, "bold magenta")))
        self._console.print(Text(_decision(item), style="dim"))

    def _show_totals(self) -> None:
        counts = Counter(self._queue.answers.values())
        told = ", ".join(f"{counts[answer]} {answer}" for answer in Answer if counts[answer]) or "no answers"
        self._console.print(f"{told}; {len(self._queue.open_items)} to go")


def _decision(item: Item) -> str:
    score = "no score" if item.score is None else f"score {item.score:.3f}"
    threshold = "" if item.threshold is None else f", threshold {item.threshold:.3f}"
    return f"{score}{threshold}: {'sent to the large model' if item.routed else 'left to the small model'}"


def _safe(text: str) -> str:
    """Text in which nothing can steer a terminal."""
    return "".join(c if c.isprintable() or c in _ALLOWED_CONTROLS else "\ufffd" for c in text)
