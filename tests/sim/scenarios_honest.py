"""What a reply may wait for, and what it must: the disk's calls beside the bytes at the client.

A figure of `off` or `always` is worth something only if the work was done. Each function asserts,
or passes; tests/c/mutants_honest.py plants what each must notice.
"""

import time
from socket import MSG_DONTWAIT, MSG_PEEK

from tests.live import Live
from tests.simdisk import SimDisk
from tests.tracing import TracingDisk
from wheel.engine.core import Commit, Sync

CLIENTS = 8
ROUNDS = 3
OWN_SYNC_US = 1_000_000  # the loop syncs by itself, if it may; 0: the thread does
INTERVAL_S = 0.050
SLACK_S = 0.100
INTERVALS = 6
PATIENCE_S = 2.0


class _Traced:
    """A server over a traced disk, and clients that it answers."""

    def __init__(self, commit, sync, own_sync_us=0):
        self.disk = TracingDisk(SimDisk())
        self.live = Live("/data", commit, sync, disk=self.disk, own_sync_us=own_sync_us)
        self.clients = [self.live.connect() for _ in range(CLIENTS)]
        for client in self.clients:
            self.live.ask(client, b"PING\r\n")
        self.disk.watch = self._answered

    def _answered(self):
        """Return the numbers of the clients that have bytes to read, as the kernel has them."""
        return frozenset(i for i, client in enumerate(self.clients) if self._peek(client))

    @staticmethod
    def _peek(client):
        try:
            return client.recv(1, MSG_PEEK | MSG_DONTWAIT)
        except BlockingIOError:
            return b""

    def round(self, number):
        """Let every client schedule a job; judge the calls of the disk when all are answered."""
        self.disk.calls.clear()
        for i, client in enumerate(self.clients):
            client.sendall(b"SCHEDULE mail +1h %s\r\n" % _mark(number, i))
        answered_at = {}
        for i, client in enumerate(self.clients):
            self.live.read(client, b"\r\n")
            answered_at[i] = len(self.disk.calls)
        calls = list(self.disk.calls)
        for i, known in answered_at.items():
            yield calls, _write_of(calls[:known], _mark(number, i)), _first_seen(calls, i)

    def close(self):
        self.disk.watch = frozenset
        self.live.close()


def _mark(number, client):
    return b"round-%d-client-%d." % (number, client)


def _write_of(calls, mark):
    """Return the place of the write that holds a job, when its client has been answered."""
    for at, call in enumerate(calls):
        if call.name == "pwrite" and mark in call.data:
            return at
    raise AssertionError(f"{mark!r} was answered and not written")


def _first_seen(calls, client):
    """Return the place of the first call at which the client had its reply."""
    return next((at for at, call in enumerate(calls) if client in call.seen), len(calls))


def _sync_of(calls, written):
    """Return the place of the sync behind a write, of the same file; a big number: none."""
    for at in range(written + 1, len(calls)):
        if calls[at].name == "datasync" and calls[at].fd == calls[written].fd:
            return at
    return 1 << 30


def _run(commit, sync, own_sync_us, judge):
    traced = _Traced(commit, sync, own_sync_us)
    try:
        for number in range(ROUNDS):
            for calls, written, seen in traced.round(number):
                judge(calls, written, seen)
    finally:
        traced.close()


def always_writes_and_syncs_before_the_reply():
    def judge(calls, written, seen):
        assert seen > written, "a reply was out before its write began"
        assert seen > _sync_of(calls, written), "a reply was out before its sync was over"

    _run(Commit.INLINE, Sync.ALWAYS, 0, judge)
    _run(Commit.THREAD, Sync.ALWAYS, 0, judge)
    _run(Commit.THREAD, Sync.ALWAYS, OWN_SYNC_US, judge)


def off_writes_before_the_reply():
    def judge(calls, written, seen):
        assert seen > written, "a reply was out before its write began"
        assert all(call.name != "datasync" for call in calls), "mode off synced"

    _run(Commit.THREAD, Sync.OFF, 0, judge)


def interval_writes_before_the_reply():
    def judge(_calls, written, seen):
        assert seen > written, "a reply was out before its write began"

    _run(Commit.THREAD, Sync.INTERVAL, 0, judge)


def interval_syncs_within_its_interval():
    """Behind each write, with nothing else to do, and soon.

    A write behind a sync waits a whole interval. A busy machine makes it longer now and then, never
    each time.
    """
    traced = _Traced(Commit.THREAD, Sync.INTERVAL)
    gaps_s = []
    try:
        while len(gaps_s) < 2 or min(gaps_s[1:]) > INTERVAL_S + SLACK_S:
            assert len(gaps_s) < INTERVALS, f"writes waited {gaps_s} s for their sync"
            (_, written, _), *_rest = traced.round(len(gaps_s))
            deadline = time.monotonic() + PATIENCE_S
            while (at := _sync_of(traced.disk.calls, written)) == 1 << 30:
                assert time.monotonic() < deadline, "a write was never synced"
                traced.live.core.poll(10)
            gaps_s.append(traced.disk.calls[at].at_s - traced.disk.calls[written].at_s)
    finally:
        traced.close()
