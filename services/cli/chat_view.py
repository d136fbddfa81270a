"""How an answer looks: each larger model's tokens in a colour, in brackets where there is no colour."""

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from .chat_client import Piece, Totals

_COLOURS = ("magenta", "cyan", "yellow", "green", "blue", "red", "bright_magenta")
_ALLOWED_CONTROLS = "\n\t"
_SPOKEN = {"slm": "the SLM", "llm": "the LLM"}


def tier_style(tier: int) -> Style:
    """How a larger model's tokens look; tiers count from 1."""
    return Style(color=_COLOURS[(tier - 1) % len(_COLOURS)], bold=True)


class ChatView:
    """Writes answers to `out`, and what is about them to `notes`."""

    def __init__(self, out: Console, notes: Console) -> None:
        # Written to the file itself: a console expands the tabs of code, and may repeat what Ctrl-C cut short.
        self._file, self._notes = out.file, notes
        self._use_colour = out.color_system is not None and not out.no_color
        self._use_brackets = out.no_color or (out.is_terminal and out.color_system is None)
        self._open_tier = 0

    def show_piece(self, piece: Piece) -> None:
        """Write text as it arrives. What could steer a terminal is shown as a replacement character."""
        text = "".join(c if c.isprintable() or c in _ALLOWED_CONTROLS else "\ufffd" for c in piece.text)
        if piece.tier and self._use_colour:
            text = tier_style(piece.tier).render(text, color_system=ColorSystem.STANDARD)
        self._write(self._bracket(piece.tier) + text)

    def end_answer(self) -> None:
        """End the answer's last line."""
        self._write(self._bracket(0) + "\n")

    def show_totals(self, totals: Totals) -> None:
        """How many tokens each model wrote, and the share of each larger one, in its colour."""
        num_tokens = sum(totals.num_tokens.values())
        note = Text(f"{num_tokens} tokens")
        for tier, (name, count) in enumerate(totals.num_tokens.items()):
            note.append(", " if tier else ": ")
            note.append(f"{count} by {_SPOKEN.get(name, name)}", tier_style(tier) if tier else None)
            note.append(f" ({count / max(num_tokens, 1):.1%})" if tier else "")
        note.append("; cut off at the token limit" if totals.finish_reason == "length" else "")
        note.append("; finished by the SLM alone, the LLM was out of reach" if totals.is_degraded else "")
        self._notes.print(note, style="dim")

    def _bracket(self, tier: int) -> str:
        """The brackets that close or open here, if any do."""
        if not self._use_brackets or tier == self._open_tier:
            return ""
        brackets = ("]" if self._open_tier else "") + ("[" if tier else "")
        self._open_tier = tier
        return brackets

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()
