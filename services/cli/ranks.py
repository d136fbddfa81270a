"""The processes of a service whose model is cut over several, and what each of them does.

The first one serves. It starts the others itself and watches them, so that whoever runs the service sees one process
that lives and dies as a whole; where torchrun has started them all, torchrun watches.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import MeshSettings
from ..engine.place import Place
from ..errors import AllroadsError, Internal, StartupError
from .console import exit_code, print_error
from .run_directory import run_directory
from .seats import Seat
from .services import run_of
from .stop import StopRequest

if TYPE_CHECKING:
    from ..engine.tensor_parallel import Leader

logger = logging.getLogger(__name__)

RunTier = Callable[..., Coroutine[Any, Any, None]]
"""What `run_of` gives for a service with a model, which also takes `member`."""
_END_LIMIT_S = 10.0
"""What the others may take to end after the first one has told them to."""


def follow(service: str, settings: MeshSettings, place: Place) -> None:
    """Compute a part of the model until the first process ends. Ends this process.

    Signals that ask to stop are the first one's to heed: its open requests need this process during their grace.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Late, as torch takes seconds to import.
    from ..engine import follower, tensor_parallel  # noqa: PLC0415

    with _leaves_at_once():
        own = settings.tiers[service]
        member = tensor_parallel.join(place, own)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if isinstance(member, tensor_parallel.Follower):
            follower.follow(own, member)


async def lead(service: str, settings: MeshSettings, config: Path | None, seat: Seat, stop: StopRequest) -> None:
    """Serve as the first process until asked to stop, or until another one ends. Ends this process."""
    with _leaves_at_once():
        async with AsyncExitStack() as stack:
            place, watches = seat.place, list[asyncio.Task[None]]()
            if seat.starts_others:
                place = replace(place, directory=stack.enter_context(run_directory()))
                others = await stack.enter_async_context(_others(service, config, place))
                watches = [asyncio.create_task(_until_end(service, *other)) for other in others.items()]
            await _first(_serve(service, settings, place, stop), *watches)


async def _serve(service: str, settings: MeshSettings, place: Place, stop: StopRequest) -> None:
    # In a thread: torch takes seconds to import, during which the others import it as well.
    joining = asyncio.create_task(asyncio.to_thread(_join, service, settings, place))
    asked = asyncio.create_task(stop.asked.wait())
    await asyncio.wait({joining, asked}, return_when=asyncio.FIRST_COMPLETED)
    if not joining.done():
        return
    run, member = joining.result()
    await _first(run(settings, stop.asked, member=member), asyncio.wrap_future(member.link.lost))
    await asyncio.to_thread(member.link.stop)


def _join(service: str, settings: MeshSettings, place: Place) -> "tuple[RunTier, Leader]":
    from ..engine.tensor_parallel import Leader, join  # noqa: PLC0415

    run = run_of(service)
    member = join(place, settings.tiers[service])
    if not isinstance(member, Leader):
        raise Internal(f"process {place.rank} cannot lead")
    return run, member


async def _first(work: Coroutine[Any, Any, None], *watches: "asyncio.Future[None]") -> None:
    """Wait for the work, or for the first watch to fail."""
    task = asyncio.create_task(work)
    done, _ = await asyncio.wait({task, *watches}, return_when=asyncio.FIRST_COMPLETED)
    # Where all failed together the watch knows why.
    for future in sorted(done, key=lambda future: future is task):
        future.result()


@asynccontextmanager
async def _others(
    service: str, config: Path | None, place: Place
) -> "AsyncIterator[dict[int, asyncio.subprocess.Process]]":
    """Start the other processes, by rank. At the end they are given time to end, unless it is a failure."""
    others = {rank: await _start(service, config, place, rank) for rank in range(1, place.size)}
    limit_s = 0.0
    try:
        yield others
        limit_s = _END_LIMIT_S
    finally:
        for process in others.values():
            if process.returncode is None:
                process.terminate()  # heeded by those that have not met the others yet
        ends = [asyncio.create_task(process.wait()) for process in others.values()]
        await asyncio.wait(ends, timeout=limit_s)
        for process in others.values():
            if process.returncode is None:
                process.kill()
        await asyncio.wait(ends)


async def _start(service: str, config: Path | None, place: Place, rank: int) -> asyncio.subprocess.Process:
    package = __package__.rpartition(".")[0]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", package, "serve", service),
        *(() if config is None else ("--config", str(config))),
        *("--parent-pid", str(os.getpid()), "--rank", str(rank), "--meeting", str(place.directory)),
        stdin=asyncio.subprocess.DEVNULL,
    )


async def _until_end(service: str, rank: int, process: asyncio.subprocess.Process) -> None:
    """Raises unless it was told to end."""
    code = await process.wait()
    if code == 0:
        return
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    message = f"process {rank} of {service} ended ({how}); see its log above"
    raise StartupError(message) if code == exit_code(StartupError("")) else Internal(message)


@contextmanager
def _leaves_at_once() -> Iterator[None]:
    """End the process with the context.

    At once, since threads may hang in work with processes that are gone, and what torch does at an interpreter's end
    may wait for them, too.
    """
    code = 0
    try:
        yield
        logger.info("stopped")
    except AllroadsError as error:
        print_error(error)
        code = exit_code(error)
    except Exception:
        logger.exception("failed")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
