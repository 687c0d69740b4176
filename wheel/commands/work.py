"""``wheeld work module:app``."""

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Final

import click

from wheel.commands.kinds import duration, duration_above_zero
from wheel.commands.lazy import CONTEXT
from wheel.commands.machine import read_text
from wheel.commands.output import url_option
from wheel.handlers import App
from wheel.shell import Shell, read_allowed
from wheel.traces import print_user_trace
from wheel.worker import CONCURRENCY, CONCURRENCY_MAX, DRAIN, Worker

EPILOG: Final = """\b
Examples:
  wheeld work shop.jobs:app
  wheeld work shop.jobs:app --concurrency 20 --drain 25s
  wheeld work --shell --shell-allow /etc/wheeld/commands
"""


@click.command("work", epilog=EPILOG, context_settings=CONTEXT)
@click.argument("target", metavar="[MODULE:APP]", required=False)
@url_option
@click.option(
    "--concurrency",
    type=click.IntRange(1, CONCURRENCY_MAX),
    default=CONCURRENCY,
    show_default=True,
    help="How many jobs to run at once.",
)
@click.option(
    "--drain",
    metavar="DUR",
    default=DRAIN,
    show_default=True,
    callback=duration,
    help="How long runs may go on after SIGTERM or Ctrl-C.",
)
@click.option(
    "--lease",
    metavar="DUR",
    callback=duration_above_zero,
    help="How long a lease lasts; each job's own by default.",
)
@click.option("--name", help="How the server shows this worker  [default: host:pid]")
@click.option(
    "--handler",
    "handlers",
    multiple=True,
    metavar="NAME",
    help="Serve this handler only; may be repeated.",
)
@click.option("--shell", is_flag=True, help="Serve shell.run too, which runs commands.")
@click.option(
    "--shell-allow", metavar="FILE", help="The commands that shell.run may run, one a line."
)
@click.option("--shell-any", is_flag=True, help="Let shell.run run any command.")
@click.option("-v", "--verbose", is_flag=True, help="Log debug messages too.")
def work_command(
    target: str | None,
    *,
    url: str | None,
    concurrency: int,
    drain: str,
    lease: str | None,
    name: str | None,
    handlers: tuple[str, ...],
    shell: bool,
    shell_allow: str | None,
    shell_any: bool,
    verbose: bool,
) -> int:
    """Run the handlers of an application until SIGTERM or Ctrl-C.

    The first signal lets runs end for the time of --drain, the second hands them back at once.
    Schedules made of a crontab need --shell, and --shell-allow or --shell-any; no app is needed
    then.

    Exit status: 0 stopped, 2 wrong usage, 5 the server refuses this worker, 75 start it again.
    """
    commands = _shell(shell_allow, any_command=shell_any) if shell else None
    if (shell_allow or shell_any) and not shell:
        raise click.UsageError("--shell-allow and --shell-any belong to --shell")
    if target is None and not shell:
        raise click.UsageError("say whose handlers: MODULE:APP, like shop.jobs:app, or --shell")
    app = App() if target is None else load_app(target)
    if commands is not None:
        commands.register(app)
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    worker = Worker(
        app,
        url,
        concurrency=concurrency,
        drain=drain,
        lease=lease,
        name=name,
        handlers=handlers,
    )
    status = worker.run()
    if commands is not None:
        commands.kill_all()  # what still runs was handed back, another worker may begin it
    if worker.left_running:  # their threads cannot be ended, and exit would wait for some kinds
        logging.shutdown()
        sys.stdout.flush()
        os._exit(status)
    return status


def _shell(allow: str | None, *, any_command: bool) -> Shell:
    if (allow is None) != any_command:
        raise click.UsageError("--shell needs --shell-allow FILE, or --shell-any, not both")
    return Shell(None if allow is None else read_allowed(read_text(allow), allow))


def load_app(target: str) -> App:
    """Return the app that ``module:name`` names.

    Raises:
        UsageError: not of that form, no such module or name, or not an App.
        ClickException: the module's own code failed; its trace went to stderr, without our frames.
    """
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise click.UsageError(f"{target!r} is not of the form module:app, like shop.jobs:app")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(module_name, error) from error  # it is there, what it imports is not
        raise click.UsageError(
            f"there is no module {module_name!r} here ({Path.cwd()}) or among what is installed"
        ) from error
    except SystemExit as error:
        said = f": {error.code}" if isinstance(error.code, str) else f", status {error.code or 0}"
        raise click.ClickException(
            f"{module_name!r} ended the program while it was imported{said}"
        ) from error
    except Exception as error:
        raise _broken(module_name, error) from error
    found = getattr(module, name, None)
    if isinstance(found, App):
        return found
    apps = [attribute for attribute, value in vars(module).items() if isinstance(value, App)]
    hint = f"; its app is {module_name}:{apps[0]}" if apps else ""
    if found is None:
        raise click.UsageError(f"there is no {name!r} in the module {module_name}{hint}")
    raise click.UsageError(f"{name!r} in {module_name} is not a wheel.App but {found!r}{hint}")


def _broken(module_name: str, error: Exception) -> click.ClickException:
    """Print where a module's own code failed, and return the error that ends the command."""
    trace = error.__traceback__
    while trace is not None and _is_importing(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    print_user_trace(error, trace)
    return click.ClickException(f"{module_name!r} cannot be imported: {type(error).__name__}")


def _is_importing(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")
