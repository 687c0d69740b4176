"""What Python decides goes in whole or not at all; what it must know waits until it was seen."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests import asking
from tests.fed import TERM, WALL_MS, Bench, Fed
from wheel.engine.core import Core, DiskRoom, JobGoneError
from wheel.engine.facts import Clocks
from wheel.engine.records import Backoff, Flag, Kind, Policy, Record, State, decode, encode
from wheel.errors import CoreError, CoreMemoryError


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.check()


@pytest.fixture
def conn(bench: Bench) -> Fed:
    return bench.open()


def submit(bench: Bench, *records: Record) -> list[int]:
    ids = bench.core.submit(b"".join(map(encode, records)))
    bench.settle()
    return ids


def created(name: bytes = b"h", **fields: object) -> Record:
    values: dict[str, object] = {"due_ms": WALL_MS, "flags": 0, "priority": 128} | fields
    return Record(kind=Kind.CREATED, name=name, **values)  # type: ignore[arg-type]


def owned(name: bytes = b"h", **fields: object) -> Record:
    return created(name, **{"owner": b"daily@2027-01-15T08:00:00Z"} | fields)


def restart(bench: Bench) -> None:
    """Drop the core; a new one reads the frames."""
    core = Core(bench.options)
    for frame in bench.frames:
        core.replay(frame, term=TERM)
    clocks = Clocks(wall_ms=bench.wall_ms, boot_ms=bench.boot_ms, mono_ms=bench.boot_ms)
    core.start(term=TERM, rel_ms=WALL_MS, clocks=clocks)
    bench.core.close()
    bench.core = core


def ended(bench: Bench) -> list[tuple[int, State]]:
    return [(record.id or 0, State(record.reason or 0)) for record in bench.core.ended()]


def receipt(conn: Fed, line: str) -> str:
    return conn.ask(f"LEASE {line}").split(b"\r\n")[3].decode()


def test_a_batch_makes_jobs_with_all_their_fields_in_order(bench: Bench, conn: Fed) -> None:
    policy = Policy(retries=7, backoff=(Backoff.LINEAR, 100, 900), timeout_ms=0)
    first, second = submit(
        bench,
        created(b"a", payload=b"one", key=b"k", meta=b"m", group=b"g", blob=policy.blob()),
        owned(b"b", payload=b"two", due_ms=WALL_MS + 5000, flags=Flag.REL, priority=1),
    )
    shown = conn.ask(f"JOB {first}")
    for field in (b"$1\r\nk\r\n", b"$3\r\none\r\n", b"retries\r\n:7", b"linear", b"lost_max\r\n:3"):
        assert field in shown
    assert b"$26\r\ndaily@2027-01-15T08:00:00Z\r\n" in conn.ask(f"JOB {second}")
    assert b"$3\r\none\r\n" in conn.ask("LEASE a")
    assert conn.ask("LEASE b") == b"*0\r\n"
    bench.advance(5000)
    assert b"$26\r\ndaily@2027-01-15T08:00:00Z\r\n" in conn.ask("LEASE b")


@pytest.mark.parametrize(
    ("owner", "run"),
    [
        (b"n@2027-01-15T08:00:00Z", (b"n@2027-01-15T08:00:00Z", None, None)),
        (b"n@x!2\n1800000000000\n2027-01-15", (b"n@x!2", WALL_MS, b"2027-01-15")),
        (b"n@x\n7\n", (b"n@x", 7, None)),
        (b"n@x\n\nd", (b"n@x", None, b"d")),
        (b"n@x\n99999999999999999999\nd\nmore", (b"n@x", None, b"d")),
    ],
)
def test_a_lease_tells_the_run_its_time_and_its_date(
    bench: Bench, conn: Fed, owner: bytes, run: tuple[bytes, int | None, bytes | None]
) -> None:
    [job_id] = submit(bench, owned(owner=owner))
    leased = asking.leased(asking.ask(conn, "LEASE h"))
    assert leased[11] == list(run)
    shown = asking.job(conn, str(job_id))
    assert (shown["run"], shown["date"]) == (run[0], run[2])


def test_a_job_of_nobody_has_no_run(bench: Bench, conn: Fed) -> None:
    [job_id] = submit(bench, created())
    leased = asking.leased(asking.ask(conn, "LEASE h"))
    assert leased[11] is None
    shown = asking.job(conn, str(job_id))
    assert (shown["run"], shown["date"]) == (None, None)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Record(kind=Kind.MARKED, id=1 << 32 | 77), JobGoneError),
        (Record(kind=Kind.UNHELD, id=1 << 32 | 77, due_ms=0, flags=0), JobGoneError),
        (Record(kind=Kind.MOVED, id=1 << 32 | 77, due_ms=0, flags=0), JobGoneError),
        (Record(kind=Kind.CLOSED, id=1 << 32 | 77), JobGoneError),
        (Record(kind=Kind.DEL, reason=1, name=b"not there"), JobGoneError),
        (created(key=b"taken"), JobGoneError),
        (Record(kind=Kind.PUT, reason=1, blob=b"x"), CoreError),
        (Record(kind=Kind.PUT, name=b"x", blob=b"x"), CoreError),
        (Record(kind=Kind.CREATED, name=b"h"), CoreError),
        (created(due_ms=-1), CoreError),
        (created(due_ms=1 << 48), CoreError),
        (created(b"n" * 201), CoreError),
        (created(blob=b"short"), CoreError),
        (created(key=b"k", owner=b"o"), CoreError),
        (Record(kind=Kind.LEASED, id=1), CoreError),
        (Record(kind=Kind.HANDLER, handler=0, name=b"h"), CoreError),
        (Record(kind=Kind.MOVED, id=1 << 32, due_ms=1 << 48, flags=0), CoreError),
        (Record(kind=Kind.MOVED, id=1 << 32), CoreError),
        (Record(kind=Kind.UNHELD, id=1 << 32 | 1), CoreError),
        (Record(kind=200), CoreError),
    ],
)
def test_a_batch_with_one_bad_operation_changes_nothing(
    bench: Bench, bad: Record, error: type[Exception]
) -> None:
    submit(bench, created(key=b"taken"), created(b"held", flags=Flag.HELD))
    before, lsn = bench.core.state_hash(), bench.core.lsn()
    good = [created(b"new handler"), Record(kind=Kind.PUT, reason=1, name=b"n", blob=b"b")]
    for records in ([bad, *good], [*good, bad]):
        with pytest.raises(error):
            submit(bench, *records)
        assert (bench.core.state_hash(), bench.core.lsn()) == (before, lsn)
    assert len(submit(bench, *good)) == 1


@pytest.mark.parametrize("size", range(1, 45))
def test_bytes_that_are_no_records_are_refused(bench: Bench, size: int) -> None:
    whole = encode(created(payload=b"p" * 20))
    with pytest.raises(CoreError):
        bench.core.submit(whole + whole[:size])
    assert bench.core.lsn() == 0


@pytest.mark.parametrize(
    "pair",
    [
        [Record(kind=Kind.DEL, reason=1, name=b"n")] * 2,
        [created(key=b"new")] * 2,
        [Record(kind=Kind.MARKED, id=1 << 32 | 1)] * 2,
        [Record(kind=Kind.CLOSED, id=1 << 32)] * 2,
        [
            Record(kind=Kind.MARKED, id=1 << 32 | 1),
            Record(kind=Kind.MOVED, id=1 << 32 | 1, due_ms=5, flags=0),
        ],
        [Record(kind=Kind.UNHELD, id=1 << 32 | 2, due_ms=5, flags=0)] * 2,
    ],
    ids=["del-del", "key-key", "marked-marked", "closed-closed", "marked-moved", "unheld-unheld"],
)
def test_operations_that_exclude_each_other_are_refused_as_a_whole(
    bench: Bench, conn: Fed, pair: list[Record]
) -> None:
    """The second of them would find what the first has left; a server must not stop at that."""
    submit(
        bench,
        owned(b"first"),
        owned(b"second"),
        owned(b"third", flags=Flag.HELD),
        Record(kind=Kind.PUT, reason=1, name=b"n", blob=b"b"),
    )
    conn.ask(f"ACK {receipt(conn, 'first')}")
    before = bench.core.state_hash()
    with pytest.raises(CoreError):
        submit(bench, *pair)
    assert bench.core.state_hash() == before
    submit(bench, pair[0])


def test_an_owned_job_waits_on_the_list_of_ended_ones_until_it_is_closed(
    bench: Bench, conn: Fed
) -> None:
    [job_id] = submit(bench, owned())
    assert ended(bench) == []
    conn.ask(f"DONE {receipt(conn, 'h')} result")
    assert ended(bench) == [(job_id, State.SUCCEEDED)]
    assert b"succeeded" in conn.ask(f"JOB {job_id}")
    bench.check()
    restart(bench)
    conn = bench.open()
    assert ended(bench) == [(job_id, State.SUCCEEDED)]
    [record] = bench.core.ended()
    assert (record.owner, record.at_ms) == (b"daily@2027-01-15T08:00:00Z", WALL_MS)
    submit(bench, Record(kind=Kind.CLOSED, id=job_id))
    assert ended(bench) == []
    with pytest.raises(JobGoneError):
        submit(bench, Record(kind=Kind.CLOSED, id=job_id))
    restart(bench)
    assert ended(bench) == []


def test_the_list_is_in_the_order_of_the_ends_and_cut_at_most(bench: Bench, conn: Fed) -> None:
    ids = submit(bench, *[owned(due_ms=WALL_MS + 9000)] * 5)
    for job_id in reversed(ids):
        conn.ask(f"CANCEL {job_id}")
    assert [job_id for job_id, _ in ended(bench)] == ids[::-1]
    assert len(bench.core.ended(2)) == 2
    restart(bench)
    assert [job_id for job_id, _ in ended(bench)] == ids[::-1]


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("CANCEL {}", State.CANCELLED),
        ("RESCHEDULE {} +5s", State.SCHEDULED),
        ("RUN {}", State.READY),
    ],
)
def test_what_a_user_does_to_an_owned_job_reaches_its_owner(
    bench: Bench, conn: Fed, line: str, state: State
) -> None:
    [job_id] = submit(bench, owned(due_ms=WALL_MS + 60_000))
    conn.ask(line.format(job_id))
    assert ended(bench) == [(job_id, state)]
    restart(bench)
    assert [one for one, _ in ended(bench)] == [job_id]
    submit(bench, Record(kind=Kind.CLOSED, id=job_id))
    assert ended(bench) == []


def test_a_death_a_requeue_and_a_purge_of_an_owned_job_reach_its_owner(
    bench: Bench, conn: Fed
) -> None:
    [job_id] = submit(bench, owned())
    assert conn.ask(f"FAIL {receipt(conn, 'h')} DEAD ERROR why") == b"+DEAD\r\n"
    [record] = bench.core.ended()
    assert (record.reason, record.text) == (State.DEAD, b"why")
    submit(bench, Record(kind=Kind.CLOSED, id=job_id))
    assert b"dead" in conn.ask(f"JOB {job_id}"), "closed, and still in the dead list"
    assert b"+OK" in conn.ask(f"REQUEUE {job_id}")
    assert ended(bench) == [(job_id, State.READY)]
    submit(bench, Record(kind=Kind.CLOSED, id=job_id))
    conn.ask(f"FAIL {receipt(conn, 'h')} DEAD")
    assert b"+OK" in conn.ask(f"PURGE {job_id}")
    assert ended(bench) == [(job_id, State.CANCELLED)]
    restart(bench)
    assert ended(bench) == [(job_id, State.CANCELLED)]
    submit(bench, Record(kind=Kind.CLOSED, id=job_id))
    assert bench.open().ask(f"JOB {job_id}") in (b"$-1\r\n", b"_\r\n")


def test_a_held_job_is_not_due_until_it_is_released(bench: Bench, conn: Fed) -> None:
    [job_id] = submit(bench, owned(flags=Flag.HELD))
    assert conn.ask("COUNT STATE held") == b":1\r\n"
    bench.advance(1000)
    assert conn.ask("LEASE h") == b"*0\r\n"
    restart(bench)
    conn = bench.open()
    assert conn.ask("COUNT STATE held") == b":1\r\n"
    submit(bench, Record(kind=Kind.UNHELD, id=job_id, due_ms=WALL_MS + 2000, flags=0))
    assert ended(bench) == [], "its owner did this itself"
    assert conn.ask("COUNT STATE scheduled") == b":1\r\n"
    bench.advance(1000)
    assert conn.ask("LEASE h").startswith(b"*1\r\n")


def test_a_user_who_runs_a_held_job_releases_it_and_its_owner_hears_of_it(
    bench: Bench, conn: Fed
) -> None:
    [job_id] = submit(bench, owned(flags=Flag.HELD))
    assert conn.ask(f"RUN {job_id}") == b"+OK\r\n"
    assert ended(bench) == [(job_id, State.READY)]
    restart(bench)
    assert [one for one, _ in ended(bench)] == [job_id]


def test_marking_cancels_what_waits_and_asks_what_runs_to_stop(bench: Bench, conn: Fed) -> None:
    running, waiting, held = submit(
        bench, owned(), owned(due_ms=WALL_MS + 5000), owned(flags=Flag.HELD)
    )
    held_by = receipt(conn, "h")
    submit(bench, *(Record(kind=Kind.MARKED, id=one) for one in (running, waiting, held)))
    assert ended(bench) == [(waiting, State.CANCELLED), (held, State.CANCELLED)]
    assert b"-CANCELLED" in conn.ask(f"EXTEND {held_by}")
    assert conn.ask(f"ACK {held_by}") == b"*1\r\n+OK\r\n"
    assert ended(bench)[-1] == (running, State.SUCCEEDED)


def test_table_entries_are_after_images_over_any_restart(bench: Bench) -> None:
    submit(
        bench,
        Record(kind=Kind.PUT, reason=1, name=b"a", blob=b"1"),
        Record(kind=Kind.PUT, reason=2, name=b"a", blob=b"other kind"),
        Record(kind=Kind.PUT, reason=1, name=b"b", blob=b"gone soon"),
        Record(kind=Kind.PUT, reason=1, name=b"empty"),
        Record(kind=Kind.PUT, reason=1, name="schlüssel 中文".encode(), blob=bytes(range(256))),
    )
    submit(
        bench,
        Record(kind=Kind.PUT, reason=1, name=b"a", blob=b"2"),
        Record(kind=Kind.DEL, reason=1, name=b"b"),
    )
    expected = {
        (1, b"a"): b"2",
        (2, b"a"): b"other kind",
        (1, b"empty"): b"",
        (1, "schlüssel 中文".encode()): bytes(range(256)),
    }
    assert {(entry.kind, entry.key): entry.blob for entry in bench.core.table()} == expected
    restart(bench)
    assert {(entry.kind, entry.key): entry.blob for entry in bench.core.table()} == expected
    assert bench.core.check() == 0


def test_a_batch_is_one_frame_even_if_others_stand_before_it(bench: Bench, conn: Fed) -> None:
    """A crash finds all of a decision or nothing of it."""
    conn.feed(b"SCHEDULE h +1h x\r\n" * 100)
    records = [
        Record(kind=Kind.PUT, reason=1, name=b"%d" % i, blob=b"x" * 4000) for i in range(200)
    ]
    bench.core.submit(b"".join(map(encode, records)))
    bench.settle()
    holding = [frame for frame in bench.frames if b"x" * 4000 in frame]
    assert len(holding) == 1


def test_a_batch_that_finds_no_memory_changes_nothing() -> None:
    bench = Bench(maxmemory_bytes=1 << 20)
    before = bench.core.state_hash()
    big = [created(payload=b"x" * 60_000) for _ in range(10)]
    with pytest.raises(CoreMemoryError):
        submit(bench, *big)
    assert bench.core.state_hash() == before
    assert bench.core.check() == 0


def test_records_in_frames_are_read_and_written_alike_by_both_languages(
    bench: Bench, conn: Fed
) -> None:
    header_bytes = 64
    for line in (
        "SCHEDULE h now p KEY k ONCE t META m GROUP g EXPIRE +1h BACKOFF fixed 1 PRIORITY 0",
        "SCHEDULE h +1s p KEY k ONDUP replace",
        "HANDLER h CONCURRENCY 3",
        "RUN k",
    ):
        assert not conn.ask(line).startswith(b"-")
    conn.ask(f"FAIL {receipt(conn, 'h WORKER w')} ERROR bad")
    conn.ask("RUN k")
    held_by = receipt(conn, "h")
    conn.ask(f"EXTEND {held_by} FOR 99999")
    conn.ask("CANCEL k")
    conn.ask(f"RELEASE {held_by}")
    submit(bench, owned(), Record(kind=Kind.PUT, reason=1, name=b"n", blob=b"b"))
    kinds: set[int] = set()
    for frame in bench.frames:
        records = b"".join(map(encode, decode_frame(frame, header_bytes, kinds)))
        assert frame[header_bytes:].startswith(records)
        assert not frame[header_bytes + len(records) :].strip(b"\0")
    assert kinds >= {1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 15}


def decode_frame(frame: bytes, header_bytes: int, kinds: set[int]) -> list[Record]:
    payload = frame[header_bytes:]
    while True:  # the padding behind the last record is at most 7 zeros
        try:
            records = list(decode(payload))
        except ValueError:
            assert payload.endswith(b"\0")
            payload = payload[:-1]
        else:
            kinds |= {record.kind for record in records}
            return records


def test_jobs_are_refused_while_the_disk_has_no_segment_ahead(bench: Bench) -> None:
    """What Python decided is refused whole; ends go on being closed until nothing may be logged."""
    bench.core.set_disk_room(DiskRoom.TIGHT)
    bench.core.commit()
    before = bench.core.state_hash()
    with pytest.raises(CoreMemoryError):
        bench.core.submit(encode(created()))
    assert bench.core.state_hash() == before
    submit(bench, Record(kind=Kind.PUT, reason=1, name=b"k", blob=b"v"))
    bench.core.set_disk_room(DiskRoom.OK)
    assert len(bench.core.submit(encode(created()))) == 1


def test_a_full_table_of_entries_changes_nothing(bench: Bench) -> None:
    entry = encode(Record(kind=Kind.PUT, reason=1, name=b"--------"))
    head, tail = entry.split(b"--------")

    def entries(first: int, end: int) -> bytes:
        return b"".join(b"%s%08d%s" % (head, number, tail) for number in range(first, end))

    step = 1 << 15
    for first in range(0, 1 << 20, step):
        bench.core.submit(entries(first, first + step))
        bench.settle()
    before = bench.core.state_hash()
    with pytest.raises(CoreMemoryError):
        bench.core.submit(entries(1 << 20, (1 << 20) + 1))
    assert bench.core.state_hash() == before
    assert bench.core.engine_figures()["table_count"] == 1 << 20
    submit(bench, Record(kind=Kind.PUT, reason=1, name=b"00000007", blob=b"changed"))
    submit(bench, Record(kind=Kind.DEL, reason=1, name=b"00000007"), created())
    submit(bench, Record(kind=Kind.PUT, reason=1, name=b"new"))


# ------------------------------------------------------------------------------ for schedules


def test_one_entry_of_the_table_is_found_by_its_key(bench: Bench) -> None:
    submit(
        bench,
        Record(kind=Kind.PUT, reason=1, name=b"a", blob=b"1"),
        Record(kind=Kind.PUT, reason=2, name=b"a"),
    )
    assert bench.core.table_get(1, b"a") == b"1"
    assert bench.core.table_get(2, b"a") == b""
    assert bench.core.table_get(3, b"a") is None
    submit(bench, Record(kind=Kind.DEL, reason=1, name=b"a"))
    assert bench.core.table_get(1, b"a") is None


def test_owned_jobs_are_found_by_a_walk_whatever_their_state(bench: Bench, conn: Fed) -> None:
    for _ in range(3):
        bench.open().feed(b"SCHEDULE h +1h x\r\n" * 3000)
        bench.settle()
    ready, held, later = submit(
        bench,
        owned(owner=b"n@2027-01-15T08:00:00Z\n1\nd"),
        owned(owner=b"m@2027-01-15T08:00:00Z", flags=Flag.HELD),
        owned(owner=b"m@2027-01-15T09:00:00Z", due_ms=WALL_MS + 5000),
    )
    receipt(conn, "h")
    found = {job.id: job for job in bench.core.owned() if job}
    assert {job_id: job.state for job_id, job in found.items()} == {
        ready: State.LEASED,
        held: State.HELD,
        later: State.SCHEDULED,
    }
    assert found[ready].owner == b"n@2027-01-15T08:00:00Z\n1\nd"
    assert (found[ready].due_ms, found[later].due_ms) == (WALL_MS, WALL_MS + 5000)
    assert None in list(bench.core.owned()), "the walk pauses now and then"
    assert bench.core.job_state(ready) == State.LEASED
    assert bench.core.job_state(1) == State.UNKNOWN


def test_an_ended_job_keeps_its_result_and_says_when_its_last_attempt_began(
    bench: Bench, conn: Fed
) -> None:
    submit(bench, owned())
    conn.ask(f"FAIL {receipt(conn, 'h')} IN 500 ERROR first")
    bench.advance(1000)
    conn.ask(f"DONE {receipt(conn, 'h')} result")
    for _ in range(2):
        [record] = bench.core.ended()
        assert (record.text, record.failures, record.lost) == (b"result", 1, 0)
        assert (record.due_ms, record.at_ms) == (WALL_MS + 1000, WALL_MS + 1000)
        restart(bench)


def test_alarms_ring_on_their_own_axis(bench: Bench) -> None:
    core = bench.core
    assert not core.wants_python()
    core.set_alarms(WALL_MS + 1000, None)
    bench.advance(999)
    assert not core.wants_python()
    bench.wall_ms -= 10_000
    bench.boot_ms += 5000
    core.tick(bench.clocks())
    assert not core.wants_python(), "the wall clock was set back"
    bench.wall_ms += 10_001
    core.tick(bench.clocks())
    assert core.wants_python()
    core.set_alarms(None, WALL_MS + 7000)
    assert not core.wants_python()
    bench.wall_ms += 100_000
    core.tick(bench.clocks())
    assert not core.wants_python(), "only the wall clock was set"
    bench.boot_ms += 2000
    core.tick(bench.clocks())
    assert core.wants_python()


def test_steps_and_suspends_tell_once_what_they_jumped_over(bench: Bench) -> None:
    core = bench.core
    bench.advance(500)
    assert core.times().wall_jump == core.times().rel_jump == (0, 0)
    bench.wall_ms += 60_000
    core.tick(bench.clocks())
    assert core.times().wall_jump == (WALL_MS + 500, WALL_MS + 60_500)
    assert core.times().wall_jump == (0, 0)
    clocks = bench.clocks()
    core.tick(replace(clocks, wall_ms=clocks.wall_ms + 9000, boot_ms=clocks.boot_ms + 9000))
    times = core.times()
    assert times.wall_jump == (WALL_MS + 60_500, WALL_MS + 69_500)
    assert times.rel_jump == (WALL_MS + 500, WALL_MS + 9500)
    assert (times.logical_ms, times.rel_ms) == (WALL_MS + 69_500, WALL_MS + 9500)
