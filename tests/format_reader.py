"""A reader of the log in plain Python, written from FORMAT.md: its second opinion and its example.

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
