"""tests/c/fuzz_store.c under AddressSanitizer and UBSan, a fixed number of inputs; and the plain
reader of FORMAT.md beside the C scanner on damaged segments.
"""

import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.format_reader import read_frames, read_header
from tests.fuzzer import ROOT, compiler, corpus, run
from tests.logkit import frames_of
from wal.frame import SEGMENT_HEADER_BYTES, Scanner

CORPUS = corpus("store")
CASES = 4_000
DAMAGED = 400


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    command = compiler("")
    sources = [ROOT / "tests" / "c" / "fuzz_store.c", *sorted((ROOT / "csrc").glob("wd_*.c"))]

    def build(source: Path) -> str:
        target = str(folder / f"{source.stem}.o")
        subprocess.run([*command, "-c", str(source), "-o", target], cwd=ROOT, check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(build, sources))
    program = folder / "fuzz_store"
    subprocess.run([*command, *objects, "-pthread", "-o", str(program)], cwd=ROOT, check=True)
    return program


@pytest.mark.slow
def test_no_bytes_in_a_store_reach_outside_themselves_or_break_the_engine(fuzzer: Path) -> None:
    run(fuzzer, CASES, CORPUS)


def damaged(rng: random.Random, segment: bytes) -> bytes:
    """Return the segment with some bytes changed, or its end cut off, or a piece moved."""
    data = bytearray(segment)
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(SEGMENT_HEADER_BYTES, len(data))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.2:
        del data[rng.randrange(SEGMENT_HEADER_BYTES + 1, len(data)) :]
    if rng.random() < 0.2:
        at = rng.randrange(SEGMENT_HEADER_BYTES, max(len(data) - 8, SEGMENT_HEADER_BYTES + 1))
        at = at // 8 * 8
        data[at:] = segment[SEGMENT_HEADER_BYTES:][: len(data) - at]
    return bytes(data)


@pytest.mark.slow
def test_the_scanner_reads_of_damaged_segments_what_the_format_says() -> None:
    """Two readers that share no code find the same frames, and the same end of them."""
    path = next(path for path in CORPUS if path.name.endswith("-wal"))
    segment = path.read_bytes()
    header = read_header(segment)
    assert header is not None
    rng = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    for _ in range(DAMAGED):
        data = damaged(rng, segment)
        frames, end = read_frames(data, header)
        scanner = Scanner(
            next_lsn=header["base_lsn"], prev_crc=header["prev_crc"], salt=header["salt"]
        )
        body = data[SEGMENT_HEADER_BYTES:]
        scan = scanner.feed(body, room=len(body))
        assert scan.bytes == end - SEGMENT_HEADER_BYTES
        assert frames_of(body[: scan.bytes]) == frames


def test_the_corpus_is_there() -> None:
    kinds = {path.name.rpartition("-")[2] for path in CORPUS}
    assert kinds == {"wal", "snap", "MARK"}
