"""FORMAT.md, Checkpoint: its tables against the C headers, the plain reader against the core."""

import base64
import json
import re
import zlib

import pytest

from tests import format_reader
from tests.asking import ask
from tests.docs import ROOT
from tests.fed import TERM
from tests.property.checkpoint_world import World
from tests.unit.test_checkpoint import Saved, chunks, scan
from tests.unit.test_format_records import enum
from wal import frame
from wal.facts import CheckpointStop
from wheel.engine.core import Core
from wheel.engine.records import State

PAGE = (ROOT / "FORMAT.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## Checkpoint\n")[2].partition("\n## ")[0]
ROW = re.compile(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", re.MULTILINE)

# A table's heading: the reader's layout, the name of its size in the C headers.
LAYOUTS = {
    "**Row.**": (format_reader.ROW, "ROW"),
    "**Side.**": (format_reader.SIDE, "SIDE"),
    "**Run.**": (format_reader.RUN, "RUN"),
    "**Attempt.**": (format_reader.ATTEMPT, "ATTEMPT"),
    "**Entry.**": (format_reader.ENDED, "ENDED"),
    "**Token.**": (format_reader.TOKEN, "ONCE"),
}


def table(heading):
    """Return [(offset, bytes, field)] of the first table behind a heading."""
    text = SECTION.partition(heading)[2]
    lines = re.search(r"\n\|.*?(?=\n\n|\Z)", text, re.DOTALL)[0]
    return [(int(offset), int(size), name) for offset, size, name in ROW.findall(lines)]


def constants(header):
    text = (ROOT / "csrc" / header).read_text(encoding="utf-8")
    return {name: int(value) for name, value in re.findall(r"\b(WD_\w+) = (\d+)", text)}


def check_contiguous(fields, size):
    ends = [offset + length for offset, length, _ in fields]
    assert [offset for offset, _, _ in fields] == [0, *ends[:-1]]
    assert ends[-1] == size


@pytest.mark.parametrize(
    ("heading", "prefix", "size"),
    [
        ("one behind the other at multiples of 8", "WD_CKPT_AT_", "WD_CKPT_HEADER_BYTES"),
        ("### Chunk", "WD_CHUNK_AT_", "WD_CKPT_CHUNK_HEADER_BYTES"),
    ],
)
def test_fields_stand_where_the_code_has_them(heading, prefix, size):
    fields, code = table(heading), constants("wd_ckptfile.h")
    check_contiguous(fields, code[size])
    assert {
        f"{prefix}{name.upper()}": offset
        for offset, _, name in fields
        if not name.startswith("zero")
    } == {name: value for name, value in code.items() if name.startswith(prefix)}


@pytest.mark.parametrize("heading", LAYOUTS)
def test_a_thing_is_laid_out_as_the_reader_and_the_code_have_it(heading):
    layout, name = LAYOUTS[heading]
    check_contiguous(table(heading), layout.size)
    assert constants("wd_image.h")[f"WD_IMAGE_{name}_BYTES"] == layout.size


def test_the_last_chunk_is_laid_out_as_the_reader_and_the_code_have_it():
    fields = table("**End.**")
    check_contiguous(fields, constants("wd_ckptfile.h")["WD_CKPT_END_BYTES"])
    assert [name for _, _, name in fields] == format_reader.END_NAMES


def test_kinds_of_chunks_are_those_of_the_code():
    rows = re.findall(r"^\| (\d) \| `(\w+)` \|", SECTION, re.MULTILINE)
    assert {f"CHUNK_{name}": int(number) for number, name in rows} == {
        f"CHUNK_{name}": value for name, value in enum("wd_ckptfile.h", "wd_chunk_kind").items()
    }


# ---------------------------------------------------------------- golden

GOLDEN = ROOT / "tests" / "golden"


def write_golden():
    """Write the golden checkpoint of the present format version: once per version."""
    saved = Saved().fill()
    data = base64.b64encode(zlib.compress(saved.save(), 9)).decode()
    golden = {"checkpoint": data, "state_hash": f"{saved.bench.core.state_hash():016x}"}
    path = GOLDEN / f"checkpoint_{frame.FORMAT_VERSION}.json"
    path.write_text(json.dumps(golden, indent=1) + "\n")


@pytest.mark.parametrize("version", range(1, frame.FORMAT_VERSION + 1))
def test_a_checkpoint_of_every_format_version_loads_to_the_state_that_it_was(version):
    golden = json.loads((GOLDEN / f"checkpoint_{version}.json").read_text())
    data = zlib.decompress(base64.b64decode(golden["checkpoint"]))
    bench = Saved().bench
    with Core(bench.options) as core:
        core.load(data)
        core.start(term=TERM + 1, rel_ms=bench.wall_ms, clocks=bench.clocks())
        assert core.check() == 0
        assert f"{core.state_hash():016x}" == golden["state_hash"]


def test_this_build_writes_the_present_checkpoint_byte_for_byte():
    """A change of the bytes needs a new format version, and a golden checkpoint of it."""
    golden = json.loads((GOLDEN / f"checkpoint_{frame.FORMAT_VERSION}.json").read_text())
    assert Saved().fill().save() == zlib.decompress(base64.b64decode(golden["checkpoint"]))


# ---------------------------------------------------------------- the plain reader


def test_the_plain_reader_refuses_what_the_code_refuses():
    """Each of a thousand flipped bits, all over the file, and each end of a chunk."""
    data = bytearray(Saved().fill().save())
    format_reader.read_checkpoint(bytes(data))
    for bit in range(0, 8 * len(data), 8 * len(data) // 150):
        data[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(format_reader.DamagedError):
            format_reader.read_checkpoint(bytes(data))
        assert scan(bytes(data)).stop is not CheckpointStop.WHOLE
        data[bit >> 3] ^= 1 << (bit & 7)
    for at, _, _ in chunks(bytes(data)):
        with pytest.raises(format_reader.DamagedError):
            format_reader.read_checkpoint(bytes(data[:at]))


def shown(conn, job_id):
    reply = ask(conn, f"JOB {job_id}")
    texts = [word.decode() if isinstance(word, bytes) else word for word in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def check_job(row, job, names):
    side = row["side"] or dict.fromkeys(("key", "meta", "group", "owner", "text"), b"")
    run = side.get("run")
    state = State(row["state"]).name.lower()
    assert job["state"] in ({"scheduled", "ready"} if state == "scheduled" else {state})
    assert job["handler"] == names[row["handler"]][1].decode()
    for field in ("attempt", "failures", "lost", "priority", "created_ms"):
        assert job[field] == row[field], field
    assert (job["payload"] or "") == row["payload"].decode()
    assert (job["key"] or "") == side["key"].decode()
    assert (job["meta"] or "") == side["meta"].decode()
    assert (job["group"] or "") == side["group"].decode()
    if row["state"] == State.DEAD:
        assert (job["error"] or "") == side["text"].decode()
        assert job["ended_ms"] == side["ended_ms"]
    if row["state"] == State.LEASED:
        assert (job["worker"], job["leased_ms"]) == (run["worker"].decode(), run["started_ms"])
        assert job["due_ms"] == row["due_ms"], "both axes begin as the wall clock"
    over = (
        [(started, ended, number) for started, ended, number, _ in run["attempts"]] if run else []
    )
    assert [(started, ended, number) for number, started, ended, _ in job["attempts"]] == over


def test_the_plain_reader_reads_what_the_core_shows():
    saved = Saved().fill()
    header, end, found = format_reader.read_checkpoint(saved.save())
    core, conn = saved.bench.core, saved.conn
    assert (header["start_lsn"], end["end_lsn"]) == (core.lsn(), core.lsn())
    assert (header["jobs"], end["jobs"]) == (5, 5)
    assert [row["slot"] for row in found[3]] == list(range(header["slots"]))
    names = found[1]
    assert [name for _, name in names] == [b"h", b"other"]
    for row in found[3]:
        if row["state"]:
            check_job(row, shown(conn, row["generation"] << 32 | row["slot"]), names)
    assert {(kind, key): blob for kind, key, blob in found[4]} == {
        (entry.kind, entry.key): entry.blob for entry in core.table()
    }
    ended = {one["id"]: State(one["state"]).name.lower() for one in found[5]}
    assert ended[1 << 32 | 3] == "cancelled"
    assert all(shown(conn, job_id)["state"] == state for job_id, state in ended.items())
    assert [(one["id"], one["word"]) for one in found[6]] == [(1 << 32 | 1, 12)]


@pytest.mark.slow
def test_the_plain_reader_reads_every_checkpoint_of_some_histories():
    """And counts as many jobs in each state as the core that loads it."""
    for seed in range(1000, 1006):
        world = World(seed)
        world.run(80)
        for checkpoint in world.checkpoints[-1:]:
            _, end, found = format_reader.read_checkpoint(checkpoint.data)
            used = [row for row in found[3] if row["state"]]
            assert len(used) == end["jobs"], json.dumps(end)
            with world.rebuilt(checkpoint, []) as core:
                figures = core.engine_figures()
            for state in (State.SCHEDULED, State.HELD, State.LEASED, State.DEAD):
                count = sum(row["state"] == state for row in used)
                assert figures[f"jobs_{state.name.lower()}"] == count
            assert figures["table_count"] == len({thing[:2] for thing in found[4]})
            kept = [one for one in found[5] if one["number"] >= end["ended_head"]]
            assert figures["ended_count"] == len(kept)
        world.close()


if __name__ == "__main__":
    write_golden()
