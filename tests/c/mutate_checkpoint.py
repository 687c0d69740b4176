"""Plant known faults in the checkpoint, one at a time: its tests must notice each.

    python -m tests.c.mutate_checkpoint [--only TEXT]      (in the root of the checkout)

As mutate_conn.py does it, over the tests of checkpoints. Prints one line per fault; exit status 1
when one was missed.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.c.mutate_conn import ROOT, Builder, fault

TESTS = ["tests/property/test_checkpoint.py", "tests/unit/test_checkpoint.py"]
HANG_S = 300

FAULTS = [
    # the rules of replay
    fault(
        "rules 1 and 2 are swapped: the row's lsn is asked before its generation",
        "wd_replay.c",
        "if (gen < row->gen || row->state == WD_FREE) return LEAVE;\n"
        "    return lsn > row->lsn ? APPLY : LEAVE;",
        "if (lsn > row->lsn) return APPLY;\n    return LEAVE;",
    ),
    fault(
        "rule 1: a record of an older generation is damage",
        "wd_replay.c",
        "if (gen < row->gen || row->state == WD_FREE) return LEAVE;",
        "if (gen < row->gen || row->state == WD_FREE) return DAMAGE;",
    ),
    fault(
        "rule 1: a free slot that had the generation is damage",
        "wd_replay.c",
        "if (gen < row->gen || row->state == WD_FREE) return LEAVE;",
        "if (gen < row->gen) return LEAVE;\n    if (row->state == WD_FREE) return DAMAGE;",
    ),
    fault(
        "rule 2: every record of the generation is applied",
        "wd_replay.c",
        "return lsn > row->lsn ? APPLY : LEAVE;",
        "return APPLY;",
    ),
    fault(
        "rule 2: a record is applied to the row that it made last",
        "wd_replay.c",
        "return lsn > row->lsn ? APPLY : LEAVE;",
        "return lsn >= row->lsn ? APPLY : LEAVE;",
    ),
    fault(
        "rule 3 is dropped: what a job's record does to the rings is left out with it",
        "wd_replay.c",
        "return wd_apply_beside(e, r);",
        "return WD_OK;",
    ),
    fault(
        "rule 3: only ended jobs reach the rings, tokens of left out records do not",
        "wd_apply.c",
        "    case WD_R_CREATED:\n        return remember_once(e, r, WD_A_CREATED);\n"
        "    case WD_R_REPLACED:\n        return remember_once(e, r, WD_A_REPLACED);\n"
        "    case WD_R_ENDED:\n        return end_in_ring",
        "    case WD_R_ENDED:\n        return end_in_ring",
    ),
    fault(
        "rule 3: the token of a replaced job is remembered as a created one's",
        "wd_apply.c",
        "return remember_once(e, r, WD_A_REPLACED);\n    case WD_R_ENDED:",
        "return remember_once(e, r, WD_A_CREATED);\n    case WD_R_ENDED:",
    ),
    fault(
        "rule 3: a death with a key that was left out is not in the ended ring",
        "wd_apply.c",
        "return r->fields & WD_F_KEY ? end_in_ring(e, r, WD_DEAD, WD_V_SERVER) : WD_OK;\n"
        "    default:",
        "return WD_OK;\n    default:",
    ),
    fault(
        "rule 3: rings are aged again by frames up to S1",
        "wd_replay.c",
        "if (!fuzzy) wd_ring_age(e->ring, m->rel_ms);",
        "wd_ring_age(e->ring, m->rel_ms);",
    ),
    fault(
        "rule 3: frames behind S1 do not age the rings",
        "wd_replay.c",
        "if (!fuzzy) wd_ring_age(e->ring, m->rel_ms);",
        "if (e->load.stage == WD_LOAD_NONE) wd_ring_age(e->ring, m->rel_ms);",
    ),
    fault(
        "rule 3: a name that is there already is damage",
        "wd_replay.c",
        "wd_span_eq(wd_handler_name(e->names, r->handler), r->text[WD_S_NAME]) ? LEAVE",
        "wd_span_eq(wd_handler_name(e->names, r->handler), r->text[WD_S_NAME]) ? DAMAGE",
    ),
    fault(
        "rule 3: any name with a number that is there will do",
        "wd_replay.c",
        "wd_span_eq(wd_handler_name(e->names, r->handler), r->text[WD_S_NAME]) ? LEAVE",
        "r->handler < WD_HANDLERS_MAX ? LEAVE",
    ),
    fault(
        "rule 3: any policy with a number that is there will do",
        "wd_replay.c",
        "return wd_span_eq(blob, r->text[WD_S_BLOB]) ? LEAVE : DAMAGE;",
        "return LEAVE;",
    ),
    fault(
        "rule 3: a DEL of what is gone already is damage",
        "wd_replay.c",
        "return wd_table_get(e->table, r->reason, r->text[WD_S_NAME], &blob) == WD_OK ? APPLY",
        "return 1 ? APPLY",
    ),
    fault(
        "rule 3: entries are dropped for room twice",
        "wd_replay.c",
        "    case WD_R_RING_DROPPED:\n    case WD_R_ONCE_DROPPED:\n        return LEAVE;",
        "",
    ),
    fault(
        "a record of a newer generation is ignored",
        "wd_replay.c",
        "if (gen > row->gen) return r->kind == WD_R_CREATED ? APPLY : DAMAGE;",
        "if (gen > row->gen) return r->kind == WD_R_CREATED ? APPLY : LEAVE;",
    ),
    fault(
        "a raised generation is not written",
        "wd_checkpoint.c",
        ".generation = wd_slab_floor(e->slab),",
        ".generation = 0,",
    ),
    fault(
        "a record of a slot that nothing made is ignored",
        "wd_replay.c",
        "if (slot >= wd_slab_top(e->slab)) return r->kind == WD_R_CREATED ? APPLY : DAMAGE;",
        "if (slot >= wd_slab_top(e->slab)) return r->kind == WD_R_CREATED ? APPLY : LEAVE;",
    ),
    fault(
        "keys are compared in the mixture",
        "wd_apply.c",
        "int compares = r->fields & WD_F_KEY && !wd_is_fuzzy(e);",
        "int compares = (r->fields & WD_F_KEY) != 0;",
    ),
    fault(
        "S1 is not waited for",
        "wd_engine.c",
        "if (e->load.stage == WD_LOAD_CHUNKS || wd_is_fuzzy(e)) return WD_ECORRUPT;",
        "if (e->load.stage == WD_LOAD_CHUNKS) return WD_ECORRUPT;",
    ),
    fault(
        "the last chunk is not waited for",
        "wd_engine.c",
        "if (e->load.stage == WD_LOAD_CHUNKS || wd_is_fuzzy(e)) return WD_ECORRUPT;",
        "if (wd_is_fuzzy(e)) return WD_ECORRUPT;",
    ),
    fault(
        "the rules hold for ever, so that damage behind S1 is overlooked",
        "wd_replay.c",
        "status = wd_is_fuzzy(e) ? replay_fuzzy(e, &r) : wd_apply(e, &r);",
        "status = replay_fuzzy(e, &r);",
    ),
    fault(
        "frames that the checkpoint holds are applied again",
        "wd_replay.c",
        "if (e->lsn == e->load.meta.start_lsn && last_lsn <= e->lsn) return WD_OK;",
        "",
    ),
    fault(
        "a frame may reach over S1",
        "wd_replay.c",
        "if (fuzzy && last_lsn > e->load.end.end_lsn) return WD_ECORRUPT;",
        "",
    ),
    # the scan
    fault(
        "a row's lsn is not written",
        "wd_image.c",
        "wd_put_u64(p + 8, row->lsn);",
        "wd_put_u64(p + 8, 0);",
    ),
    fault(
        "the generation of a free slot is not written",
        "wd_image.c",
        "wd_put_u32(p, row->gen);\n        return WD_IMAGE_FREE_BYTES;",
        "wd_put_u32(p, 0);\n        return WD_IMAGE_FREE_BYTES;",
    ),
    fault(
        "the scan begins inside a frame",
        "wd_checkpoint.c",
        "    wd_engine_close_batch(e);\n    k->e = e;",
        "    k->e = e;",
    ),
    fault(
        "the scan ends inside a frame",
        "wd_checkpoint.c",
        "    wd_engine_close_batch(e);\n    wd_ckpt_end end",
        "    wd_ckpt_end end",
    ),
    fault(
        "new names are written only at the beginning",
        "wd_checkpoint.c",
        "if (names_lack) return write_name(k);",
        "if (names_lack && k->slot == 0) return write_name(k);",
    ),
    fault(
        "entries that came to the ended ring behind S0 are written too",
        "wd_checkpoint.c",
        "if (k->ended.first >= k->ended.next) {",
        "k->ended.next = have.next;\n    if (k->ended.first >= k->ended.next) {",
    ),
    fault(
        "tokens that came behind S0 are written too",
        "wd_checkpoint.c",
        "if (k->once.first >= k->once.next) {",
        "k->once.next = have.next;\n    if (k->once.first >= k->once.next) {",
    ),
    fault(
        "END tells what was forgotten as of S0",
        "wd_checkpoint.c",
        ".ended_head = wd_ring_ended_numbers(e->ring).first,",
        ".ended_head = 1,",
    ),
    fault(
        "rows made behind S0 are written too",
        "wd_checkpoint.c",
        "if (k->slot == k->slots) {",
        "k->slots = wd_slab_top(k->e->slab);\n    if (k->slot == k->slots) {",
    ),
    fault(
        "a leased row is written with the time at which its lease ends",
        "wd_image.c",
        "state == WD_LEASED ? wd_job_run(e->slab, row)->due_ms : row->due_ms",
        "row->due_ms",
    ),
    fault(
        "a cancelled lease loses its mark",
        "wd_image.c",
        "row->marked = head >> MARKED_SHIFT & 1;",
        "row->marked = 0;",
    ),
    fault(
        "the list of deaths stays in the order of slots",
        "wd_load.c",
        "    sort_places(a, spare, n);\n    relink_dead(e, a, n);",
        "    relink_dead(e, a, n);",
    ),
    fault(
        "the list of ended jobs stays in the order of slots",
        "wd_load.c",
        "    sort_places(a, spare, n);\n    relink_ended(e, a, n);",
        "    relink_ended(e, a, n);",
    ),
    fault(
        "entries that are forgotten already are kept",
        "wd_ring.c",
        "r->skip = n.first - n.next;",
        "r->skip = 0;",
    ),
    # the file
    fault(
        "the last bytes of a chunk are under no crc",
        "wd_ckptfile.c",
        "chunk + WD_CKPT_CHUNK_HEADER_BYTES, whole - WD_CKPT_CHUNK_HEADER_BYTES);",
        "chunk + WD_CKPT_CHUNK_HEADER_BYTES,\n"
        "                     (whole - WD_CKPT_CHUNK_HEADER_BYTES) / 16 * 16);",
    ),
    fault(
        "the order of chunks is not looked at",
        "wd_ckptfile.c",
        "if (m.number != scan->chunks) return WD_CKPT_ORDER;",
        "",
    ),
    fault(
        "a chunk of another file will do",
        "wd_ckptfile.c",
        "if (salt != scan->meta.salt) return WD_CKPT_SALT;",
        "",
    ),
    fault(
        "what END says of the chunks is not compared",
        "wd_ckptfile.c",
        "if (!agrees) return WD_CKPT_FOOTER;",
        "(void)agrees;",
    ),
    fault(
        "bytes behind the last chunk are overlooked",
        "wd_ckptfile.c",
        "return room == whole ? WD_CKPT_WHOLE : WD_CKPT_TRAILING;",
        "return WD_CKPT_WHOLE;",
    ),
    # the writer
    fault(
        "what was written is not read back",
        "wd_ckptwriter.c",
        "if (w->scan.stop == WD_CKPT_MORE) return WD_OK;\n"
        '    if (w->scan.stop != WD_CKPT_WHOLE) return fail(w, "verify", 0, w->scan.stop);',
        "if (w->read_offset < w->offset) return WD_OK;",
    ),
    fault(
        "the file is not synced",
        "wd_ckptwriter.c",
        "int result = io->datasync(io->disk, w->fd);\n",
        "int result = 0;\n",
    ),
    fault(
        "a failed sync is overlooked",
        "wd_ckptwriter.c",
        'if (result < 0) return fail(w, "datasync", result, 0);',
        "",
    ),
    fault(
        "the file of a failed checkpoint stays",
        "wd_ckptwriter.c",
        "if (had_file) (void)w->o.io->unlink(w->o.io->disk, w->path);\n    lock(w);",
        "(void)had_file;\n    lock(w);",
    ),
    fault(
        "a checkpoint counts although the log is not durable",
        "wd_save.c",
        "return wd_commit_durable_lsn(c->commit) >= s->end_lsn ? WD_CHECKPOINT_DONE",
        "return s->end_lsn ? WD_CHECKPOINT_DONE",
    ),
]


def tests_pass(built: Path) -> bool:
    """Return whether the tests pass over the core in a folder."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly", "-m", "not long", "--hypothesis-profile=planted"]
    command += ["-o", f"pythonpath={built} .", *TESTS]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=HANG_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> int:
    """Return 0 when the sound core passes and every fault is noticed, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="faults whose name contains this")
    only = parser.parse_args().only
    chosen = [what for what in FAULTS if only in what.name]
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(Path(folder))
        if not tests_pass(builder.build(None)):
            print("the sound core does not pass")
            return 1
        missed = 0
        for what in chosen:
            noticed = not tests_pass(builder.build(what))
            missed += not noticed
            print(f"{'noticed' if noticed else 'MISSED ':8} {what.name}", flush=True)
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    raise SystemExit(main())
