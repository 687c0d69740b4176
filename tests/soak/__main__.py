"""Soak a real server: a mixed load at 70 % of what it carries, a fault a minute, and what it keeps.

    python -m tests.soak [--minutes 30] [--warm-up 12] [--share 1.0] [--fsync always]

A server with checkpoints is filled (an hour's ended jobs), its peak is found by a short probe, and
it is warmed up at 70 % of that (times ``--share``, on a machine that others use too) while every
fault comes once, the largest first, with a kill -9 in between. Then it is watched for so many
minutes with a fault each minute; at the end it is killed once more and everything is drained.

Prints a line a minute and at the end a verdict. Exit status 0: no job that was confirmed was lost,
none ended twice, none began early, each minute of each schedule has one run or a reason, and
neither memory nor descriptors nor threads grow. Samples and minutes go into JSON lines.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.certificates import Authority
from tests.ports import free_port
from tests.process import Server, compiled
from tests.soak import schedules
from tests.soak.faults import SLOW_SYNC_MS, Crew, Faults
from tests.soak.figures import MINUTE_S, Sample, look, slopes_of
from tests.soak.ledger import DRAIN, STOP, Ledger, settle
from tests.soak.peer import pause
from wheel.wire import encode_command

SAMPLE_S: Final = 3.0
REMEMBERED: Final = re.compile(rb"limit_(ended|once)_[a-z]+:max=[0-9]+,now=([0-9]+)")
PROBE_S: Final = 20.0
PROBE_SKIP_S: Final = 8.0  # until all peers are there
PEAK_SHARE: Final = 0.7
FIRST_SCALE: Final = 1.5  # of the faults of the warm-up: what comes later stays below
FILL_CHUNK: Final = 2_000
ENDED_MAX: Final = 4 * 1024 * 1024
DONE_EVERY: Final = 50
DRAIN_S: Final = 180.0
SAVE_MINUTES: Final = 4
DEAD_MAX: Final = 2_000
JOBS_MAX: Final = 100_000_000  # of one soak; the ledger's file is sparse
OPTIONS: Final = ("--checkpoint-after", "16M", "--segment-size", "16M")


class Watch:
    """Takes a sample every few seconds, in a thread of its own."""

    def __init__(self, server: Server, out: Path) -> None:
        self._server = server
        self._file = out.open("a", encoding="ascii")
        self.samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            process = self._server.process
            if process is None or process.poll() is not None:
                continue
            try:
                sample = look(process.pid, **self._remembered())
            except OSError:  # it was killed meanwhile
                continue
            self.samples.append(sample)
            self.write(asdict(sample))

    def _remembered(self) -> dict[str, int]:
        """Ask how many ended jobs and tokens are remembered."""
        reply = self._server.call("INFO", "limits")
        found = REMEMBERED.findall(reply) if isinstance(reply, bytes) else []
        if not found:
            raise ConnectionError("still loading")
        return {name.decode(): int(now) for name, now in found}

    def write(self, line: dict[str, object]) -> None:
        """Write a line down."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Take no more."""
        self._over.set()
        self._thread.join()
        self._file.close()


