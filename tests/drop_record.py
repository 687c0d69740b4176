"""Make a confirmed job disappear from the log of a dead server, so that every checksum still holds.

    python tests/drop_record.py DATA

One of the last records CREATED of the last segment, of a job that no later record is about, becomes
a record of a kind that readers may skip; its frame, and the frames behind it, are sealed anew. A
server starts from such a log without a word, which is why only a comparison with what was confirmed
can notice. For tests of the demo.
"""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from wal import frame

CREATED: Final = 4  # enum wd_kind
SKIPPABLE: Final = 0x80
NEWEST: Final = 32
HEAD: Final = struct.Struct("<II")  # length of the record; kind in the low byte of the second


def frames(segment: memoryview, salt: int) -> Iterator[frame.Found]:
    """Yield the frames of one segment file, with offsets in the file."""
    at = frame.SEGMENT_HEADER_BYTES
    while (found := frame.find(segment[at:], salt=salt)) is not None and found.offset == 0:
        yield frame.Found(
            offset=at,
            frame_bytes=found.frame_bytes,
            salt=found.salt,
            prev_crc=found.prev_crc,
            payload_crc=found.payload_crc,
            header=found.header,
        )
        at += found.frame_bytes


def records(payload: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield where each record of a frame begins, its kind, and its job (0 = none)."""
    at = 0
    while at < len(payload):
        size, head = HEAD.unpack_from(payload, at)
        job = int.from_bytes(payload[at + 8 : at + 16], "little") if head >> 8 & 1 else 0
        yield at, head & 0xFF, job
        at += size


def victim(payloads: list[bytearray]) -> tuple[int, int]:
    """Return the frame and the offset of the record to drop.

    The newest records are left alone: the answers to them may not have been sent, and a client
    repeats what was not answered.
    """
    found = [
        (i, at, kind, job) for i, p in enumerate(payloads) for at, kind, job in records(bytes(p))
    ]
    created = [(i, at, job) for i, at, kind, job in found if kind == CREATED]
    touched = {job for _i, _at, kind, job in found if kind != CREATED}
    index, at, _job = [c for c in created[:-NEWEST] if c[2] not in touched][-1]
    return index, at


def drop(path: Path) -> None:
    """Turn the last CREATED of a segment file into a skippable record, and seal what follows."""
    segment = bytearray(path.read_bytes())
    header = frame.decode_segment(segment[: frame.SEGMENT_HEADER_BYTES])
    assert header is not None, path
    all_frames = list(frames(memoryview(bytes(segment)), header.salt))
    payloads = [
        bytearray(segment[start : start + f.header.payload_bytes])
        for f in all_frames
        for start in [f.offset + frame.FRAME_HEADER_BYTES]
    ]
    index, at = victim(payloads)
    payloads[index][at + 4] |= SKIPPABLE
    prev_crc = all_frames[index].prev_crc
    for found, payload in zip(all_frames[index:], payloads[index:], strict=True):
        sealed = frame.seal(
            bytes(payload),
            first_lsn=found.header.first_lsn,
            records=found.header.records,
            wall_ms=found.header.wall_ms,
            rel_ms=found.header.rel_ms,
            salt=found.salt,
            prev_crc=prev_crc,
            durable_lsn=found.header.durable_lsn,
            flags=found.header.flags,
        )
        segment[found.offset : found.offset + len(sealed)] = sealed
        again = frame.find(sealed, salt=found.salt)
        assert again is not None
        prev_crc = again.payload_crc
    path.write_bytes(segment)


if __name__ == "__main__":
    drop(max((Path(sys.argv[1]) / "wal").glob("*.wal")))
