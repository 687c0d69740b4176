"""Reads the files again that a start would need, while the server runs, and tells of damage.

What rots on a disk is found by reading it, and a start is a bad moment for that: the server's
memory, which holds all of it, is gone by then. So a thread reads the checkpoints in force and the
sealed segments that are still needed, through the very readers of a start (wal/generations.py,
wal/reader.py), and asks for a checkpoint when one of them does not verify.

A pass goes over everything. The next begins when something new is sealed or in force, so a file is
read once soon after it was written, when a disk that loses writes shows it; and after 24 hours,
because what rests rots too. It is paced, leaves the page cache before and behind it, because a page
that is still cached says nothing of the medium, and holds no lock; the files are opened for
reading, and nothing is synced. It keeps a buffer of 4 MiB, or of the longest frame or chunk.

Checkpoints delete files meanwhile. MANIFEST in memory is replaced before that, so what is found
missing or wrong is looked up there again, and counts only while it is still needed.
"""

import errno
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, cast

from structlog.typing import FilteringBoundLogger

from server.checkpoints import Damaged
from server.clock import Clock
from server.info import Section
from server.pace import PacedDisk, StoppedError
from wal.disk import Disk
from wal.errors import RefusedError, Rule
from wal.facts import LogStats
from wal.generations import CheckpointDamagedError, CheckpointFile
from wal.manifest import Checkpoint, Manifest
from wal.reader import Reader
from wal.segment import SegmentFile, list_segments, needed

LOOK_S: Final = 1.0  # for something new
AGAIN_NS: Final = 24 * 3_600_000_000_000
PAUSE_NS: Final = 60_000_000_000  # behind a pass that found damage: a bad disk makes no storm
JOIN_S: Final = 5.0


class Files(Protocol):
    """What this file needs of wal.checkpoint.Checkpoints: reads of one attribute each."""

    manifest: Manifest

    @property
    def folder(self) -> str:
        """Return where the files of checkpoints lie."""
        ...


