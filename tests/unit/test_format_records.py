"""FORMAT.md, Records: its tables against the C headers, and against records that were written.

The decoder here is built from the tables of the page alone.
"""

import re
import struct

import pytest

from tests.docs import ROOT
from tests.fed import WALL_MS, Bench

PAGE = (ROOT / "FORMAT.md").read_text(encoding="utf-8")
FRAME_HEADER_BYTES = 64


def section(title):
    return re.split(r"^#{2,3} ", PAGE.partition(f" {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]


FIELDS = {
    int(bit): (name, kind)
    for bit, name, kind in re.findall(
        r"^\| (\d+) \| `(\w+)` \| ([^|]+) \|", section("Records"), re.MULTILINE
    )
}
KINDS = {
    int(number): (name, fields)
    for number, name, fields in re.findall(
        r"^\| (\d+) \| `(\w+)` \| ([^|]+) \|", section("Kinds"), re.MULTILINE
    )
}


def enum(header, name):
    """Return {member: value} of an enum of a C header, its prefix taken off."""
    text = (ROOT / "csrc" / header).read_text(encoding="utf-8")
    body = re.sub(
        r"/\*.*?\*/", "", re.search(rf"enum {name} {{(.*?)}};", text, re.DOTALL)[1], flags=re.DOTALL
    )
    members, value = {}, -1
    for member in filter(None, (part.strip() for part in body.split(","))):
        word, _, given = (part.strip() for part in member.partition("="))
        left, _, right = given.partition("<<")
        value = int(left) << int(right or 0) if given else value + 1
        members[re.sub(r"^WD_[A-Z]+_", "", word)] = value
    return members


def struct_fields(header, name):
    """Return [(field, bytes)] of a packed C struct."""
    sizes = {"uint32_t": 4, "uint16_t": 2, "uint8_t": 1, "wd_policy": 24}
    text = (ROOT / "csrc" / header).read_text(encoding="utf-8")
    body = re.search(r"typedef struct {((?:(?!typedef).)*?)} " + name + ";", text, re.DOTALL)[1]
    found = []
    for kind, names in re.findall(
        r"^\s*(\w+) ([^;]+);", re.sub(r"/\*.*?\*/", "", body), re.MULTILINE
    ):
        for field in names.split(","):
            word, _, count = field.strip().rstrip("]").partition("[")
            found.append((word, sizes[kind] * int(count or 1)))
    return found


def test_kinds_are_those_of_the_code():
    assert {name: number for number, (name, _) in KINDS.items()} == enum("wd_record.h", "wd_kind")


def test_fields_are_those_of_the_code():
    assert {name: 1 << bit for bit, (name, _) in FIELDS.items()} == enum("wd_record.h", "wd_field")


def test_the_fields_of_a_kind_are_those_of_the_header():
    """The header names what every record of a kind has; optional ones may be named in brackets."""
    text = (ROOT / "csrc" / "wd_record.h").read_text(encoding="utf-8")
    for number, said_of_it in re.findall(r"WD_R_\w+ = (\d+),? */\* (.*?) \*/", text):
        name, fields = KINDS[int(number)]
        comment = re.split("[:;]", said_of_it)[0]
        said = set(re.findall(r"\b[A-Z]{2,}\b", comment)) & {word for word, _ in FIELDS.values()}
        if name in {"CREATED", "REPLACED"}:
            continue  # "+ optional fields", "the same fields"
        assert said == set(re.findall(r"[A-Z]+", fields)), name


@pytest.mark.parametrize(("title", "name"), [("Policy", "wd_policy"), ("Settings", "wd_settings")])
def test_a_blob_is_laid_out_as_the_struct(title, name):
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", section(title), re.MULTILINE)
    assert [(field, int(size)) for _, size, field in rows] == struct_fields("wd_policy.h", name)
    ends = [int(offset) + int(size) for offset, size, _ in rows]
    assert [int(offset) for offset, _, _ in rows] == [0, *ends[:-1]]


def numbers(title):
    """Return {number: words} of a bold-titled list: "1 FAIL, 2 time-out"."""
    text = re.search(rf"\*\*{title}\*\*[^:]*:(.*?)(?:\.|\()", PAGE, re.DOTALL)[1]
    return {int(n): word.strip() for n, word in re.findall(r"(\d+) ([^,]+)", text)}


def test_reasons_states_verbs_words_and_flags_have_the_numbers_of_the_code():
    assert sorted(numbers("Reasons")) == sorted(enum("wd_engine.h", "wd_reason").values())
    states = enum("wd_job.h", "wd_state")
    assert {word.upper(): n for n, word in numbers("States").items()} == {
        word.removeprefix("WD_"): states[word]
        for word in ("WD_SUCCEEDED", "WD_CANCELLED", "WD_EXPIRED")
    }
    verbs = enum("wd_engine.h", "wd_verb")
    assert {word.split()[-1].upper(): n for n, word in numbers("Verbs").items()} == verbs
    answers = enum("wd_engine.h", "wd_answer")
    assert {word.upper(): n for n, word in numbers("Words").items()} == {
        "ENDED": answers["ENDED"],
        "EXISTING": answers["EXISTING"],
    }
    flags = re.search(r"`FLAGS` \| u8 \| ([^|]+) \|", PAGE)[1]
    assert [int(n) for n in re.findall(r"(\d) =", flags)] == sorted(
        enum("wd_record.h", "wd_record_flag").values()
    )


# ---------------------------------------------------------------- what is written


def decode(payload, count):
    """Return [(kind name, {field: value})] of a frame's payload, by the page's rules."""
    scalars = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "i64": "<q", "u64, u64": "<QQ"}
    records, at = [], 0
    for _ in range(count):
        size, head = struct.unpack_from("<II", payload, at)
        assert size >= 8
        end, kind, mask = at + size, head & 0xFF, head >> 8
        at += 8
        fields = {}
        for bit, (name, form) in FIELDS.items():
            if not mask >> bit & 1:
                continue
            prefix, _, is_string = form.partition(" + ")
            code = scalars[prefix]
            value = struct.unpack_from(code, payload, at)
            at += struct.calcsize(code)
            if is_string:
                (length,) = value
                assert length > 0
                value = (payload[at : at + length],)
                at += length
            fields[name] = value if len(value) > 1 else value[0]
        assert at == end
        records.append((KINDS[kind][0], fields))
    assert at == len(payload)
    return records


def written(bench):
    """Return every record that the bench's core has logged so far."""
    bench.settle()
    found = []
    for frame in bench.frames:
        size, count = struct.unpack_from("<II", frame, 12)
        found += decode(frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + size], count)
    return found


