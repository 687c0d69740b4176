"""Plant known faults in wd_wheel.c, one at a time: check_wheel must notice every one.

    python tests/c/mutate_wheel.py [-j JOBS] [--seeds N] [--only TEXT]

Each fault is a replacement of text that stands exactly once in the source. The faulty wheel is
built with small chunks, ASan and UBSan, and must make check_wheel fail, crash or hang. First the
sound wheel must pass. Prints one line per fault; exit status 1 when one was missed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
CHUNK_CAP = 8
HANG_S = 10
CFLAGS = [
    "-std=c11",
    "-O1",
    "-w",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    f"-DWD_CHUNK_CAP={CHUNK_CAP}",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A mistake someone could make: `old` in the source becomes `new`."""

    name: str
    old: str
    new: str


def fault(name: str, old: str, new: str) -> Fault:
    """Return a Fault; saves the keywords in the table below."""
    return Fault(name=name, old=old, new=new)


FAULTS = [
    # placing and time
    fault(
        "an insert during a partial cascade goes below it and jumps the queue",
        "if (level < w->cascading) level = w->cascading;",
        "",
    ),
    fault(
        "a late due is not clamped to now at insert",
        "place(w, slot, key_of(w, slot));\n    w->count++;",
        "place(w, slot, (uint64_t)row->due_ms);\n    w->count++;",
    ),
    fault(
        "a late due is not clamped to the bucket's start in the cascade",
        "place(w, slots[i], key_of(w, slots[i]));",
        "place(w, slots[i], (uint64_t)w->rows[slots[i]].due_ms);",
    ),
    fault(
        "a clock that steps back moves the wheel back",
        "target_ms > (int64_t)w->now_ms ? (uint64_t)target_ms : w->now_ms",
        "target_ms > 0 ? (uint64_t)target_ms : 0",
    ),
    fault("now is left behind after a quiet advance", "if (!more) w->now_ms = target;", ""),
    fault(
        "now jumps to the target while work is left",
        "if (!more) w->now_ms = target;",
        "w->now_ms = target;",
    ),
    fault(
        "the level is taken from the distance, not the differing digit",
        "(now_ms ^ key_ms) | 1U",
        "(key_ms - now_ms) | 1U",
    ),
    fault("clz of zero when due == now", "(now_ms ^ key_ms) | 1U", "(now_ms ^ key_ms)"),
    fault(
        "a bucket that starts at the target waits for the next call",
        "first.start_ms <= target)",
        "first.start_ms < target)",
    ),
    fault(
        "the start of a bucket lacks the digits above its level",
        "return (above * DIGITS + digit) << (level * DIGIT_BITS);",
        "return ((uint64_t)digit << (level * DIGIT_BITS)) + 0 * above;",
    ),
    fault(
        "63 buckets on a level",
        "(uint32_t)(time_ms >> (level * DIGIT_BITS)) % DIGITS",
        "(uint32_t)(time_ms >> (level * DIGIT_BITS)) % (DIGITS - 1)",
    ),
    fault(
        "times are cut to 32 bits on the high levels",
        "(uint32_t)(time_ms >> (level * DIGIT_BITS)) % DIGITS",
        "((uint32_t)time_ms >> (level * DIGIT_BITS & 31)) % DIGITS",
    ),
    fault(
        "the lowest level is not taken first",
        "(uint32_t)__builtin_ctz(w->nonempty)",
        "31 - (uint32_t)__builtin_clz(w->nonempty)",
    ),
    # bits
    fault(
        "the bit of a bucket stays set when it is emptied",
        "w->occupied[level] &= ~(UINT64_C(1) << (bucket % DIGITS));",
        "",
    ),
    fault(
        "the bit of a level stays set when it is emptied",
        "if (w->occupied[level] == 0) w->nonempty &= ~(UINT32_C(1) << level);",
        "",
    ),
    fault(
        "the bit of a level is cleared with its first bucket",
        "if (w->occupied[level] == 0) w->nonempty &=",
        "w->nonempty &=",
    ),
    fault(
        "the bit of a level is not set",
        "w->nonempty |= UINT32_C(1) << (bucket / DIGITS);",
        "w->nonempty |= UINT32_C(1);",
    ),
    # partial work
    fault(
        "a partial cascade is not remembered",
        "if (c != WD_NIL) w->cascading = from->level;",
        "",
    ),
    fault(
        "a cascade level outlives its bucket when that is cancelled empty",
        "if (w->cascading != 0 && bucket == bucket_at_now(w, w->cascading)) w->cascading = 0;",
        "",
    ),
    fault(
        "a cascade puts what it moves back where it was",
        "w->cascading = 0; /* what is moved now goes below */",
        "",
    ),
    fault(
        "next_due hides a cascade in work",
        "return first_span(w, &first) ?",
        "wd_wheel bare = *w;\n    bare.cascading = 0;\n    return first_span(&bare, &first) ?",
    ),
    fault(
        "a cascade ignores the rest of the budget of the call",
        "cascade(w, &first, max_moves - moved)",
        "cascade(w, &first, max_moves)",
    ),
    fault(
        "a cascade stops only between chunks",
        "take_rows(w, c, max_moves, slots)",
        "take_rows(w, c, CHUNK_CAP, slots)",
    ),
    fault(
        "a drain stops only between chunks",
        "take_rows(w, c, max_out - got, slots)",
        "take_rows(w, c, CHUNK_CAP, slots)",
    ),
    fault(
        "a chunk taken in part keeps what was taken",
        "            cell[i] = WD_NIL;",
        "            ;",
    ),
    fault(
        "a chunk taken in part still counts what was taken",
        "k->live = (uint8_t)(k->live - n);",
        "if (n == k->live) k->live = 0;",
    ),
    fault(
        "a row that fired keeps where, and can be cancelled again",
        "w->rows[slots[i]].where = WD_NIL;",
        "",
    ),
    fault("what fired is still counted", "w->count -= (uint32_t)got;", ""),
    # chunks
    fault(
        "a merge turns the order of the second chunk round",
        "uint32_t slot = source[i];",
        "uint32_t slot = source[from == to ? i : w->chunks[from].used - 1 - i];",
    ),
    fault(
        "a merge forgets where",
        "w->rows[slot].where = to * CHUNK_CAP + n;\n",
        "",
    ),
    fault(
        "a merge takes chunks that do not fit",
        "w->chunks[second].live > MERGE_FITS",
        "w->chunks[second].live > 2 * CHUNK_CAP",
    ),
    fault(
        "thin chunks are merged with the successor only",
        "(void)chunk_merge(w, k->prev, c);",
        ";",
    ),
    fault(
        "thin chunks are never merged",
        "k->live <= MERGE_AT && !chunk_merge",
        "k->live <= 0 && !chunk_merge",
    ),
    fault(
        "an emptied chunk is kept on cancel",
        "if (k->live == 0) {\n        chunk_remove(w, c);",
        "if (0) {\n        chunk_remove(w, c);",
    ),
    fault(
        "a removed chunk leaves the tail behind",
        "&w->chunks[k->next].prev : &w->tail[bucket]) = k->prev;",
        "&w->chunks[k->next].prev : &w->chunks[c].prev) = k->prev;",
    ),
    fault(
        "a removed chunk is not recycled",
        "w->chunks[c].next = w->free_head;\n    w->free_head = c;",
        "",
    ),
    fault(
        "a cancelled row keeps where",
        "w->rows[slot].where = WD_NIL;\n    w->count--;",
        "w->count--;",
    ),
    # rebase
    fault(
        "a rebase forwards does not sort what is due",
        "(first.start_ms <= now_ms || w->cascading != 0)",
        "(w->cascading != 0)",
    ),
    fault(
        "a rebase takes the bucket in cascade ahead of what was moved down",
        "(first.start_ms <= now_ms || w->cascading != 0)",
        "(first.start_ms <= now_ms)",
    ),
    fault(
        "a rebase backwards leaves now",
        "w->now_ms = (uint64_t)now_ms;\n    uint32_t c = all.head;",
        "uint32_t c = all.head;",
    ),
    fault(
        "a rebase loses all but the last bucket",
        "*(to->head == WD_NIL ? &to->head : &w->chunks[to->tail].next) = head;",
        "to->head = head;",
    ),
    fault(
        "a rebase keeps the old chunks",
        "(void)move_rows(w, c, SIZE_MAX);\n        chunk_recycle(w, c);",
        "(void)move_rows(w, c, SIZE_MAX);",
    ),
]


