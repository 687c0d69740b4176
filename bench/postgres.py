"""PostgreSQL as a job queue: an indexed table, INSERT and COPY, claims by SKIP LOCKED.

pgbench is the load: in C, prepared statements, a unix socket. The server cannot be run by root, and
its folder must be reached by the user it runs as: so it is made beside the other data, in the
nearest folder above that everybody may enter.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import PATIENCE_S, BenchError, cpu_us, running
from bench.loader import Figures

PAYLOAD_BYTES: Final = 100
PAYLOAD: Final = '{"mail":"welcome","trace":"' + "9f86d081884c7d65" * 4 + 'a2feaa0"}'
USER: Final = "postgres"
TOOL_TIMEOUT_S: Final = 120
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
POLL_S: Final = 0.02
COPY_ROWS: Final = 10_000
COPY_CONNECTIONS: Final = 2
PINGS_S_MAX: Final = 600
PINGS_TAIL_S: Final = 0.5  # pgbench holds back its last 4 KiB of log, a tenth of a second
WORLD_MAY_ENTER: Final = 0o001
assert len(PAYLOAD) == PAYLOAD_BYTES

SCHEMA: Final = """
CREATE TABLE jobs (
  id bigserial PRIMARY KEY,
  handler text NOT NULL,
  payload text NOT NULL,
  next_run_at timestamptz NOT NULL,
  status text NOT NULL DEFAULT 'pending',
  attempt int NOT NULL DEFAULT 0,
  locked_until timestamptz
);
CREATE INDEX jobs_due ON jobs (next_run_at) WHERE status = 'pending';
"""
INSERT_FAR: Final = f"""
INSERT INTO jobs (handler, payload, next_run_at)
VALUES ('mail', '{PAYLOAD}', now() + interval '1 hour' + random() * interval '30 days');
"""
PING: Final = "SELECT 1;\n"


def life_cycle(batch: int, *, store: bool) -> str:
    """Return a pgbench script: store a batch that is due if asked for, claim a batch, finish it."""
    stored = f"""
INSERT INTO jobs (handler, payload, next_run_at)
SELECT 'mail', '{PAYLOAD}', now() FROM generate_series(1, {batch});
"""
    claimed = f"""
WITH due AS (
  SELECT id FROM jobs WHERE status = 'pending' AND next_run_at <= now()
  ORDER BY next_run_at LIMIT {batch} FOR UPDATE SKIP LOCKED
), taken AS (
  UPDATE jobs SET status = 'running', attempt = attempt + 1,
    locked_until = now() + interval '1 minute'
  FROM due WHERE jobs.id = due.id RETURNING jobs.id, jobs.payload
)
SELECT coalesce(array_agg(id), '{{}}') AS ids, count(payload) FROM taken \\gset
DELETE FROM jobs WHERE id = ANY(:ids::bigint[]);
"""
    return (stored if store else "") + claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What pgbench did: transactions, and how many a second."""

    transactions: int
    rate: float


def parse_pgbench(text: str) -> Ran:
    """Return what pgbench printed at its end.

    Raises:
        BenchError: it printed no rate, or transactions failed.
    """
    done = re.search(r"number of transactions actually processed: (\d+)", text)
    failed = re.search(r"number of failed transactions: (\d+)", text)
    rate = re.search(r"^tps = ([0-9.]+)", text, re.MULTILINE)
    if not done or not rate or (failed and int(failed[1])):
        raise BenchError(f"pgbench: {text[-500:]}")
    return Ran(transactions=int(done[1]), rate=float(rate[1]))


