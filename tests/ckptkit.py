"""Checkpoint files made in plain Python, from FORMAT.md: for stores that hold no real jobs."""

import struct

from wal.checkpoint import Made
from wal.facts import CheckpointEnd
from wal.frame import FORMAT_READER_MIN, FORMAT_VERSION, crc32c

HEADER = struct.Struct("<8sII16sQQI4xqqIII")
CHUNK = struct.Struct("<IIIIIQII")  # behind magic and header crc: payload crc on
END = struct.Struct("<QQqqQQQQQQII")
MAGIC = int.from_bytes(b"WDPK", "little")
TABLE, LAST = 4, 7  # kinds of chunks


def chunk(payload, *, number, kind, salt, count=1, first=0):
    """Return one sealed chunk, and its payload crc."""
    padded = payload + bytes(-len(payload) % 8)
    crc = crc32c(padded, salt)
    head = struct.pack("<IIIIQII", crc, len(payload), number, count, first, kind, salt)
    return struct.pack("<II", MAGIC, crc32c(head, salt)) + head + padded, crc


def checkpoint(uuid, *, start_lsn, end_lsn=None, term=1, wall_ms=0, rel_ms=0, salt=9, payloads=()):
    """Return (bytes of the file, the facts that its end says)."""
    end_lsn = start_lsn if end_lsn is None else end_lsn
    head = HEADER.pack(
        b"WDCKPNT\n",
        FORMAT_VERSION,
        FORMAT_READER_MIN,
        uuid,
        term,
        start_lsn,
        salt,
        wall_ms,
        wall_ms,
        0,
        0,
        0,
    )
    block = head + bytes(4092 - len(head))
    data = block + crc32c(block).to_bytes(4, "little")
    crcs = salt
    for number, payload in enumerate(payloads):
        one, crc = chunk(payload, number=number, kind=TABLE, salt=salt)
        data += one
        crcs = crc32c(crc.to_bytes(4, "little"), crcs)
    n = len(payloads)
    end = END.pack(start_lsn, end_lsn, wall_ms, rel_ms, 0, 0, 0, 0, n, 0, n, crcs)
    data += chunk(end, number=n, kind=LAST, salt=salt)[0]
    return data, CheckpointEnd(
        start_lsn=start_lsn,
        end_lsn=end_lsn,
        wall_ms=wall_ms,
        rel_ms=rel_ms,
        jobs=0,
        chunks=n,
        crc=crcs,
    )


def write_checkpoint(disk, log, *, uuid, term, start_lsn, end_lsn=None, payloads=()):
    """Write the file that the core would have written, and return what is to be published."""
    data, end = checkpoint(uuid, start_lsn=start_lsn, end_lsn=end_lsn, term=term, payloads=payloads)
    path = log.checkpoints.temporary_path()
    fd = disk.open(path, write=True, create=True)
    try:
        disk.truncate(fd, 0)
        disk.pwrite(fd, data, 0)
        disk.datasync(fd)
    finally:
        disk.close(fd)
    return Made(
        start_lsn=end.start_lsn,
        end_lsn=end.end_lsn,
        size_bytes=len(data),
        digest=end.crc,
        rows=0,
    )
