"""What a worker tells the server when it starts: the schedules of its app."""

import logging
from collections.abc import Container
from typing import Final

from wheel.applying import ordered
from wheel.client import CALL_TIMEOUT_S
from wheel.errors import from_reply
from wheel.handlers import App
from wheel.link import Connection, array, text
from wheel.system import System
from wheel.wire import ReplyError, encode_command

SKIPPED_CODES: Final = frozenset({"NOPERM", "UNKNOWN", "CONFLICT"})
"""Answers to CRON SET that a worker can work with: somebody else sees to that schedule."""

_log = logging.getLogger("wheeld.worker")


def publish_schedules(
    connection: Connection, app: App, serves: Container[str], system: System
) -> None:
    """Make or change the app's schedules, upstreams first; those whose handler is served here.

    A schedule that waits for one that is not there yet, or that this worker's token may not
    change, is logged and left as it is; the worker goes on.

    Raises:
        InvalidRequest: the server refuses a rule; or schedules would wait for each other.
        UnavailableError: the connection broke, or the server cannot take it just now.
    """
    edges = {name: entry.after for name, entry in app.schedules.items()}
    for name in ordered(edges):
        definition = app.schedules[name]
        if definition.handler not in serves:
            continue
        deadline = system.monotonic() + CALL_TIMEOUT_S
        reply = connection.ask(encode_command(definition.words()), deadline)
        if isinstance(reply, ReplyError):
            if reply.code not in SKIPPED_CODES:
                raise from_reply(reply.code, f"{reply.text} (schedule {name!r})")
            _log.error("schedule %s is not published: %s", name, reply)
        else:
            _log.info("schedule %s is %s", name, text(array(reply, 2)[1]))