def run(command: list[str], timeout_s: float | None = None) -> tuple[int, str]:
    """Return (exit status, output); status 124 when it hung."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, f"hangs (stopped after {timeout_s:g} s)"
    return done.returncode, done.stdout + done.stderr


def compile_object(source: Path, target: Path) -> Path:
    """Return target, compiled from source. Raises RuntimeError with the compiler's words."""
    cc = os.environ.get("CC", "gcc")
    status, text = run([cc, *CFLAGS, f"-I{CSRC}", "-c", str(source), "-o", str(target)])
    if status:
        raise RuntimeError(f"{source.name} does not compile:\n{text}")
    return target


def build(source: str, folder: Path, name: str, rest: list[Path]) -> Path:
    """Return the program check_wheel with `source` as the text of wd_wheel.c."""
    path = folder / f"{name}.c"
    path.write_text(source)
    wheel = compile_object(path, folder / f"{name}.o")
    program = folder / name
    cc = os.environ.get("CC", "gcc")
    status, text = run([cc, *CFLAGS, str(wheel), *map(str, rest), "-o", str(program)])
    if status:
        raise RuntimeError(f"{name} does not link:\n{text}")
    return program


def plant(source: str, planted: Fault) -> str:
    """Return source with the fault. Raises ValueError unless its place is there exactly once."""
    found = source.count(planted.old)
    if found != 1:
        raise ValueError(f"{planted.name!r}: its text stands {found} times in wd_wheel.c, not once")
    return source.replace(planted.old, planted.new)