SCENE = """
SCHEDULE h +1h a KEY k META m GROUP g EXPIRE +2h ONCE t RETRIES 5
SCHEDULE h +1h a KEY k ONCE u
SCHEDULE h 1800000000000 b KEY k ONDUP replace
LEASE h WORKER w
EXTEND RECEIPT FOR 90000
FAIL RECEIPT ERROR why IN 0
LEASE h
CANCEL 4294967296
DONE RECEIPT result
HANDLER h RETRIES 0 CONCURRENCY 4
SCHEDULE h +1h c
RESCHEDULE 8589934592 now
LEASE h
FAIL RECEIPT
REQUEUE 8589934592
LEASE h
FAIL RECEIPT DEAD
PURGE 8589934592
"""


def act(bench):
    """Play the scene; RECEIPT is the one that LEASE gave last."""
    connection, receipt = bench.open(), b""
    for line in SCENE.split("\n")[1:-1]:
        reply = connection.ask(line.encode().replace(b"RECEIPT", receipt))
        assert not reply.startswith(b"-"), (line, reply)
        if line.startswith("LEASE"):
            (receipt,) = re.findall(rb"[0-9]+\.[0-9]+\.[0-9]+", reply)


def test_every_record_of_a_scene_has_the_fields_that_the_page_says():
    bench = Bench()
    act(bench)
    bench.wall_ms += 5_000  # a step of the wall clock
    bench.advance(1)
    bench.core.accept_clock()
    records = written(bench)
    seen = set()
    for name, fields in records:
        listed = next(fields for known, fields in KINDS.values() if known == name)
        always, _, optional = listed.partition("[")
        must, may = set(re.findall("[A-Z]+", always)), set(re.findall("[A-Z]+", optional))
        assert must <= set(fields) <= must | may, name
        seen.add(name)
    # The rest is the control plane's, or needs four million entries.
    others = {"PUT", "DEL", "CLOSED", "UNHELD", "RING_DROPPED", "ONCE_DROPPED", "GENERATIONS"}
    assert seen == {name for name, _ in KINDS.values()} - others
    bench.check()


def test_the_scene_reads_as_it_was_written():
    bench = Bench()
    act(bench)
    records = written(bench)
    by_name = {}
    for name, fields in records:
        by_name.setdefault(name, []).append(fields)
    assert by_name["HANDLER"] == [{"HANDLER": 0, "NAME": b"h"}]
    base, most, lease, timeout, retries, lost, backoff = struct.unpack(
        "<IIIIHHB3x", by_name["POLICY"][0]["BLOB"]
    )
    assert (base, most, lease, timeout) == (15_000, 3_600_000, 60_000, 300_000)
    assert (retries, lost, backoff) == (5, 3, 2)
    created = by_name["CREATED"][0]
    assert created["ID"] == 1 << 32
    assert (created["DUE"], created["FLAGS"]) == (WALL_MS + 3_600_000, 1 | 2)
    assert (created["KEY"], created["ONCE"], created["META"]) == (b"k", b"t", b"m")
    assert by_name["ONCE"] == [{"ID": 1 << 32, "REASON": 10, "ONCE": b"u"}]
    assert by_name["REPLACED"][0]["FLAGS"] == 0
    grant = records.index(("LEASED", by_name["LEASED"][0])) + 1
    assert by_name["RETRY"][0]["FENCE"] == (7, grant)
    assert by_name["RETRY"][0]["TEXT"] == b"why"
    ended = by_name["ENDED"][0]
    assert (ended["REASON"], ended["NUMBER"], ended["TEXT"]) == (6, 2, b"result")
    settings = by_name["HANDLER_SET"][0]["BLOB"]
    assert struct.unpack("<24xIBBB5x", settings) == (4, 1, 0, 1)
