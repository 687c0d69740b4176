"""The handlers of the demo.

Each run leaves a line in $DEMO_RUNS, in one write, so that lines of parallel runs never mix:
number, job id, attempt, due ms, started ms, how it ended.
"""

import os
import time

import wheeld as wheel

app = wheel.App()
LEASE = "3s"
FAILURES = 2  # how often demo.flaky fails before it succeeds


def note(run: wheel.Run, number: int, word: str, started_ms: int) -> None:
    """Append one line about a run."""
    due_ms = round(run.due.timestamp() * 1000)
    line = f"{number} {run.id} {run.attempt} {due_ms} {started_ms} {word}\n"
    runs = os.open(os.environ["DEMO_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(runs, line.encode())
    finally:
        os.close(runs)


def now_ms() -> int:
    """Return the wall clock, rounded down: a run that looks early is early."""
    return time.time_ns() // 1_000_000


@app.handler("demo.plain", lease=LEASE)
def plain(run: wheel.Run, number: int) -> None:
    """Succeed at once."""
    note(run, number, "done", now_ms())


@app.handler("demo.keyed", lease=LEASE)
def keyed(run: wheel.Run, number: int) -> None:
    """Succeed at once; its key was scheduled twice."""
    note(run, number, "done", now_ms())


@app.handler("demo.flaky", lease=LEASE, retries=10, backoff=wheel.backoff("200ms", "fixed"))
def flaky(run: wheel.Run, number: int) -> None:
    """Fail twice, then succeed."""
    started_ms = now_ms()
    if run.attempt <= FAILURES:
        note(run, number, "failed", started_ms)
        raise RuntimeError(f"attempt {run.attempt} of job {number} fails on purpose")
    note(run, number, "done", started_ms)


@app.handler("demo.slow", lease=LEASE)
def slow(run: wheel.Run, number: int) -> None:
    """Take a quarter of a second, so that some run while the server is dead."""
    started_ms = now_ms()
    time.sleep(0.25)
    note(run, number, "done", started_ms)


@app.handler("demo.cancelled", lease=LEASE)
def cancelled(run: wheel.Run, number: int) -> None:
    """Never run: every one of these is cancelled before it is due."""
    note(run, number, "done", now_ms())
