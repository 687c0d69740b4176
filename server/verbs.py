"""The table of commands: what COMMAND and COMMAND DOCS say.

Names, syntax and argument counts are the C core's (csrc/wd_command.c), which dispatches; what
people and client libraries want to know besides stands here. A command that is missing on one side
stops the import, so the two cannot drift apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from server.auth import Role
from wheel.engine.core import command_table, rights_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One command.

    Attributes:
        name: in upper case.
        arity: as Redis counts it: words with the name; negative = at least that many.
        group: heading under which `help` lists it.
        summary: one sentence.
        arguments: its syntax behind the name.
        key: which argument is the routing key: handler, job, receipt, schedule; 0 = none.
        write: whether it changes jobs.
        waits: whether it may hold back what is pipelined behind it.
        loading: whether it is answered while the log is replayed.
        roles: who may use it, the forms below excepted.
        forms: by first argument, who may use it so.
    """

    name: str
    arity: int
    group: str
    summary: str
    arguments: str
    key: int
    write: bool
    waits: bool
    loading: bool
    roles: tuple[Role, ...]
    forms: Mapping[str, tuple[Role, ...]]

    @property
    def flags(self) -> list[str]:
        """Return the flags in the words that Redis clients know."""
        flags = ["write" if self.write else "readonly", "fast"]
        if self.waits:
            flags.append("blocking")
        if self.loading:
            flags.append("loading")
        if self.name in NO_AUTH:
            flags.append("no_auth")
        return flags


# May be sent before signing in.
NO_AUTH: Final = frozenset({"AUTH", "HELLO", "PING", "QUIT", "RESET"})
# Answered while the log is replayed.
LOADING: Final = frozenset({"PING", "HELLO", "AUTH", "CLIENT", "COMMAND", "INFO", "QUIT"})
# May hold back what is pipelined behind them.
WAITS: Final = frozenset({"LEASE", "SAVE", "BACKUP"})

# name: (summary, the first (True) or second argument is the routing key, changes something).
_SAID: Final[dict[str, dict[str, tuple[str, int, bool]]]] = {
    "jobs": {
        "SCHEDULE": ("Make a job that is handed out at its time.", True, True),
        "LEASE": ("Take due jobs to run them.", True, True),
        "ACK": ("Say that jobs are done.", True, True),
        "DONE": ("Say that a job is done, with a result to keep.", True, True),
        "FAIL": ("Say that a job failed.", True, True),
        "RELEASE": ("Give a job back; counted as nothing.", True, True),
        "EXTEND": ("Keep leases: the heartbeat.", True, True),
        "CANCEL": ("Cancel jobs.", True, True),
        "RESCHEDULE": ("Move a job to another time.", True, True),
        "RUN": ("Make a job due now.", True, True),
        "JOB": ("Show a job.", True, False),
        "JOBS": ("List jobs, page by page.", False, False),
        "DEAD": ("List jobs whose retries are used up.", False, False),
        "COUNT": ("Count jobs, from counters.", False, False),
        "REQUEUE": ("Give dead jobs a new life.", True, True),
        "PURGE": ("Forget dead jobs.", True, True),
    },
    "schedules": {
        "CRON": ("Make, look at, pause, trigger, backfill and delete schedules.", 2, True),
    },
    "handlers": {
        "HANDLERS": ("Show every handler.", False, False),
        "HANDLER": ("Show or set a handler's limits and defaults.", True, True),
    },
    "connection": {
        "PING": ("Answer PONG, or the message.", False, False),
        "HELLO": ("Choose the protocol, sign in, learn about the server.", False, False),
        "AUTH": ("Sign in with a token.", False, False),
        "CLIENT": ("Look at connections, name or close them.", False, False),
        "QUIT": ("Close the connection.", False, False),
        "RESET": ("Make the connection as new: RESP2, no name, signed out.", False, False),
        "SELECT": ("Accept database 0, the only one.", False, False),
    },
    "server": {
        "COMMAND": ("Describe the commands.", False, False),
        "INFO": ("Show the server's state and counters.", False, False),
        "CONFIG": ("Show settings.", False, False),
        "TIME": ("Show the server's wall clock: seconds, microseconds.", False, False),
        "CLOCK": (
            "Show the clocks; ACCEPT takes the wall clock as it is after a step back.",
            False,
            True,
        ),
        "SHUTDOWN": ("Stop the server in order, as SIGTERM does.", False, False),
        "SAVE": ("Make a checkpoint, and answer when it is in force.", False, False),
        "BACKUP": ("Keep the files still while a backup copies them.", False, False),
    },
}


def _arity(args_min: int, args_max: int) -> int:
    """Return the argument counts of the core as Redis writes them."""
    return args_min + 1 if args_min == args_max else -(args_min + 1)


def _verbs() -> dict[str, Verb]:
    said = {
        name: (group, *words) for group, names in _SAID.items() for name, words in names.items()
    }
    table = {syntax.name: syntax for syntax in command_table()}
    if different := sorted(said.keys() ^ table.keys()):
        raise ImportError(f"described here or dispatched by the core, not both: {different}")
    rights: dict[str, dict[str, tuple[Role, ...]]] = {name: {} for name in table}
    for right in rights_table():
        roles = tuple(role for role in Role if role.bit & right.roles)
        rights.setdefault(right.command, {})[right.form] = roles
    return {
        name: Verb(
            name=name,
            arity=_arity(table[name].args_min, table[name].args_max),
            group=group,
            summary=summary,
            arguments=table[name].usage,
            key=int(key),
            write=write,
            waits=name in WAITS,
            loading=name in LOADING,
            roles=rights[name][""],
            forms={form: roles for form, roles in rights[name].items() if form.isalpha()},
        )
        for name, (group, summary, key, write) in said.items()
    }


VERBS: Final[dict[str, Verb]] = _verbs()