class Log(Protocol):
    """What this file needs of the log."""

    def stats(self) -> LogStats:
        """Return the figures."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A place that does not verify, and what it is part of."""

    path: str
    offset: int
    rule: str
    detail: str
    damaged: Damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a pass reads: MANIFEST as it was in force, segments that are sealed and needed.

    The name of the segment behind them says that it begins at next_lsn; 0 = not known.
    """

    manifest: Manifest
    segments: tuple[SegmentFile, ...]
    next_lsn: int


class Scrubber:
    """Runs the thread. All but ``section`` and ``damaged_files`` belongs to it."""

    def __init__(
        self,
        *,
        disk: Disk,
        log: Log,
        files: Files,
        wal_path: str,
        rate_bytes: int,
        clock: Clock,
        logger: FilteringBoundLogger,
        on_damage: Callable[[Damaged], None],
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """Make the scrubber of one store.

        Args:
            disk: where it lies.
            log: tells which segment is written to.
            files: tells what is in force.
            wal_path: the folder of segments.
            rate_bytes: a second; 0 = ``start`` does nothing.
            clock: paces it.
            logger: for what is found.
            on_damage: called in the thread for each thing in force that is damaged, each pass.
            wait: sleeps; True when the server stops. None = until ``stop`` is called.
        """
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._disk = PacedDisk(disk, rate_bytes=max(1, rate_bytes), clock=clock, wait=self._wait)
        self._reading = cast("Disk", self._disk)  # what the readers ask of it when they only look
        self._names = disk
        self._wal = log
        self._files = files
        self._wal_path = wal_path
        self._rate_bytes = rate_bytes
        self._clock = clock
        self._log = logger
        self._on_damage = on_damage
        self._findings: dict[tuple[str, int], Finding] = {}
        self._state = "idle" if rate_bytes else "off"
        self._passes = self._errors = 0
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, name="wheeld-scrub", daemon=True)

    def start(self) -> None:
        """Start the thread, unless the rate is 0."""
        if self._rate_bytes:
            self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    @property
    def damaged_files(self) -> int:
        """How many files that are still in force were found damaged."""
        manifest = self._files.manifest
        found = tuple(self._findings.values())
        return len({one.path for one in found if one.damaged.in_force(manifest)})

    def section(self) -> Section:
        """Return what INFO shows beside the checkpoint."""
        return {
            "scrub_state": self._state,
            "scrub_rate_bytes": self._rate_bytes,
            "scrub_passes": self._passes,
            "scrub_bytes": self._disk.bytes,
            "scrub_errors": self._errors,
            "scrub_damaged_files": self.damaged_files,
            "scrub_last_error": self._last_error,
        }

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        seen: object = None
        ended_ns = 0
        while not self._stopped.is_set():
            now, since_ns = self._marks(), self._clock.mono_ns() - ended_ns
            paused = self._findings and since_ns < PAUSE_NS
            if seen is None or since_ns >= AGAIN_NS or (now != seen and not paused):
                seen = now
                try:
                    self.pass_once()
                except StoppedError:
                    return
                except Exception as error:  # noqa: BLE001 -- no fault in here may stop the server
                    self._last_error = str(error)
                    self._log.warning(
                        "scrub_failed", error=repr(error), hint="it goes on with the next pass"
                    )
                self._state = "idle"
                ended_ns = self._clock.mono_ns()
            if self._wait(LOOK_S):
                return

    def _marks(self) -> tuple[int, int]:
        """Return two numbers that change when something is sealed, or comes into force."""
        return self._wal.stats().seq, self._files.manifest.count

    def pass_once(self) -> None:
        """Read everything in force once; StoppedError, or OSError that is no bad sector."""
        self._state = "reading"
        manifest = self._files.manifest
        for key in [k for k, one in self._findings.items() if not one.damaged.in_force(manifest)]:
            del self._findings[key]
        plan = self._plan()
        for checkpoint in reversed(plan.manifest.checkpoints):
            self._read_checkpoint(checkpoint, plan.manifest.uuid)
        todo = [plan.segments]
        while todo:
            todo += [rest for rest in self._read_segments(todo.pop(), plan) if rest]
        self._passes += 1
        self._state = "idle"

    def _plan(self) -> Plan:
        """Return what is in force. What goes while the folder is listed is not missed: _found."""
        seq, manifest = self._wal.stats().seq, self._files.manifest
        listed = list_segments(self._names, self._wal_path).segments
        kept = tuple(one for one in listed if manifest.oldest_seq <= one.seq < seq)
        behind = [one.base_lsn for one in listed if one.seq == seq]
        try:
            needed(listed, manifest.oldest_lsn)
        except RefusedError as refused:
            missing = Damaged(seq=manifest.oldest_seq)
            self._found(refused.path, 0, refused.rule, refused.detail, missing)
        return Plan(manifest=manifest, segments=kept, next_lsn=behind[0] if behind else 0)

    def _read_checkpoint(self, named: Checkpoint, uuid: bytes) -> None:
        damaged = Damaged(start_lsn=named.start_lsn)
        path = f"{self._files.folder}/{named.name}"
        try:
            for _ in CheckpointFile(self._reading, path, named, uuid).pieces():
                pass
        except CheckpointDamagedError as damage:
            self._found(path, damage.offset, Rule.CHECKPOINT, damage.detail, damaged)
        except RefusedError as refused:
            self._found(path, refused.offset or 0, refused.rule, refused.detail, damaged)

    def _read_segments(
        self, segments: tuple[SegmentFile, ...], plan: Plan
    ) -> Iterator[tuple[SegmentFile, ...]]:
        """Read up to the first damage, and yield what is left to read."""
        if not segments:
            return
        reader = Reader(self._reading, segments, uuid=plan.manifest.uuid, settle=False)
        try:
            for _ in reader.chunks():
                pass
        except RefusedError as refused:
            at = self._segment_found(
                segments, refused.path, refused.offset or 0, refused.rule, refused.detail
            )
            yield segments[at or 1 :]  # one that does not follow is read for itself
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOENT):
                raise
            at = self._segment_found(
                segments, self._disk.path, self._disk.offset, "read", f"reading it failed: {error}"
            )
            yield segments[at + 1 :]
            yield segments[len(reader.entered) : at]  # all are looked for before one is read
        else:
            self._judge(reader, segments, plan)
            if reader.damage is not None:
                yield segments[reader.damage.index + 1 :]

    def _judge(self, reader: Reader, segments: tuple[SegmentFile, ...], plan: Plan) -> None:
        damage, last = reader.damage, segments[-1]
        if damage is not None:
            rule = "gap" if damage.gap else damage.stop.name.lower() if damage.stop else "header"
            path = segments[damage.index].path
            self._segment_found(segments, path, damage.offset, rule, damage.detail)
        elif last is plan.segments[-1] and plan.next_lsn not in (0, reader.next_lsn):
            detail = f"it ends at lsn {reader.next_lsn - 1}, and the next begins at {plan.next_lsn}"
            self._segment_found(segments, last.path, reader.entered[-1].end, "gap", detail)

    def _segment_found(
        self, segments: tuple[SegmentFile, ...], path: str, offset: int, rule: str, detail: str
    ) -> int:
        """Tell of damage in a segment; return which of them it is."""
        at = [one.path for one in segments].index(path)
        self._found(path, offset, rule, detail, Damaged(seq=segments[at].seq))
        return at

    def _found(self, path: str, offset: int, rule: str, detail: str, damaged: Damaged) -> None:
        """Tell of damage, once, and ask for a checkpoint; unless the file was given up since."""
        if not damaged.in_force(self._files.manifest):
            return
        if (path, offset) not in self._findings:
            finding = Finding(path=path, offset=offset, rule=rule, detail=detail, damaged=damaged)
            self._findings = {**self._findings, (path, offset): finding}
            self._errors += 1
            self._last_error = f"{path} at offset {offset}: {detail}"
            self._log.error(
                "scrub_damaged",
                file=path,
                offset_bytes=offset,
                rule=str(rule),
                error=detail,
                hint="the state in memory is whole: a checkpoint is made of it, as by SAVE, and"
                " takes the file out of use; do not stop the server before, and see to the disk",
            )
        self._on_damage(damaged)