class Soak:
    """One soak."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.out = options.out or folder / "soak.jsonl"
        self.server = Server(folder / "data")
        self.tls_port = free_port()
        authority = Authority(folder, "authority")
        self.certificate = authority.issue("server", "IP:127.0.0.1")
        shims = [compiled(folder, name) for name in ("slow_sync", "no_room")]
        self.server.env = {
            "LD_PRELOAD": ":".join(map(str, shims)),
            "SLOW_SYNC_WHEN": str(folder / "slow"),
            "SLOW_SYNC_MS": str(SLOW_SYNC_MS),
            "NO_ROOM_WHEN": str(folder / "full"),
        }
        self.server.options = (
            *OPTIONS,
            *("--fsync", options.fsync, "--dead-max", str(DEAD_MAX), "--maxclients", "2000"),
            *("--tls-listen", f"127.0.0.1:{self.tls_port}"),
            *("--tls-cert", str(self.certificate.certificate)),
            *("--tls-key", str(self.certificate.key)),
        )
        self.ledger = Ledger(folder / "ledger", numbers=JOBS_MAX)
        self.faults_seen: Counter[str] = Counter()
        self.saves = 0

    def run(self) -> int:
        """Run it; 0 = all is well."""
        self.watch = Watch(self.server, self.out)
        crew: Crew | None = None
        try:
            self.server.start()
            self._say(f"samples in {self.out}")
            self._fill()
            self.runs = self.folder / "runs"
            crew = Crew(self.folder / "ledger", self.server.port, self.runs)
            self.crons = schedules.Schedules(self.server)
            self.faults = Faults(
                self.server,
                crew,
                self.ledger,
                folder=self.folder,
                certificate=self.certificate,
                tls_port=self.tls_port,
                seed=self.options.seed,
            )
            self.crew = crew
            self._probe()
            self._warm_up()
            window = self._window()
            self._end()
            return self._verdict(window)
        finally:
            self.ledger.put("phase", STOP)
            self.watch.close()
            if crew is not None:
                crew.close()
            self.server.close()

    # ---------------------------------------------------------------- the parts

    def _fill(self) -> None:
        """End as many jobs as are remembered, one in fifty with a result, as in the load."""
        count = self.options.ended
        with self.server.connect() as connection:
            line = b"SCHEDULE fill now x EXPIRE now\r\n"
            for at in range(0, count, FILL_CHUNK):
                some = min(FILL_CHUNK, count - at)
                connection.socket.sendall(line * some)
                connection.send(
                    *[("SCHEDULE", "fill.done", "now", "x")] * (some // DONE_EVERY),
                    ("LEASE", "fill.done", "COUNT", 1000),
                )
                for _ in range(some + some // DONE_EVERY):
                    connection.read()
                jobs = connection.read()
                connection.socket.sendall(
                    b"".join(encode_command(("DONE", job[0], b'{"rows":31337}')) for job in jobs)
                )
                for _ in jobs:
                    connection.read()
        for _ in range(int(DRAIN_S)):
            info = self.server.info()
            if self.server.call("COUNT") == 0:
                self._say(f"filled: {info['limit_ended_ring']}")
                return
            pause(1)
        raise AssertionError("what was filled in does not end")

    def _probe(self) -> None:
        """Find what the machine carries, and set the rate."""
        self.ledger.put("rate", -1)
        pause(PROBE_SKIP_S)
        begin, begin_s = self.ledger.total("acked"), time.monotonic()
        pause(PROBE_S)
        peak = (self.ledger.total("acked") - begin) / (time.monotonic() - begin_s)
        rate = max(20, int(peak * PEAK_SHARE * self.options.share))
        self.ledger.put("rate", rate)
        self._say(
            f"peak {peak:.0f} jobs/s (scheduled, leased, ended; server and peers on one machine);"
            f" the soak runs at {rate} jobs/s = {100 * rate / peak:.0f} %"
        )
        self.watch.write({"peak": peak, "rate": rate})

    def _minute(self, until_s: float, fault: str, window: int = -1) -> None:
        """Let the rest of a minute pass, and say how things are."""
        pause(until_s - time.monotonic())
        self.crons.collect()
        self.crons.churn()
        if ended := self.crew.ended():
            raise AssertionError(ended)
        sample, info = self.watch.samples[-1], self.server.info()
        line = {
            "minute": window,
            "fault": fault,
            "rss_mb": round(sample.rss_bytes / 1e6, 2),
            "fds": sample.fds,
            "threads": sample.threads,
            "made": self.ledger.total("made"),
            "acked": self.ledger.total("acked"),
            "live": int(info["jobs_scheduled"]) + int(info["jobs_ready"]),
            "far": self.ledger.get("live_far"),
            "used_memory": int(info["used_memory"]),
            "ended": info["limit_ended_ring"],
            "once": info["limit_once_tokens"],
            "saves": info.get("checkpoints", ""),
        }
        self.watch.write(line)
        self._say(json.dumps({name: line[name] for name in list(line)[:9]}))

    def _warm_up(self) -> None:
        """Meet every fault once, the largest there will be, and a kill -9 of the server."""
        self.faults.scale = FIRST_SCALE
        self._kill()
        self.crons.fill()  # behind the kill: the caches go with the process
        rotation = self.faults.rotation
        gap_s = 60 * self.options.warm_up / len(rotation)
        for fault in rotation:
            until_s = time.monotonic() + gap_s
            self._harm(fault)
            self._minute(until_s, fault.__name__)
        self.faults.scale = 1.0

    def _window(self) -> list[Sample]:
        """Watch, with a fault each minute; return the samples."""
        first = len(self.watch.samples)
        begin_s = time.monotonic()
        rotation = self.faults.rotation
        for minute in range(self.options.minutes):
            fault = rotation[minute % len(rotation)]
            self._harm(fault)
            if minute % SAVE_MINUTES == 1:
                self.server.call("SAVE")
                self.saves += 1
            self._minute(begin_s + (minute + 1) * MINUTE_S, fault.__name__, minute + 1)
        return self.watch.samples[first:]

    def _harm(self, fault) -> None:
        fault()
        self.faults_seen[fault.__name__] += 1

    def _kill(self) -> None:
        self.server.kill()
        self.server.start()
        self.faults_seen["kill_server"] += 1

    def _end(self) -> None:
        """Kill the server once more, end everything, and stop the peers."""
        self.crons.stop()
        self._kill()
        self.crons.collect()
        self.ledger.put("phase", DRAIN)
        end_s = time.monotonic() + DRAIN_S
        while time.monotonic() < end_s:
            live = self._live()
            if self.ledger.get("drained") and not live:
                break
            pause(1)
        else:
            raise AssertionError(f"jobs do not end: {live}")
        self.crons.collect()
        self.ledger.put("phase", STOP)

    def _live(self) -> dict[str, int]:
        info = self.server.info()
        states = ("scheduled", "ready", "leased")  # held: runs of schedules that are paused now
        return {s: int(info[f"jobs_{s}"]) for s in states if int(info[f"jobs_{s}"])}

    # ---------------------------------------------------------------- the verdict

    def _verdict(self, window: list[Sample]) -> int:
        account = settle(self.ledger)
        slopes = slopes_of(window)
        ended = Counter(self.runs.read_text().split()) if self.runs.exists() else Counter()
        wrong = slopes.faults()
        wrong += [f"job {n} was confirmed and is lost" for n in account.lost]
        wrong += [f"job {n} ended twice" for n in account.twice]
        wrong += [f"run {name} ended {n} times" for name, n in ended.items() if n > 1]
        wrong += self.crons.faults()
        for figure, text in (("early", "began early"), ("after_end", "were granted after an end")):
            if count := self.ledger.total(figure):
                wrong.append(f"{count} jobs {text}")
        events = Counter(str(event.get("event")) for event in self.server.lines_so_far())
        wrong += [f"the log has {n} x {e}" for e, n in events.items() if e in schedules.FAULTS]
        report = {
            "slopes": {k: round(v, 3) for k, v in asdict(slopes).items()},
            "rss_mb": round(window[-1].rss_bytes / 1e6, 1) if window else 0,
            "cpu_share": self._cpu_share(window),
            "confirmed": account.confirmed,
            "ended": account.ended,
            "in_doubt": account.in_doubt,
            "lost": len(account.lost),
            "twice": len(account.twice),
            "runs": len(ended),
            "nominal_times": self.crons.nominal_times(),
            "faults": dict(self.faults_seen),
            "figures": {name: self.ledger.total(name) for name in FIGURES_SHOWN},
            "wrong": wrong[:50],
        }
        self.watch.write(report)
        self._say(json.dumps(report, indent=1))
        self._say("SOAK FAILED" if wrong else "SOAK PASSED")
        return 1 if wrong else 0

    @staticmethod
    def _cpu_share(window: list[Sample]) -> float:
        if len(window) < 2:
            return 0.0
        first, last = window[0], window[-1]
        return round((last.cpu_s - first.cpu_s) / (last.at_s - first.at_s), 3)

    @staticmethod
    def _say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


FIGURES_SHOWN: Final = (
    "commands", "made", "granted", "acked", "failed", "released", "extended", "let_go", "cancelled",
    "replaced", "stale", "refused", "broken",
)  # fmt: skip


def parse(words: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument(
        "--warm-up", type=float, default=12, help="minutes; with less the tokens of ONCE still grow"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of 70 % of the peak")
    parser.add_argument("--fsync", default="always", choices=["always", "interval", "off"])
    parser.add_argument("--ended", type=int, default=ENDED_MAX, help="jobs to fill in")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep everything in here")
    parser.add_argument("--out", type=Path, help="JSON lines")
    return parser.parse_args(words)


def main() -> int:
    """Run a soak."""
    options = parse(sys.argv[1:])
    folder = options.folder or Path(tempfile.mkdtemp(prefix="wheeld-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    status = 1
    try:
        status = Soak(options, folder).run()
    finally:
        if status == 0 and options.folder is None:
            shutil.rmtree(folder)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
