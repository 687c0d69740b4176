"""``make demo``: jobs of several kinds, and kill -9 of the server while they are being scheduled.

Everything happens in a temporary folder and on a free port of this machine. What the server had
confirmed is compared with what ran. Exits 1 if a confirmed job was lost, ran before it was due, or
ran although it was cancelled.
"""

import argparse
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import wheeld as wheel  # noqa: E402  (the checkout's, whatever is installed)

JOBS = 1200
THREADS = 4
SPREAD_S = 8.0  # due times lie this far ahead at most
PATIENCE_S = 45.0
CANCELLED_IN_S = 6.0
KINDS = (
    ("demo.plain",) * 12
    + ("demo.keyed",) * 4
    + ("demo.flaky",) * 2
    + ("demo.slow",)
    + ("demo.cancelled",)
)


@dataclass(slots=True)
class Confirmed:
    """A job that the server confirmed."""

    job: int
    kind: str
    not_before_ms: int  # the absolute time asked for; 0: asked for from now
    cancelled: bool = False


@dataclass(slots=True)
class Tally:
    """What the scheduling threads were told, by the numbers that the jobs carry."""

    jobs: dict[int, Confirmed] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    existing: int = 0
    cancelled: int = 0
    in_flight: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Processes:
    """The server and the worker of one demo, and the folder they live in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = int(listener.getsockname()[1])
        self.url = f"wheeld://127.0.0.1:{self.port}"
        self.runs = folder / "runs.txt"
        self.env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tools'}"}
        self.env |= {"WHEELD_URL": self.url, "DEMO_RUNS": str(self.runs)}
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, output: str) -> subprocess.Popen[bytes]:
        """Start ``wheeld WORDS`` and return its process."""
        with (self.folder / output).open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "wheeld", *words],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.all.append(process)
        return process

    def serve(self) -> subprocess.Popen[bytes]:
        """Start the server and return its process once it has replayed its log.

        Raises:
            SystemExit: it ended, or did not answer in time.
        """
        words = ("serve", "--data", "data", "--listen", f"127.0.0.1:{self.port}")
        server = self.start(*words, output="server.txt")
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and server.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    probe.sendall(b"COUNT\r\n")
                    if probe.recv(64).startswith(b":"):
                        return server
            except OSError:
                pass
            time.sleep(0.02)
        raise SystemExit((self.folder / "server.txt").read_text())

    def work(self) -> None:
        """Start the worker, and wait until it has told the server what its handlers default to.

        A job takes over its handler's defaults (here retries, backoff, lease) when it is scheduled.
        """
        self.start("work", "demo_app:app", "--concurrency", "16", output="worker.txt")
        end = time.monotonic() + PATIENCE_S
        with wheel.Client(self.url) as client:
            while time.monotonic() < end:
                handlers = str(client.execute("HANDLERS"))
                if all(name in handlers for name in dict.fromkeys(KINDS)):
                    return
                time.sleep(0.02)
        raise SystemExit((self.folder / "worker.txt").read_text())

    def stop(self) -> None:
        """End what still runs."""
        for process in reversed(self.all):
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def schedule_one(client: wheel.Client, number: int, rng: random.Random, tally: Tally) -> None:
    """Schedule one job of its kind, and note what the server confirmed."""
    kind = KINDS[number % len(KINDS)]
    payload = {"number": number}
    not_before_ms = 0
    if kind == "demo.keyed":
        key = f"keyed-{number}"
        job = client.schedule_in(rng.uniform(1, SPREAD_S), kind, payload, key=key)
        if client.schedule_in(60, kind, payload, key=key).id == job.id:
            tally.existing += 1
    elif kind == "demo.cancelled":
        job = client.schedule_in(CANCELLED_IN_S, kind, payload)
    elif number % 3 == 0:
        when = datetime.now(UTC) + timedelta(seconds=rng.uniform(0, SPREAD_S))
        not_before_ms = int(when.timestamp() * 1000)
        job = client.schedule_at(when, kind, payload)
    else:
        job = client.schedule_in(rng.uniform(0, SPREAD_S), kind, payload, priority=number % 256)
    tally.jobs[number] = confirmed = Confirmed(job.id, kind, not_before_ms)
    if kind == "demo.cancelled":
        # The answer of a cancel in flight at the kill is lost; its repeat finds the job ended.
        confirmed.cancelled = client.cancel(job) or client.get(job).state == "cancelled"
        tally.cancelled += confirmed.cancelled


def schedule_share(url: str, share: range, seed: int, tally: Tally) -> None:
    """Schedule one thread's jobs; a call that fails after its own retries is noted."""
    rng = random.Random(seed)  # noqa: S311  (a spread of times, no secret)
    with wheel.Client(url, timeout=20) as client:
        for number in share:
            with tally.lock:
                tally.in_flight += 1
            try:
                schedule_one(client, number, rng, tally)
            except wheel.WheeldError as error:
                tally.failed.append(f"{number}: {error}")
            finally:
                with tally.lock:
                    tally.in_flight -= 1


