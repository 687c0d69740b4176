"""A reader of log and checkpoints in plain Python, written from FORMAT.md: its second opinion.

It uses nothing of the product: no C, not even the checksum. Slow, and meant to be read.
"""

import struct
from pathlib import Path

POLYNOMIAL = 0x82F63B78  # crc32c, bit-reversed
BLOCK = 4096
HEADER = struct.Struct("<8sII16sQQQIIIIqq16s")  # of a segment; 104 bytes, then zeros, then the crc
FRAME = struct.Struct("<IIIIIIQQqqII")  # 64 bytes
FRAME_MAGIC = int.from_bytes(b"WDFR", "little")
FRAME_BYTES_MAX = 16 << 20


def _table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


TABLE = _table()


def crc32c(data, crc=0):
    """Return the crc32c of data, continued from crc."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def read_header(segment):
    """Return the fields of a segment's header block as a dict, None when it does not verify."""
    block = segment[:BLOCK]
    if len(block) < BLOCK or not block.startswith(b"WDSEGMT\n"):
        return None
    if int.from_bytes(block[BLOCK - 4 :], "little") != crc32c(block[: BLOCK - 4]):
        return None
    names = (
        "magic version reader_min uuid term seq base_lsn prev_crc salt fsync_mode reserved"
        " created_wall_ms rel_minus_boot_ms boot_id"
    )
    return dict(zip(names.split(), HEADER.unpack_from(block), strict=True))


def read_frames(segment, header):
    """Return ([(first lsn, records, payload)], offset where valid frames end) of one segment."""
    frames = []
    at, next_lsn, prev_crc = BLOCK, header["base_lsn"], header["prev_crc"]
    while at + FRAME.size <= len(segment):
        head = segment[at : at + FRAME.size]
        (
            magic,
            header_crc,
            payload_crc,
            payload_bytes,
            records,
            _flags,
            first_lsn,
            _durable_lsn,
            _wall_ms,
            _rel_ms,
            frame_prev_crc,
            salt,
        ) = FRAME.unpack(head)
        whole = FRAME.size + (payload_bytes + 7) // 8 * 8
        valid = (
            magic == FRAME_MAGIC
            and salt == header["salt"]
            and header_crc == crc32c(head[8:], salt)
            and whole <= min(FRAME_BYTES_MAX, len(segment) - at)
            and (first_lsn == next_lsn and records > 0)
            and frame_prev_crc == prev_crc
            and payload_crc == crc32c(segment[at + FRAME.size : at + whole], salt)
        )
        if not valid:
            break
        payload = segment[at + FRAME.size : at + FRAME.size + payload_bytes]
        frames.append((first_lsn, records, payload))
        next_lsn, prev_crc = first_lsn + records, payload_crc
        at += whole
    return frames, at


def read_store(folder):
    """Return all frames of the segments in DATA/wal, in order."""
    frames = []
    for path in sorted(Path(folder, "wal").glob("*.wal")):
        segment = path.read_bytes()
        frames += read_frames(segment, read_header(segment))[0]
    return frames


# ---- checkpoints ----

CKPT_HEADER = struct.Struct("<8sII16sQQI4xqqIIIIQII")  # 104 bytes, then zeros, then the crc
CHUNK = struct.Struct("<IIIIIIQII")
CHUNK_MAGIC = int.from_bytes(b"WDPK", "little")
SETTINGS_BYTES, POLICY_BYTES = 36, 24
ENTRY_HEAD = struct.Struct("<IHBx")  # of the PUT table
ROW = struct.Struct("<IIQqQIHHHH")
SIDE = struct.Struct("<qqQHHHBBBBH")
RUN = struct.Struct("<QQqQIBBBB")
ATTEMPT = struct.Struct("<qqII")
ENDED = struct.Struct("<QQQ16sqqHHBBH")
TOKEN = struct.Struct("<16sQqI")
END = struct.Struct("<QQqqQQQQQQII")
END_NAMES = (
    "start_lsn end_lsn wall_ms rel_ms ended_next ended_head once_next once_head things jobs chunks"
    " crc"
).split()


class DamagedError(Exception):
    """A checkpoint is not whole; the text says what is wrong."""


def need(holds, what):
    if not holds:
        raise DamagedError(what)