def symptom(output: str) -> str:
    """Return the line of the output that says what went wrong."""
    telling = re.compile(r"^seed |assertion failed|ERROR: |runtime error|hangs")
    lines = output.splitlines()
    line = next((line for line in lines if telling.search(line)), lines[0] if lines else "")
    return re.sub(r"^\S*/|^==\d+==", "", line)[:90]


def main() -> int:
    """Return 0 when the sound wheel passes and every fault is noticed, else 1."""
    parser = argparse.ArgumentParser(description="Plant faults in wd_wheel.c.")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seeds", type=int, default=40, help="seeds for check_wheel (40)")
    parser.add_argument("--only", default="", help="faults whose name contains this text")
    options = parser.parse_args()
    sound = (CSRC / "wd_wheel.c").read_text()
    faults = [planted for planted in FAULTS if options.only in planted.name]
    planted_sources = [plant(sound, planted) for planted in faults]
    seeds = ["1", str(options.seeds)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rest = [
            compile_object(CSRC / "wd_mem.c", folder / "mem.o"),
            compile_object(HERE / "check_wheel.c", folder / "check.o"),
        ]
        status, output = run([str(build(sound, folder, "sound", rest)), *seeds])
        if status:
            sys.stdout.write(f"the sound wheel fails: {symptom(output)}\n")
            return 1

        def outcome(i: int) -> tuple[int, str]:
            program = build(planted_sources[i], folder, f"fault{i}", rest)
            return run([str(program), *seeds], timeout_s=HANG_S)

        caught = 0
        with ThreadPoolExecutor(options.jobs) as pool:
            for planted, (status, output) in zip(
                faults, pool.map(outcome, range(len(faults))), strict=True
            ):
                caught += status != 0
                word = "caught" if status else "MISSED"
                sys.stdout.write(f"{word}  {planted.name} -> {symptom(output)}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{caught} of {len(faults)} faults caught\n")
    return 0 if caught == len(faults) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
