"""wheeld's client library and command line under a name that nothing else uses.

``import wheeld as wheel`` gives ``wheel.schedule_at()`` whoever owns the import name ``wheel``.
Nothing is imported until a name is used or the command line runs.
"""

import os
import sys

TYPE_CHECKING = False  # as typing's, without importing typing
if TYPE_CHECKING:
    import click

    from wheel import (
        App,
        Applied,
        ApplyError,
        AuthError,
        Backoff,
        BatchResult,
        BusyError,
        Client,
        Conflict,
        ConnectError,
        CronSyntaxError,
        CycleError,
        Dag,
        Definition,
        Explanation,
        Fail,
        Fire,
        Interrupted,
        InvalidRequest,
        Item,
        Job,
        JobCancelled,
        JobInfo,
        KeyExists,
        LeaseLost,
        LimitError,
        NaiveDatetimeError,
        NotFound,
        NotLeaderError,
        PayloadTooLarge,
        ProtocolError,
        Retry,
        Run,
        Schedule,
        ScheduleRun,
        ServerError,
        ServerFullError,
        Snooze,
        UnavailableError,
        WheeldError,
        WheeldTimeout,
        Worker,
        apply,
        backoff,
        batch,
        cancel,
        dag,
        get,
        schedule,
        schedule_at,
        schedule_cron,
        schedule_in,
        schedule_many,
        schedules,
    )

    __version__: str

__all__ = [
    "App",
    "Applied",
    "ApplyError",
    "AuthError",
    "Backoff",
    "BatchResult",
    "BusyError",
    "Client",
    "Conflict",
    "ConnectError",
    "CronSyntaxError",
    "CycleError",
    "Dag",
    "Definition",
    "Explanation",
    "Fail",
    "Fire",
    "Interrupted",
    "InvalidRequest",
    "Item",
    "Job",
    "JobCancelled",
    "JobInfo",
    "KeyExists",
    "LeaseLost",
    "LimitError",
    "NaiveDatetimeError",
    "NotFound",
    "NotLeaderError",
    "PayloadTooLarge",
    "ProtocolError",
    "Retry",
    "Run",
    "Schedule",
    "ScheduleRun",
    "ServerError",
    "ServerFullError",
    "Snooze",
    "UnavailableError",
    "WheeldError",
    "WheeldTimeout",
    "Worker",
    "apply",
    "backoff",
    "batch",
    "cancel",
    "dag",
    "get",
    "main",
    "schedule",
    "schedule_at",
    "schedule_cron",
    "schedule_in",
    "schedule_many",
    "schedules",
]

SHADOWED = (
    "another distribution shadows wheeld's package 'wheel' here; "
    "reinstall wheeld (pip install --force-reinstall --no-deps wheeld)"
)
NO_EXTRA = (
    "`wheeld {command}` needs the server extra, and {module!r} is not installed: "
    "pip install 'wheeld[server]'"
)
EXTRA_MODULES = frozenset({"_cffi_backend", "sortedcontainers", "structlog"})  # uvloop is a choice
FOREIGN = (
    "a module named {name!r} ({path}) was imported before wheeld's own: "
    "start the script `wheeld` instead, in a process of its own"
)

DAEMON = ("server.", "bench.")  # modules of the daemon's folder

