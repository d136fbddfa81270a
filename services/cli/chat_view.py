"""How an answer looks: the LLM's tokens in another colour, in brackets where there is no colour."""

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from .chat_client import Piece, Totals

LLM_STYLE = Style(color="magenta", bold=True)
_ALLOWED_CONTROLS = "\n\t"


class ChatView:
    """Writes answers to `out`, and what is about them to `notes`."""

    def __init__(self, out: Console, notes: Console) -> None:
        # Written to the file itself: a console expands the tabs of code, and may repeat what Ctrl-C cut short.
        self._file, self._notes = out.file, notes
        self._use_colour = out.color_system is not None and not out.no_color
        self._use_brackets = out.no_color or (out.is_terminal and out.color_system is None)
        self._is_open = False

    def show_piece(self, piece: Piece) -> None:
        """Write text as it arrives. What could steer a terminal is shown as a replacement character."""
        text = "".join(c if c.isprintable() or c in _ALLOWED_CONTROLS else "\ufffd" for c in piece.text)
        if piece.by_llm and self._use_colour:
            text = LLM_STYLE.render(text, color_system=ColorSystem.STANDARD)
        self._write(self._bracket(piece.by_llm) + text)

    def end_answer(self) -> None:
        """End the answer's last line."""
        self._write(self._bracket(False) + "\n")

    def show_totals(self, totals: Totals) -> None:
        """How many tokens each model wrote."""
        num_tokens = totals.num_slm_tokens + totals.num_llm_tokens
        share = totals.num_llm_tokens / num_tokens if num_tokens else 0.0
        notes = "; cut off at the token limit" if totals.finish_reason == "length" else ""
        notes += "; finished by the SLM alone, the LLM was out of reach" if totals.is_degraded else ""
        self._notes.print(
            f"{num_tokens} tokens: {totals.num_slm_tokens} by the SLM, {totals.num_llm_tokens} by the LLM "
            f"({share:.1%}){notes}",
            style="dim",
        )

    def _bracket(self, is_wanted: bool) -> str:
        """The bracket that opens or closes here, if one does."""
        if not self._use_brackets or is_wanted == self._is_open:
            return ""
        self._is_open = is_wanted
        return "[" if is_wanted else "]"

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()