@dataclass(slots=True, kw_only=True)
class Postgres:
    """A running cluster with an empty table ``jobs``.

    Attributes:
        folder: its socket and data, owned by the user that it runs as.
        programs: where its programs are.
        process: of the postmaster.
        version: of the server.
    """

    folder: Path
    programs: Path
    process: subprocess.Popen[bytes]
    version: str

    def cpu_us(self) -> float:
        """Return the CPU time of all its processes so far, ended ones by 10 ms ticks."""
        pid = self.process.pid
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ended_us = (int(stat[13]) + int(stat[14])) * 1e6 / CLOCK_TICKS
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        live_us = 0.0
        for child in (str(pid), *children):
            try:
                live_us += cpu_us(int(child))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended in between, and is counted among those next time
        return ended_us + live_us

    def _client(self, name: str, *words: str) -> list[str]:
        return [str(self.programs / name), "-h", str(self.folder), "-U", USER, *words]

    def sql(self, text: str) -> str:
        """Return what psql prints for statements, without headings.

        Raises:
            BenchError: a statement failed.
        """
        return output(self._client("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", USER), text)

    def empty(self) -> None:
        """Empty the table."""
        self.sql("TRUNCATE jobs; CHECKPOINT;")

    def jobs(self) -> int:
        """Return how many jobs the table has."""
        return int(self.sql("SELECT count(*) FROM jobs"))

    def pgbench(self, script: str, *words: str, clients: int) -> Ran:
        """Run a script; words say for how long (-T) or how often (-t).

        Raises:
            BenchError: it failed.
        """
        command = self._pgbench(script, *words, clients=clients)
        return parse_pgbench(output(command))

    def _pgbench(self, script: str, *words: str, clients: int) -> list[str]:
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False) as file:
            file.write(script)
        Path(file.name).chmod(0o644)
        words = ("-n", "-M", "prepared", "-c", str(clients), "-j", "1", "-f", file.name, *words)
        return self._client("pgbench", *words, USER)

    def copy(self, rows: int) -> float:
        """Return the seconds that COPY took for rows far in the future.

        Two connections, 10,000 rows in each transaction; psql's start and end are within.

        Raises:
            BenchError: it failed.
        """
        file = self.folder / "rows.tsv"
        if not file.exists():
            step_s = 30 * 86_400 / COPY_ROWS
            due_s = (2_000_000_000 + i * 7919 % COPY_ROWS * step_s for i in range(COPY_ROWS))
            texts = (time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(at)) for at in due_s)
            file.write_text("".join(f"mail\t{PAYLOAD}\t{text}\n" for text in texts))
        copy = f"\\copy jobs (handler, payload, next_run_at) from '{file}'\n"
        script = copy * max(1, rows // COPY_ROWS // COPY_CONNECTIONS)
        begin = time.monotonic()
        command = self._client("psql", "-Xq", "-v", "ON_ERROR_STOP=1", USER)
        processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(COPY_CONNECTIONS)
        ]
        try:
            for process in processes:
                if process.stdin is None:
                    raise BenchError("psql has no standard input")
                process.stdin.write(script)
                process.stdin.close()
                process.stdin = None
            for process in processes:
                _, errors = process.communicate(timeout=TOOL_TIMEOUT_S)
                if process.returncode != 0:
                    raise BenchError(f"COPY: {errors[-500:]}")
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return time.monotonic() - begin

    @contextmanager
    def pinged(self) -> Generator[list[Figures], None, None]:
        """Send ``SELECT 1`` a thousand times a second while the block runs, and a moment longer.

        Yields:
            A list that has the round trips once the block has ended. They count from when a
            statement was sent, as those of the other peers do.

        Raises:
            BenchError: it failed.
        """
        prefix = self.folder / f"pings-{time.monotonic_ns()}"
        words = ("-R", "1000", "-T", str(PINGS_S_MAX), "-l", f"--log-prefix={prefix}")
        process = subprocess.Popen(self._pgbench(PING, *words, clients=1), stdout=subprocess.PIPE)
        figures: list[Figures] = []
        try:
            yield figures
            time.sleep(PINGS_TAIL_S)
        finally:
            process.kill()
            process.communicate()
        logs = "".join(file.read_text() for file in self.folder.glob(f"{prefix.name}.*"))
        figures.append(parse_pings(logs))


def parse_pings(log: str) -> Figures:
    """Return the round trips in a log of ``pgbench -R -l``: less the lag of their start.

    The log of one that was killed may end within a line, which does not count.

    Raises:
        BenchError: there are none.
    """
    rows = [line.split() for line in log.split("\n")[:-1]]
    took_us = sorted(int(row[2]) - int(row[6]) for row in rows)
    if not took_us:
        raise BenchError("pgbench logged no ping")
    return Figures(
        count=len(took_us),
        p50=took_us[len(took_us) // 2],
        p99=took_us[len(took_us) * 99 // 100],
        max=took_us[-1],
    )


# ---------------------------------------------------------------- start


def output(command: Sequence[str], text: str = "") -> str:
    """Return what a tool prints.

    Raises:
        BenchError: it failed.
    """
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise BenchError(f"{Path(command[0]).name}: {(done.stdout + done.stderr)[-500:]}")
    return done.stdout


def programs() -> Path | None:
    """Return the folder of the newest server's programs; None when there is none."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    newest = sorted(found, key=lambda path: float(path.parent.name))
    if newest:
        return newest[-1]
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


def open_folder(folder: Path) -> Path:
    """Return the nearest folder at or above this one that every user may enter.

    Raises:
        BenchError: there is none that we may write in.
    """
    for here in (folder, *folder.parents):
        entered = all(path.stat().st_mode & WORLD_MAY_ENTER for path in (here, *here.parents))
        if entered and os.access(here, os.W_OK):
            return here
    raise BenchError(f"no folder above {folder} that user {USER} may enter and we may write in")


@contextmanager
def postgres(folder: Path, *, durable: bool) -> Generator[Postgres, None, None]:
    """Run PostgreSQL until the block ends: unix socket only, fsync on.

    Args:
        folder: on the disk that is measured.
        durable: ``synchronous_commit`` on or off.

    Raises:
        BenchError: it is not installed, or does not start.
    """
    where = programs()
    if where is None:
        raise BenchError("PostgreSQL's server is not installed")
    as_user: list[str] = []
    here = Path(tempfile.mkdtemp(prefix="wheeld-bench-pg-", dir=open_folder(folder.resolve())))
    try:
        if os.geteuid() == 0:
            as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups"]
            shutil.chown(here, USER, USER)
        data = here / "data"
        words = ["-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
        output([*as_user, str(where / "initdb"), *words])
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(here),
            "fsync": "on",
            "synchronous_commit": "on" if durable else "off",
            "shared_buffers": "512MB",
            "max_wal_size": "4GB",
            "max_connections": "100",
        }
        command = [*as_user, str(where / "postgres"), "-D", str(data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        log = here / "server.log"
        with running(command, log) as process:
            version = output([str(where / "postgres"), "--version"]).split()[2]
            server = Postgres(folder=here, programs=where, process=process, version=version)
            _wait(server, log)
            server.sql(SCHEMA)
            yield server
    finally:
        shutil.rmtree(here, ignore_errors=True)


def _wait(server: Postgres, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            server.sql("SELECT 1")
        except BenchError:
            time.sleep(POLL_S)
        else:
            return
    raise BenchError(f"PostgreSQL does not answer: {log.read_text()[-2000:]}")