# Everything that `wheeld ...` can do: command -> (module:attribute, one line of help).
COMMANDS = {
    "serve": ("server.commands.serve:serve_command", "Run the server."),
    "work": ("wheel.commands.work:work_command", "Run a worker: your application's handlers."),
    "schedule": ("wheel.commands.schedule:schedule_command", "Schedule one job."),
    "jobs": ("wheel.commands.jobs:jobs_group", "List jobs; show, cancel, run or requeue them."),
    "handlers": (
        "wheel.commands.handlers:handlers_group",
        "Show what waits for each handler; pause one.",
    ),
    "cron": ("wheel.commands.cron:cron_group", "Make schedules, and see to their runs."),
    "apply": ("wheel.commands.apply:apply_command", "Make the schedules of a file."),
    "dag": ("wheel.commands.dag:dag_group", "Show schedules that run after one another."),
    "save": ("wheel.commands.save:save_command", "Make a checkpoint."),
    "backup": ("server.commands.backup:backup_command", "Copy a store into one file."),
    "restore": ("server.commands.backup:restore_command", "Make a store from a backup."),
    "wal": ("server.commands.wal:wal_group", "Check, inspect and repair a data directory."),
    "token": ("server.commands.token:token_group", "Make, list and revoke access tokens."),
    "bench": ("bench.run:bench_command", "Measure wheeld on this machine."),
    "version": ("wheel.commands.version:version_command", "Print the version."),
}
SECTIONS = {
    "Jobs and schedules": ("schedule", "jobs", "handlers", "cron", "apply", "dag"),
    "Server and workers": ("serve", "work", "token", "save"),
    "Data": ("backup", "restore", "wal"),
    "Other": ("bench", "version"),
}
EPILOG = """\b
A command that talks to a server finds it by --url or $WHEELD_URL.
Exit status: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 no server, 5 refused,
6 no answer in time, 130 Ctrl-C; `wheeld COMMAND -h` lists what else it may be.
"""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return a public name of the library, imported on its first use."""
        try:
            from wheel.facade import load
        except ImportError as error:
            raise ImportError(SHADOWED) from error
        return load(name, __name__)

    def __dir__() -> list[str]:
        """Return the public names."""
        return ["__version__", *__all__]


def daemon_folder() -> str:
    """Return the folder that holds ``server``, ``wal`` and ``bench``.

    ``wheeld/_daemon`` where wheeld is built and installed; beside this file in a checkout.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    built = os.path.join(here, "_daemon")
    return built if os.path.isdir(built) else here


def _foreign_module(folder: str) -> str | None:
    """Return a sentence about a ``server`` or so that somebody else imported, or None."""
    for name in ("server", "wal", "bench"):
        module = sys.modules.get(name)
        if module is not None and not (module.__file__ or "").startswith(folder):
            return FOREIGN.format(name=name, path=module.__file__)
    return None


def _load(target: str) -> "click.Command":
    """Import ``module:attribute``, the implementation of a command.

    First the folder that its imports are meant for goes to the front of sys.path. The user's code
    runs from the user's folder, and there ``server`` and ``wal`` are the user's own names; a
    command of the daemon runs in the daemon's own process, and there they are ours.

    Raises:
        click.ClickException: somebody else's ``server`` stands in the way.
        ModuleNotFoundError: a library that this installation lacks.
    """
    import importlib

    import click

    module, _, attribute = target.partition(":")
    command = module.rpartition(".")[2]
    is_daemon = module.startswith(DAEMON)
    if is_daemon:
        folder = daemon_folder()
        if foreign := _foreign_module(folder):
            raise click.ClickException(foreign)
        sys.path.insert(0, folder)
    elif command == "work":
        sys.path.insert(0, os.getcwd())
    found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, click.Command)
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments behind the program's name; the process's own by default.

    Returns:
        The exit status: 0 done, 1 failed, 2 wrong usage; the others in wheel/commands/output.py.
    """
    try:
        from wheel.commands.lazy import Lazy, LazyGroup
        from wheel.commands.output import run
    except ModuleNotFoundError as error:
        if error.name not in {"wheel", "wheel.commands"}:
            raise
        sys.stderr.write(f"wheeld: {SHADOWED}\n")
        return 1
    table = {name: Lazy(target=target, summary=text) for name, (target, text) in COMMANDS.items()}
    group = LazyGroup(
        table,
        _load,
        about="Schedule jobs, run their handlers, and run the server between them.",
        sections=SECTIONS,
        epilog=EPILOG,
    )
    words = sys.argv[1:] if argv is None else argv
    try:
        return run(group, words)
    except ModuleNotFoundError as error:
        command = words[0] if words else ""
        is_daemon = COMMANDS.get(command, ("",))[0].startswith(DAEMON)
        if not is_daemon or error.name not in EXTRA_MODULES:
            raise
        sys.stderr.write(f"Error: {NO_EXTRA.format(command=command, module=error.name)}\n")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
