"""The schedules of a soak, and whether each of their times has one run or a reason."""

import itertools
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Final

from tests.load import fields_of, shown
from tests.process import Server

MINUTE_MS: Final = 60_000
EVERY_MS: Final = 20_000
FAULTS: Final = frozenset({"schedules_failed", "control_failed", "unhandled"})
OVERLAPS: Final = ("skip", "queue_one", "queue_all", "allow", "cancel_running")
ZONES: Final = ("UTC", "Europe/Rome", "America/New_York", "Asia/Kathmandu")
YOUNG_MS: Final = 2 * MINUTE_MS  # the newest runs may still be on their way
PAGE: Final = 100
CHURN: Final = 20
TIMES: Final = 1_000  # more than any cache of times holds


class Schedules:
    """Some that fire each minute, some more often, a graph, and some that come and go."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._rows: dict[str, dict[int, str]] = {}  # name -> nominal -> outcome
        self._every: dict[str, int] = {}
        self._first: dict[str, int] = {}  # the first time that it fires by itself
        self._doubled: list[str] = []
        self._made = itertools.count()
        with server.connect() as connection:
            for number, overlap in enumerate(OVERLAPS * 4):
                name, zone = f"minute-{number}", ZONES[number % len(ZONES)]
                words: tuple[str | int, ...] = ("TZ", zone, "OVERLAP", overlap, "CATCHUP", "all")
                if number % 3 == 0:
                    words += ("JITTER", 5_000)
                self._set(connection, name, "* * * * *", *words)
                self._every[name] = MINUTE_MS
            for number in range(5):
                self._set(connection, f"often-{number}", "@every 20s", "CATCHUP", "all")
                self._every[f"often-{number}"] = EVERY_MS
            self._set(connection, "first", "* * * * *", "DATE", "exact", "CATCHUP", "all")
            self._set(connection, "second", "-", "AFTER", 1, "first", "DATE", "exact")
            self._every["first"] = self._every["second"] = MINUTE_MS
            begin = datetime.now(UTC).replace(second=0, microsecond=0)
            self._rows = {name: {} for name in self._every}
            for name, every_ms in self._every.items():
                if name == "second":
                    continue  # it has a run for each of first's
                start = begin - timedelta(milliseconds=25 * every_ms)
                ids = connection.call(
                    *("CRON", "BACKFILL", name, start.isoformat(), begin.isoformat()),
                    *("ACTIVE", 10),
                )
                assert isinstance(ids, list), ids

    def _set(self, connection, name: str, rule: str, *words: str | int) -> None:
        reply = connection.call("CRON", "SET", name, rule, "soak.cron", "{}", *words)
        assert isinstance(reply, list), reply
        if not name.startswith("churn-"):
            self._first[name] = reply[2] or self._first["first"]

    def fill(self) -> None:
        """Show the server as many different times as its caches hold, and forget them."""
        begin_ms = int(datetime.now(UTC).timestamp() * 1000)
        with self._server.connect() as connection:
            self._set(connection, "churn-fill", "@yearly", "OVERLAP", "allow")
            for number in range(TIMES):
                at_ms = begin_ms - 7 * number
                connection.call("CRON", "TRIGGER", "churn-fill", "AT", at_ms, "FORCE")
                connection.call("CRON", "EXPLAIN", "* * * * *", "FROM", at_ms, "COUNT", 1)
            connection.call("CRON", "DEL", "churn-fill", "FORCE")

    def churn(self) -> None:
        """Make, change, pause, trigger and forget schedules that nobody watches."""
        with self._server.connect() as connection:
            for _ in range(CHURN):
                name = f"churn-{next(self._made)}"
                self._set(connection, name, "@every 7s", "OVERLAP", "queue_one")
                connection.call("CRON", "TRIGGER", name)
                self._set(connection, name, "*/5 * * * * *", "OVERLAP", "allow")
                connection.call("CRON", "PAUSE", name, "NOTE", "a soak")
                connection.call("CRON", "RESUME", name)
                connection.call("CRON", "NEXT", name)
                connection.call("CRON", "DEL", name, "FORCE")

    def collect(self) -> None:
        """Read the newest runs of all that is watched; older ones fall out of the history."""
        with self._server.connect() as connection:
            for name in self._every:
                self._read(connection, name)

    def _read(self, connection, name: str) -> None:
        reply = connection.call("CRON", "RUNS", name, "COUNT", PAGE)
        assert isinstance(reply, list), reply
        seen: Counter[int] = Counter()
        for row in reply[1]:
            fields = fields_of(row)
            nominal_ms, last_ms = fields["nominal_ms"], fields["last_ms"]
            assert isinstance(nominal_ms, int)
            last_ms = last_ms if isinstance(last_ms, int) else nominal_ms
            for at_ms in range(nominal_ms, last_ms + 1, self._every[name]):
                seen[at_ms] += 1
                self._rows[name][at_ms] = shown(fields["outcome"])
        self._doubled += [f"{name} has two runs for {ms}" for ms, n in seen.items() if n > 1]

    def stop(self) -> None:
        """Let no new run begin."""
        with self._server.connect() as connection:
            for name in self._every:
                connection.call("CRON", "PAUSE", name)

    def nominal_times(self) -> int:
        """Return of how many times the outcome is known."""
        return sum(len(rows) for rows in self._rows.values())

    def faults(self) -> list[str]:
        """Return what is wrong: times with no run and no reason, two runs, runs with no end."""
        wrong = list(dict.fromkeys(self._doubled))
        for name, rows in self._rows.items():
            every_ms = self._every[name]
            first_ms = self._first[name]
            times = [first_ms - every_ms, *sorted(ms for ms in rows if ms >= first_ms)]
            for before, after in itertools.pairwise(times):
                if after - before != every_ms:
                    wrong.append(f"{name} has nothing between {before} and {after}")
            wrong += [
                f"{name} is {outcome} for {ms}"
                for ms, outcome in rows.items()
                if outcome in {"running", "waiting", "held"} and ms < max(rows) - YOUNG_MS
            ]
        return wrong
