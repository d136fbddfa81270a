"""A conversation: questions from one place or another, answers on the terminal."""

from collections.abc import Generator
from contextlib import closing
from typing import cast

from rich.console import Console

from ..errors import AllroadsError
from .chat_client import ChatClient, Message, Piece, Totals
from .chat_view import ChatView
from .console import print_error


def ask(client: ChatClient, view: ChatView, messages: list[Message]) -> str:
    """Stream one answer and return its text. Ctrl-C ends the answer, and what had come is the text.

    Raises:
        AllroadsError: what the server said.
    """
    text, totals = "", None
    parts = cast("Generator[Piece | Totals]", client.answer(messages))
    try:
        with closing(parts):
            for part in parts:
                if isinstance(part, Piece):
                    text += part.text
                    view.show_piece(part)
                else:
                    totals = part
    except KeyboardInterrupt:
        pass
    finally:
        if text:
            view.end_answer()
    if totals is not None:
        view.show_totals(totals)
    return text


def converse(client: ChatClient, view: ChatView, notes: Console, *, is_terminal: bool) -> None:
    """Answer question after question until the input ends. An error ends its answer only."""
    messages: list[Message] = []
    if is_terminal:
        notes.print(f"Talking to {client.model()}. Ctrl-C ends an answer, Ctrl-D the conversation.", style="dim")
    while (question := _read_question(notes, is_terminal=is_terminal)) is not None:
        if not question.strip():
            continue
        messages.append({"role": "user", "content": question})
        try:
            answer = ask(client, view, messages)
        except AllroadsError as error:
            print_error(error)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})


def _read_question(notes: Console, *, is_terminal: bool) -> str | None:
    """The next line of the input; None at its end. Ctrl-C drops a line that was begun."""
    while True:
        try:
            return input("> " if is_terminal else "")
        except KeyboardInterrupt:
            notes.print()
        except EOFError:
            if is_terminal:
                notes.print()
            return None
