"""Which service speaks, where several share a process."""

import logging
from contextvars import Context, ContextVar, copy_context

from ..config import ALWAYS_THERE

_SPEAKER: ContextVar[str] = ContextVar("speaker", default="")
_PREFIX = "allroads."


def speaking_as(service: str) -> Context:
    """A context for a service's task, which the tasks that it starts have too."""
    context = copy_context()
    context.run(_SPEAKER.set, service)
    return context


def speaker_of(record: logging.LogRecord) -> str:
    """The service whose task speaks; in other threads the one whose code it is, or `mesh` for what they share.

    That is `llm` for the code of all larger tiers.
    """
    if speaker := _SPEAKER.get():
        return speaker
    folder = record.name.removeprefix(_PREFIX).partition(".")[0] if record.name.startswith(_PREFIX) else ""
    if folder == "cli":
        return "up"
    return folder if folder in ALWAYS_THERE else "mesh"
