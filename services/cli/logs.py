"""Logs in one form: an event is a line of `key=value` fields, with the service that speaks."""

import json
import logging
import time
from collections.abc import Callable

_QUIET_LIBRARIES = ("httpx", "httpcore", "uvicorn.access", "asyncio")


class EventFormatter(logging.Formatter):
    """`time=… level=… service=… logger=… message="…"`, and `exception="…"` where there is one."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line; line breaks inside a value are escaped."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name.removeprefix("allroads."),
            "message": json.dumps(record.getMessage(), ensure_ascii=False),
        }
        if record.exc_info:
            fields["exception"] = json.dumps(self.formatException(record.exc_info), ensure_ascii=False)
        return " ".join(f"{key}={value}" for key, value in fields.items())


class CallbackHandler(logging.Handler):
    """Gives each formatted line to a function."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Format and hand over."""
        try:
            self._write(self.format(record))
        except Exception:  # a handler reports its faults and never raises
            self.handleError(record)


def set_up_logging(service: str, level: str, handler: logging.Handler | None = None) -> None:
    """Send the process's logs and warnings to a handler, stderr where none is given."""
    handler = handler or logging.StreamHandler()
    handler.setFormatter(EventFormatter(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
