"""A small server for tests of the user's side: a real TCP socket, the protocol, breaks on order.

It holds jobs without time: what is scheduled is ready. ``script`` makes the next commands of a verb
go wrong; ``wait_until`` waits for what the server has seen, so that no test sleeps.
"""

import contextlib
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from wheel.wire import NOT_READY, ReplyError, ReplyReader, Simple, encode_reply

STORE = "0123456789abcdef0123456789abcdef"
WAIT_S = 20  # for what must happen: a test that needs it has failed


@dataclass
class FakeJob:
    id: int
    handler: str
    when: str
    payload: bytes
    options: dict[str, str]
    state: str = "ready"
    attempt: int = 0
    receipt: str = ""
    result: bytes | None = None
    ended_by: str = ""


@dataclass(eq=False)
class Peer:
    number: int
    socket: socket.socket
    inbox: deque[list[bytes]] = field(default_factory=deque)
    ended: bool = False


class FakeServer:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: dict[int, FakeJob] = {}
        self.commands: list[tuple[int, list[str]]] = []  # (connection, words)
        self.schedules: dict[str, list[bytes]] = {}  # what CRON SET said of each
        self.lease_ms = 60_000
        self.extend_answers: dict[str, str] = {}  # receipt or "*" -> error code
        self.token = ""
        self.parked = 0
        self._once: dict[str, object] = {}
        self._scripts: dict[str, deque[str]] = defaultdict(deque)
        self._peers: set[Peer] = set()
        self._peer_count = 0
        self._fences = 0
        self._free_leases = False
        self._listener: socket.socket | None = None
        self.port = 0
        self.start()

    # -------------------------------------------------------- for tests

    @property
    def url(self) -> str:
        return f"wheeld://127.0.0.1:{self.port}"

    def script(self, verb: str, *actions: str) -> None:
        """Have the next commands of a verb go wrong, one action each.

        ``pass``, ``drop_before`` and ``drop_after`` (applying it), ``silent``, or the words of an
        error reply.
        """
        with self.changed:
            self._scripts[verb].extend(actions)

    def seen(self, verb: str) -> list[list[str]]:
        with self.changed:
            return [words for _, words in self.commands if words[0] == verb]

    def wait_until(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout=WAIT_S), "it never came to that"

    def add(self, handler: str, payload: bytes = b"{}", **options: str) -> FakeJob:
        with self.changed:
            job = self._add(handler, "now", payload, options)
            self.changed.notify_all()
            return job

    def states(self) -> list[str]:
        with self.changed:
            return [job.state for job in self.jobs.values()]

    def answer_parked(self) -> None:
        """Answer every waiting LEASE with an empty array, once."""
        with self.changed:
            self._free_leases = True
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: not self.parked, timeout=WAIT_S)
            self._free_leases = False

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """Close the port and every connection; what it holds stays."""
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self.changed:
            for peer in self._peers:
                hang_up(peer.socket)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: not self._peers, timeout=WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(AssertionError):
            self.stop()

    # -------------------------------------------------------- connections

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.changed:
                self._peer_count += 1
                peer = Peer(self._peer_count, accepted)
                self._peers.add(peer)
            threading.Thread(target=self._read, args=(peer,), daemon=True).start()
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _read(self, peer: Peer) -> None:
        reader = ReplyReader()
        data = b"first"
        while data:
            try:
                data = peer.socket.recv(65536)
            except OSError:
                data = b""
            reader.feed(data)
            with self.changed:
                while data and (words := reader.gets()) is not NOT_READY:
                    assert isinstance(words, list)
                    peer.inbox.append([word for word in words if isinstance(word, bytes)])
                peer.ended = not data
                self.changed.notify_all()

    def _answer(self, peer: Peer) -> None:
        with peer.socket:
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: peer.inbox or peer.ended)
                    if not peer.inbox:
                        break
                    words = peer.inbox.popleft()
                    data = self._reply(peer, words)
                    self.changed.notify_all()
                if data is None:
                    break
                try:
                    peer.socket.sendall(data)
                except OSError:
                    break
            hang_up(peer.socket)
        with self.changed:
            self._peers.discard(peer)
            self.changed.notify_all()

    def _reply(self, peer: Peer, words: list[bytes]) -> bytes | None:
        verb = words[0].decode().upper()
        self.commands.append((peer.number, [word.decode("utf-8", "replace") for word in words]))
        self.changed.notify_all()
        script = self._scripts[verb]
        action = script.popleft() if script else "pass"
        if action == "drop_before":
            return None
        if action not in {"pass", "drop_after", "silent"}:
            code, _, text = action.partition(" ")
            return encode_reply(ReplyError(code, text), 2)
        reply = getattr(self, f"_do_{verb.lower()}")(peer, words[1:])
        if action == "silent":
            return b""
        return None if action == "drop_after" else encode_reply(reply, 2)

    # -------------------------------------------------------- commands

    def _do_hello(self, _peer: Peer, words: list[bytes]) -> object:
        if self.token and words[3:] != [self.token.encode()]:
            return ReplyError("WRONGPASS", "no such token")
        return {"server": "wheeld", "store": STORE, "term": 1}

    def _do_ping(self, _peer: Peer, _words: list[bytes]) -> object:
        return Simple("PONG")

    def _do_handler(self, _peer: Peer, _words: list[bytes]) -> object:
        return {}

    def _do_cron(self, _peer: Peer, words: list[bytes]) -> object:
        name = words[1].decode()
        word = "created" if name not in self.schedules else "unchanged"
        if self.schedules.get(name, words) != words:
            word = "changed"
        self.schedules[name] = words
        return [1, word, 1_798_099_200_000]

    def _do_schedule(self, _peer: Peer, words: list[bytes]) -> object:
        handler, when, payload = words[0].decode(), words[1].decode(), words[2]
        options = pairs(words[3:])
        token = options["ONCE"]
        if token in self._once:
            return self._once[token]
        key = options.get("KEY")
        taken = [job for job in self.jobs.values() if key and job.options.get("KEY") == key]
        if not taken:
            job = self._add(handler, when, payload, options)
            reply: object = str(job.id) if key is None else [str(job.id), "created", "scheduled"]
        elif options.get("ONDUP") == "error":
            return ReplyError("EXISTS", f"the key {key} is taken")
        elif options.get("ONDUP") == "replace":
            taken[0].when, taken[0].payload = when, payload
            reply = [str(taken[0].id), "replaced", "scheduled"]
        else:
            reply = [str(taken[0].id), "existing", taken[0].state]
        self._once[token] = reply
        return reply

    def _add(self, handler: str, when: str, payload: bytes, options: dict[str, str]) -> FakeJob:
        job = FakeJob(1000 + len(self.jobs), handler, when, payload, options)
        self.jobs[job.id] = job
        return job

    def _do_lease(self, peer: Peer, words: list[bytes]) -> object:
        names = words[0].decode().split(",")
        options = pairs(words[1:])

        def ready() -> list[FakeJob]:
            jobs = [job for job in self.jobs.values() if job.state == "ready"]
            return [job for job in jobs if job.handler in names][: int(options["COUNT"])]

        if not ready():
            self.parked += 1
            self.changed.notify_all()
            self.changed.wait_for(
                lambda: ready() or peer.ended or self._free_leases,
                timeout=int(options["WAIT"]) / 1000,
            )
            self.parked -= 1
        return [self._grant(job) for job in ready()]

    def _grant(self, job: FakeJob) -> list[object]:
        self._fences += 1
        job.state = "leased"
        job.attempt += 1
        job.receipt = f"{job.id}.1.{self._fences}"
        run = job.options.get("RUN")
        return [
            job.receipt,
            str(job.id),
            job.options.get("KEY"),
            job.handler,
            job.attempt,
            1_798_099_200_000,
            self.lease_ms,
            job.payload,
            300_000,
            job.options.get("META"),
            None,
            None if run is None else [run, 1_798_099_200_000, "2026-12-24"],
        ]

    def _holder(self, receipt: bytes) -> FakeJob | None:
        return next((job for job in self.jobs.values() if job.receipt == receipt.decode()), None)

    def _end(self, receipt: bytes, verb: str, state: str, good: object) -> object:
        job = self._holder(receipt)
        if job is None:
            return ReplyError("UNKNOWN", "no such receipt")
        if job.ended_by == f"{verb} {job.receipt}":
            return Simple("ALREADY")
        if job.state != "leased":
            return ReplyError("STALE", "it was given back or to somebody else")
        job.state = state
        job.ended_by = f"{verb} {job.receipt}"
        return good

    def _do_ack(self, _peer: Peer, words: list[bytes]) -> object:
        return [self._end(receipt, "ACK", "succeeded", Simple("OK")) for receipt in words]

    def _do_done(self, _peer: Peer, words: list[bytes]) -> object:
        reply = self._end(words[0], "DONE", "succeeded", Simple("OK"))
        job = self._holder(words[0])
        if job is not None:
            job.result = words[1]
        return reply

    def _do_fail(self, _peer: Peer, words: list[bytes]) -> object:
        job = self._holder(words[0])
        if job is not None and b"RESULT" in words:
            job.result = words[words.index(b"RESULT") + 1]
        if b"DEAD" in words:
            return self._end(words[0], "FAIL", "dead", Simple("DEAD"))
        return self._end(words[0], "FAIL", "scheduled", Simple("RETRY 1798099200000"))

    def _do_release(self, _peer: Peer, words: list[bytes]) -> object:
        state = "scheduled" if b"IN" in words else "ready"
        return self._end(words[0], "RELEASE", state, Simple("OK"))

    def _do_extend(self, _peer: Peer, words: list[bytes]) -> object:
        receipts = words[: words.index(b"FOR")] if b"FOR" in words else words
        answers: list[object] = []
        for receipt in receipts:
            code = self.extend_answers.get(receipt.decode(), self.extend_answers.get("*"))
            answers.append(ReplyError(code, "so it is") if code else self.lease_ms)
        return answers

    def _do_cancel(self, _peer: Peer, words: list[bytes]) -> object:
        job = self._find(words[0].decode())
        if job is None:
            return [ReplyError("UNKNOWN", "no such job")]
        word = {"ready": "CANCELLED", "leased": "MARKED"}.get(job.state, "ENDED")
        if word == "CANCELLED":
            job.state = "cancelled"
        return [Simple(word)]

    def _do_job(self, _peer: Peer, words: list[bytes]) -> object:
        job = self._find(words[0].decode())
        if job is None:
            return None
        return {
            "id": str(job.id),
            "key": job.options.get("KEY"),
            "handler": job.handler,
            "state": job.state,
            "attempt": job.attempt,
            "due_ms": 1_798_099_200_000,
            "news": [1, 2],
        }

    def _find(self, name: str) -> FakeJob | None:
        if name.isdigit():
            return self.jobs.get(int(name))
        found = [job for job in self.jobs.values() if job.options.get("KEY") == name]
        return found[0] if found else None


def pairs(words: list[bytes]) -> dict[str, str]:
    """Give the options by name; BACKOFF takes up to three words."""
    options: dict[str, str] = {}
    rest = [word.decode("utf-8", "replace") for word in words]
    while rest:
        name, value = rest.pop(0), rest.pop(0)
        if name == "BACKOFF":
            while rest and rest[0].isdigit():
                value += f" {rest.pop(0)}"
        options[name] = value
    return options


def hang_up(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
