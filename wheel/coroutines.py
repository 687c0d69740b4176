"""Run a coroutine handler in an event loop of its own, on the thread of its run.

The only file of the user's side that needs the event loop; wheel/handlers.py loads it when the
first coroutine is registered.
"""

import asyncio
import contextlib
from collections.abc import Coroutine

from wheel.errors import LeaseLost
from wheel.handlers import Run


def run_coroutine(run: Run, coroutine: Coroutine[object, object, object]) -> object:
    """Return what the coroutine returns; it is cancelled when its run is lost.

    Raises:
        LeaseLost: the run was lost and the coroutine ended by that.
    """
    try:
        return asyncio.run(_watched(run, coroutine))
    except asyncio.CancelledError as error:
        raise LeaseLost(f"run {run.run_id} was {run.lost_code or 'cancelled'}") from error


async def _watched(run: Run, coroutine: Coroutine[object, object, object]) -> object:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(coroutine)

    def cancel() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            loop.call_soon_threadsafe(task.cancel)

    run.when_lost(cancel)
    try:
        return await task
    finally:
        run.when_lost(None)