@dataclass(frozen=True, slots=True)
class Line:
    """One line that a run left."""

    number: int
    job: int
    attempt: int
    due_ms: int
    started_ms: int
    word: str


def read_runs(path: Path) -> list[Line]:
    """Return what ran so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    parts = [line.split() for line in lines]
    return [
        Line(int(p[0]), int(p[1]), int(p[2]), int(p[3]), int(p[4]), p[5])
        for p in parts
        if len(p) == 6
    ]


def wait_for(processes: Processes, wanted: set[int], patience_s: float) -> None:
    """Wait until every wanted job has succeeded, or patience is over."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        done = {line.number for line in read_runs(processes.runs) if line.word == "done"}
        if wanted <= done:
            return
        time.sleep(0.1)


def report(tally: Tally, lines: list[Line]) -> bool:
    """Print how it went; whether the promises held."""
    done = [line for line in lines if line.word == "done"]
    times: dict[int, int] = {}
    for line in done:
        times[line.number] = times.get(line.number, 0) + 1
    must = {number for number, c in tally.jobs.items() if not c.cancelled}
    lost = sorted(must - times.keys())
    ghosts = sorted(n for n, c in tally.jobs.items() if c.cancelled and n in times)
    early = [line for line in lines if line.started_ms < line.due_ms]
    early += [
        line
        for line in done
        if line.number in tally.jobs and line.started_ms < tally.jobs[line.number].not_before_ms
    ]
    late = sorted(line.started_ms - line.due_ms for line in lines) or [0]
    kinds = ", ".join(
        f"{sum(c.kind == kind for c in tally.jobs.values())} {kind.removeprefix('demo.')}"
        for kind in dict.fromkeys(KINDS)
    )
    print(f"  confirmed  {len(tally.jobs)} jobs: {kinds}")
    print(f"  keys       {tally.existing} scheduled twice, one job each")
    print(f"  cancelled  {tally.cancelled}, of which ran: {len(ghosts)}")
    failed = sum(line.word == "failed" for line in lines)
    print(f"  runs       {len(lines)} attempts, {failed} failed on purpose and were retried")
    middle, p99 = late[len(late) // 2], late[len(late) * 99 // 100]
    print(f"  lateness   p50 {middle} ms, p99 {p99} ms, max {late[-1]} ms (the kill included)")
    print(f"  lost {len(lost)}   early {len(early)}   twice {sum(n > 1 for n in times.values())}")
    for text in [
        *(f"lost: {tally.jobs[n].kind} number {n}, job {tally.jobs[n].job}" for n in lost[:10]),
        *tally.failed[:10],
    ]:
        print(f"  ! {text}")
    return not (lost or early or ghosts or tally.failed)


def play(processes: Processes, seed: int, after_kill: str | None) -> bool:
    """Run the demo; whether the promises held."""
    rng = random.Random(seed)  # noqa: S311
    tally = Tally()
    server = processes.serve()
    processes.work()
    shares = [range(i, JOBS, THREADS) for i in range(THREADS)]
    threads = [
        threading.Thread(target=schedule_share, args=(processes.url, share, seed + i, tally))
        for i, share in enumerate(shares)
    ]
    kill_at = rng.randrange(JOBS // 4, JOBS * 3 // 4)
    for thread in threads:
        thread.start()
    while len(tally.jobs) < kill_at or tally.in_flight == 0:
        time.sleep(0.0005)
    server.send_signal(signal.SIGKILL)
    print(f"  kill -9    {len(tally.jobs)} jobs confirmed, {tally.in_flight} calls in flight")
    server.wait()
    if after_kill is not None:
        subprocess.run([*shlex.split(after_kill), str(processes.folder / "data")], check=True)
    started = time.monotonic()
    processes.serve()
    print(f"  restart    answering again after {time.monotonic() - started:.2f} s")
    for thread in threads:
        thread.join()
    wanted = {number for number, c in tally.jobs.items() if not c.cancelled}
    wait_for(processes, wanted, SPREAD_S + 2 if after_kill else PATIENCE_S)
    return report(tally, read_runs(processes.runs))


def main() -> int:
    """Run the demo and say how it went; 0 if every promise held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="repeat this run's random choices")
    parser.add_argument(
        "--after-kill", help="a command to run on the data folder while the server is dead (tests)"
    )
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    started = time.monotonic()
    print(f"wheeld demo, seed {seed}")
    with tempfile.TemporaryDirectory(prefix="wheeld-demo-") as folder:
        processes = Processes(Path(folder))
        held = False
        try:
            held = play(processes, seed, options.after_kill)
        finally:
            processes.stop()
            if not held:
                for name in ("server.txt", "worker.txt"):
                    path = processes.folder / name
                    lines = path.read_text().splitlines() if path.exists() else []
                    print(f"--- the end of {name}", *lines[-15:], sep="\n")
    verdict = "every promise held" if held else "A PROMISE WAS BROKEN"
    print(f"{verdict}, {time.monotonic() - started:.1f} s")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