class Bytes:
    """Bytes that are taken from the front."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        need(size <= len(self.data) - self.at, "a thing is cut off")
        self.at += size
        return self.data[self.at - size : self.at]

    def fields(self, layout):
        return layout.unpack(self.take(layout.size))


def read_row(b, slot):
    """Return a job as a dict; of a free slot the generation alone."""
    (head,) = struct.unpack("<I", b.data[b.at : b.at + 4])
    row = {"slot": slot, "generation": head & 0x1FFFFFF, "state": head >> 25 & 15}
    if row["state"] == 0:
        b.take(4)
        return row
    _, sizes, lsn, due_ms, created, attempt, handler, policy, failures, _ = b.fields(ROW)
    row |= {"rel": head >> 29 & 1, "marked": head >> 30 & 1, "priority": sizes >> 24, "lsn": lsn}
    row |= {"due_ms": due_ms, "created_ms": created & 0xFFFFFFFFFFFF, "lost": created >> 48}
    row |= {"attempt": attempt, "handler": handler, "policy": policy, "failures": failures}
    row["payload"] = b.take(sizes & 0xFFFFFF)
    row["side"] = read_side(b) if head >> 31 else None
    return row


def read_side(b):
    expire_ms, ended_ms, ended_lsn, meta, owner, text, key, group, flags, reason, _ = b.fields(SIDE)
    side = {"expire_ms": expire_ms, "ended_ms": ended_ms, "ended_lsn": ended_lsn, "flags": flags}
    side["reason"] = reason
    for name, size in (
        ("key", key),
        ("meta", meta),
        ("group", group),
        ("owner", owner),
        ("text", text),
    ):
        side[name] = b.take(size)
    side["run"] = read_run(b) if flags & 4 else None
    return side


def read_run(b):
    term, lsn, started_ms, died_lsn, lease_ms, worker, fence, attempts, _ = b.fields(RUN)
    run = {"term": term, "lsn": lsn, "started_ms": started_ms, "died_lsn": died_lsn}
    run |= {"lease_ms": lease_ms, "fence": fence}
    run["attempts"] = [b.fields(ATTEMPT) for _ in range(attempts)]
    run["worker"] = b.take(worker)
    return run


def read_thing(b, kind, number):
    """Return the thing of a chunk that stands at the front of b."""
    if kind == 1:
        settings = b.take(SETTINGS_BYTES)
        return settings, b.take(b.take(1)[0])
    if kind == 2:
        return b.take(POLICY_BYTES)
    if kind == 3:
        return read_row(b, number)
    if kind == 4:
        value, key, reason = b.fields(ENTRY_HEAD)
        return reason, b.take(key), b.take(value)
    if kind == 5:
        names = "id term lsn key ended_ms rel_ms handler text state verb zero".split()
        ended = dict(zip(names, b.fields(ENDED), strict=True))
        return ended | {"number": number, "text": b.take(ended["text"])}
    token, job_id, rel_ms, word = b.fields(TOKEN)
    return {"number": number, "token": token, "id": job_id, "rel_ms": rel_ms, "word": word}


def read_chunk(data, at, number, salt):
    """Return (kind, count, first, payload, payload crc, whole length) of a chunk that verifies."""
    need(len(data) - at >= CHUNK.size, "it ends before its last chunk")
    magic, header_crc, payload_crc, size, found, count, first, kind, own_salt = CHUNK.unpack_from(
        data, at
    )
    need(magic == CHUNK_MAGIC, "not a chunk")
    need(header_crc == crc32c(data[at + 8 : at + CHUNK.size], own_salt), "a chunk's header")
    need(own_salt == salt, "a chunk of another file")
    whole = CHUNK.size + (size + 7) // 8 * 8
    need(whole <= 4 << 20 and count > 0 and (1 <= kind <= 7 or kind & 0x80), "length or kind")
    need(found == number, "a chunk is missing")
    need(whole <= len(data) - at, "it ends before its last chunk")
    body = data[at + CHUNK.size : at + whole]
    need(payload_crc == crc32c(body, salt), "a chunk's payload")
    return kind, count, first, body[:size], payload_crc, whole


def read_checkpoint(data):
    """Return a whole checkpoint: header, end, and a list of things for each kind of chunk."""
    need(len(data) >= BLOCK and data[:8] == b"WDCKPNT\n", "not a checkpoint")
    crc = int.from_bytes(data[BLOCK - 4 : BLOCK], "little")
    need(crc == crc32c(data[: BLOCK - 4]), "the header block")
    names = (
        "magic version reader_min uuid term start_lsn salt created_wall_ms logical_ms slots jobs"
        " keys generation blob_bytes sides runs"
    )
    header = dict(zip(names.split(), CKPT_HEADER.unpack_from(data), strict=True))
    found = {kind: [] for kind in range(1, 7)}
    at, number, things, chain = BLOCK, 0, 0, header["salt"]
    while True:
        kind, count, first, payload, crc, whole = read_chunk(data, at, number, header["salt"])
        at += whole
        if kind == 7:
            break
        b = Bytes(payload)
        if not kind & 0x80:
            found[kind] += [read_thing(b, kind, first + i) for i in range(count)]
            need(b.at == len(payload), "bytes behind a chunk's last thing")
        number, things = number + 1, things + count
        chain = crc32c(crc.to_bytes(4, "little"), chain)
    need(len(payload) == END.size, "the last chunk")
    end = dict(zip(END_NAMES, END.unpack(payload), strict=True))
    agrees = (end["start_lsn"], end["things"]) == (header["start_lsn"], things)
    need(agrees and (end["chunks"], end["crc"]) == (number, chain), "the last chunk")
    need(end["end_lsn"] >= end["start_lsn"] and at == len(data), "what is behind it")
    return header, end, found
