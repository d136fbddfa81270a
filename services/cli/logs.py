"""Logs in one form: an event is a line of `key=value` fields, with the service that speaks."""

import json
import logging
import time
from collections.abc import Callable

Speaker = Callable[[logging.LogRecord], str]
"""Names the service that a record is of."""
OnLine = Callable[[str, str], None]
"""Takes a service's name and a line of its output."""

QUIET_LIBRARIES = ("httpx", "httpcore", "uvicorn.access", "asyncio", "sse_starlette")
"""Held at WARNING. At DEBUG some of them log what they carry: keys, and what users wrote."""


class EventFormatter(logging.Formatter):
    """`time=… level=… service=… logger=… message="…"`, and `exception="…"` where there is one."""

    def __init__(self, speaker: Speaker) -> None:
        super().__init__()
        self._speaker = speaker

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line; line breaks inside a value are escaped."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "service": self._speaker(record),
            "logger": record.name.removeprefix("allroads."),
            "message": json.dumps(record.getMessage(), ensure_ascii=False),
        }
        if record.exc_info:
            fields["exception"] = json.dumps(self.formatException(record.exc_info), ensure_ascii=False)
        return " ".join(f"{key}={value}" for key, value in fields.items())


class CallbackHandler(logging.Handler):
    """Gives each line to a function."""

    def __init__(self, speaker: Speaker, on_line: OnLine) -> None:
        super().__init__()
        self._speaker, self._on_line = speaker, on_line

    def emit(self, record: logging.LogRecord) -> None:
        """Format and hand over."""
        try:
            self._on_line(self._speaker(record), self.format(record))
        except Exception:  # a handler reports its faults and never raises
            self.handleError(record)


def always(service: str) -> Speaker:
    """The speaker of a process that is one service."""
    return lambda record: service


def set_up_logging(speaker: Speaker, level: str, on_line: OnLine | None = None) -> None:
    """Send the process's logs and warnings to a function, to stderr where none is given."""
    handler = logging.StreamHandler() if on_line is None else CallbackHandler(speaker, on_line)
    handler.setFormatter(EventFormatter(speaker))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
