"""The names a user may write behind ``wheeld.`` and ``wheel.``, and where each one lives.

A name is imported on its first use, so that ``import wheeld`` costs nothing and a client never
pays for the worker. wheel/__init__.pyi tells type checkers the same; a test compares the two.
"""

import importlib
from typing import Final

VERSION: Final = "0.1.0"

# Module of each public name. A name and its module are a promise to users.
MODULES: Final[dict[str, tuple[str, ...]]] = {
    "wheel.applying": ("Applied",),
    "wheel.client": (
        "Client",
        "apply",
        "batch",
        "cancel",
        "get",
        "schedule",
        "schedule_at",
        "schedule_cron",
        "schedule_in",
        "schedule_many",
        "schedules",
    ),
    "wheel.definitions": ("Definition",),
    "wheel.errors": (
        "ApplyError",
        "AuthError",
        "BusyError",
        "Conflict",
        "ConnectError",
        "CronSyntaxError",
        "CycleError",
        "InvalidRequest",
        "JobCancelled",
        "KeyExists",
        "LeaseLost",
        "LimitError",
        "NaiveDatetimeError",
        "NotFound",
        "NotLeaderError",
        "PayloadTooLarge",
        "ProtocolError",
        "ServerError",
        "ServerFullError",
        "UnavailableError",
        "WheeldError",
        "WheeldTimeout",
    ),
    "wheel.graphs": ("Dag", "dag"),
    "wheel.handlers": (
        "App",
        "Fail",
        "Interrupted",
        "Retry",
        "Run",
        "Snooze",
    ),
    "wheel.recurring": ("Explanation", "Fire", "Schedule", "ScheduleRun"),
    "wheel.values": (
        "Backoff",
        "BatchResult",
        "Item",
        "Job",
        "JobInfo",
        "backoff",
    ),
    "wheel.worker": ("Worker",),
}
_MODULE_OF: Final = {name: module for module, names in MODULES.items() for name in names}


def names() -> list[str]:
    """Return every public name, sorted; what ``dir(wheeld)`` shows."""
    return ["__version__", *sorted(_MODULE_OF)]


def load(name: str, asked: str) -> object:
    """Return the public object called ``name``.

    Args:
        name: the attribute.
        asked: the module that was asked for it, for the error text.

    Raises:
        AttributeError: there is no such public name.
    """
    if name == "__version__":
        return VERSION
    if name == "__all__":
        return sorted(_MODULE_OF)
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {asked!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
