"""Any record survives the way to bytes and back, and the core reads bytes as Python does."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fed import Bench
from wheel.engine.core import JobGoneError
from wheel.engine.records import Kind, Record, decode, encode
from wheel.errors import CoreError


def optional(most: int, least: int = 0) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(least, most)


i64 = optional((1 << 63) - 1, -(1 << 63))
u64 = st.integers(0, (1 << 64) - 1)
short = st.binary(max_size=255)
longer = st.binary(max_size=2000)
records = st.builds(
    Record,
    kind=st.integers(1, 255),
    id=optional((1 << 64) - 1),
    due_ms=i64,
    at_ms=i64,
    flags=optional(255),
    handler=optional(65_535),
    policy=optional(65_535),
    priority=optional(255),
    failures=optional(65_535),
    lost=optional(65_535),
    fence=st.none() | st.tuples(u64, u64),
    lease_ms=optional((1 << 32) - 1),
    number=i64,
    reason=optional(255),
    expire_ms=i64,
    worker=short,
    payload=longer,
    key=short,
    once=short,
    meta=longer,
    group=short,
    owner=longer,
    text=longer,
    name=longer,
    blob=longer,
)


@given(st.lists(records, max_size=4))
def test_records_come_back_as_they_went(many: list[Record]) -> None:
    assert list(decode(b"".join(map(encode, many)))) == many


def whole(data: bytes) -> bool:
    try:
        return bool(list(decode(data)))
    except ValueError:
        return False


@given(
    st.builds(
        Record,
        kind=st.just(Kind.PUT),
        reason=st.integers(0, 255),
        name=st.binary(min_size=1, max_size=20),
        blob=st.binary(max_size=20),
        fence=st.none() | st.tuples(u64, u64),
        owner=st.binary(max_size=5),
    ),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), max_size=3),
    st.integers(0, 80),
)
def test_the_core_takes_exactly_the_bytes_that_are_records(
    record: Record, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(encode(record))
    for at, value in changes:
        data[at % len(data)] = value
    damaged = bytes(data[: len(data) - cut % 3])
    bench = Bench()
    try:
        ids = bench.core.submit(damaged)
    except JobGoneError:
        assert whole(damaged)  # another kind by now, and about a job that is not there
    except CoreError:
        assert not _is_put(damaged)
    else:
        assert whole(damaged)
        assert ids == [] or len(ids) == 1
    assert bench.core.check() == 0
    bench.core.close()


def _is_put(data: bytes) -> bool:
    """Return whether these bytes are PUTs that must be taken."""
    if not whole(data):
        return False
    return all(one.kind == Kind.PUT and one.name and one.reason is not None for one in decode(data))


def test_what_does_not_fit_is_refused_by_name() -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("priority", {"priority": 256}),
        ("id", {"id": -1}),
        ("due_ms", {"due_ms": 1 << 63}),
        ("key", {"key": bytes(256)}),
        ("meta", {"meta": bytes(65_536)}),
        ("kind", {"kind": 0}),
    ]
    for name, fields in wrong:
        with pytest.raises(ValueError, match=name):
            encode(Record(**({"kind": 4} | fields)))
