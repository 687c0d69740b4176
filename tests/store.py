"""A store with real jobs: lives of an engine without a network, its clock moved by hand.

The same calls make the same bytes, on a real disk and on a simulated one.
"""

from wal.checkpoint import Made
from wal.disk import RealDisk
from wal.frame import FsyncMode
from wal.log import open_store
from wheel.engine.core import Commit, Core, CoreOptions, Sync
from wheel.engine.facts import CheckpointPhase, Clocks
from wheel.engine.records import Flag, Kind, Policy, Record, encode

UUID = bytes(range(16))
BOOT_ID = bytes(range(16, 32))
WALL_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
SEGMENT_BYTES = 1 << 14


class Life:
    """One life of a process on a store."""

    def __init__(
        self,
        path,
        *,
        disk=None,
        fsync=FsyncMode.ALWAYS,
        wall_ms=WALL_MS,
        segment_bytes=SEGMENT_BYTES,
        salt_seed=7,
        uuid=UUID,
    ):
        self.disk = disk or RealDisk()
        self.wall_ms = wall_ms
        self.store = open_store(
            str(path),
            disk=self.disk,
            fsync=fsync,
            wall_ms=wall_ms,
            new_uuid=uuid,
            segment_bytes=segment_bytes,
        )
        self.core = Core(
            CoreOptions(
                jobs_max=10_000,
                conns_max=4,
                store=self.store.uuid,
                commit=Commit.INLINE,
                sync=Sync(int(fsync)),
                sockets=False,
                hand_clock=True,
            )
        )
        try:
            self._start(salt_seed)
        except BaseException:
            self.core.close()
            self.store.close()
            raise

    def _start(self, salt_seed):
        for piece in self.store.load():
            if piece.data is not None:
                self.core.load(piece.data)
        for chunk in self.store.replay():
            self.core.replay(chunk.data, term=chunk.term)
        last = self.store.last_times
        rel_ms = self.wall_ms if last is None or last.rel_ms is None else last.rel_ms
        self.log = self.store.start(
            wall_ms=self.wall_ms,
            rel_minus_boot_ms=rel_ms - 1_000,
            boot_id=BOOT_ID,
            salt_seed=salt_seed,
        )
        self.core.attach_log(self.log.handle)
        self.boot_ms = 1_000
        self.core.start(term=self.log.term, rel_ms=rel_ms, clocks=self._clocks())
        self.handle = self.core.fed_open("test")

    def _clocks(self):
        return Clocks(wall_ms=self.wall_ms, boot_ms=self.boot_ms, mono_ms=self.boot_ms)

    def advance(self, ms):
        self.wall_ms += ms
        self.boot_ms += ms
        self.core.tick(self._clocks())

    def ask(self, line):
        """Return the reply to one line."""
        self.core.fed_input(self.handle, line.encode() + b"\r\n")
        self.core.commit()
        self.core.tick(self._clocks())
        output = self.core.fed_output(self.handle)
        self.core.fed_taken(self.handle, len(output.data))
        return output.data

    def submit(self, *records):
        """Carry out operations of the control plane; return the ids of new jobs."""
        ids = self.core.submit(b"".join(map(encode, records)))
        self.core.commit()
        return ids

    def save(self, *, keep=2, between=lambda: None):
        """Make a checkpoint and put it in force; between() runs behind its first slice."""
        files = self.log.checkpoints
        self.core.checkpoint_start(
            files.temporary_path(), salt=9, io=self.disk.io, threaded=False, slice_things=7
        )
        between()
        for _ in range(10_000):
            state = self.core.checkpoint_state()
            if state.phase in (CheckpointPhase.DONE, CheckpointPhase.FAILED):
                break
            self.core.commit()
        assert state.phase == CheckpointPhase.DONE, state
        self.log.sync()
        made = Made(
            start_lsn=state.start_lsn,
            end_lsn=state.end_lsn,
            size_bytes=state.size_bytes,
            digest=state.crc,
            rows=state.jobs,
        )
        checkpoint = files.publish(made, keep=keep, wall_ms=self.wall_ms)
        self.core.checkpoint_abort()
        files.drop()
        return checkpoint

    def stop(self):
        self.log.sync()
        self.log.mark(clean=True)
        self.kill()

    def kill(self):
        self.core.close()
        self.log.close()


def filled(path, **options):
    """Return a stopped store at path: jobs in every state, two checkpoints, log behind them."""
    life = Life(path, **options)
    for i in range(40):
        life.ask(f"SCHEDULE mail +{i + 1}s payload-{i} KEY k{i} ONCE token-{i}")
    life.ask("SCHEDULE pay now 12345 GROUP g META m")
    life.save()
    life.advance(20_000)
    reply = life.ask("LEASE mail COUNT 10 WORKER w1").decode()
    receipts = [line for line in reply.split("\r\n") if line.count(".") == 2]
    assert len(receipts) == 10
    life.ask("ACK " + " ".join(receipts[:4]))
    life.ask(f"FAIL {receipts[4]} DEAD ERROR broken")
    life.ask(f"FAIL {receipts[5]} ERROR again")
    life.save(between=lambda: life.ask("SCHEDULE late +1h between"))
    life.ask("CANCEL k30")
    life.ask("SCHEDULE pay +9h more")
    life.stop()
    return path


def varied(path, **options):
    """Return a stopped store at path: every kind of record that a small store can have.

    Half of them are covered by a checkpoint in force, and half are in the log behind it.
    """
    filled(path, **options)
    for number in (1, 2):
        life = Life(path, salt_seed=7 + number, **options)
        every_kind(life, f"{number}")
        if number == 1:
            life.save()
            life.stop()
        else:
            life.kill()
    return path


def every_kind(life, tag):
    life.ask("HANDLER mail RETRIES 5 LEASE 30000 CONCURRENCY 100")
    life.ask(f"SCHEDULE mail +1h new KEY r{tag} ONDUP replace")
    life.ask(f"SCHEDULE mail +2h newer KEY r{tag} ONDUP replace ONCE o{tag}")
    life.ask(f"SCHEDULE mail +2h x KEY r{tag} ONCE p{tag}")
    life.ask(f"RESCHEDULE r{tag} +3h")
    for name in "abc":
        life.ask(f"SCHEDULE brief{tag} now {name} LEASE 1000 KEY {name}{tag}")
    reply = life.ask(f"LEASE brief{tag} COUNT 3").decode()
    a, b, c = [line for line in reply.split("\r\n") if line.count(".") == 2]
    life.ask(f"EXTEND {a} FOR 60000")
    life.ask(f"CANCEL a{tag}")
    life.ask(f"FAIL {b} DEAD ERROR first")
    life.ask(f"FAIL {c} DEAD ERROR second")
    life.ask("REQUEUE " + b.split(".", maxsplit=1)[0])
    life.ask("PURGE " + c.split(".", maxsplit=1)[0])
    owned = life.submit(
        Record(
            kind=Kind.CREATED,
            due_ms=life.wall_ms + 5_000,
            flags=Flag.HELD,
            priority=128,
            payload=b"owned",
            owner=b"run-" + tag.encode(),
            name=b"cron",
            blob=Policy().blob(),
        ),
        Record(kind=Kind.PUT, reason=1, name=b"kept" + tag.encode(), blob=b"value" * 20),
        Record(kind=Kind.PUT, reason=1, name=b"gone" + tag.encode(), blob=b"value"),
    )
    life.submit(
        Record(kind=Kind.UNHELD, id=owned[0], due_ms=life.wall_ms + 9_000, flags=Flag(0)),
        Record(kind=Kind.DEL, reason=1, name=b"gone" + tag.encode()),
    )
    life.ask(f"CANCEL {owned[0]}")
    life.submit(Record(kind=Kind.CLOSED, id=owned[0]))
    life.core.accept_clock()
    life.core.raise_generations(70_000 + int(tag))
    life.core.commit()
