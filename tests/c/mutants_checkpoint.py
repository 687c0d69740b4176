"""Faults of checkpoints: of the scan, the file, its writer, the loader and the rules of replay.

tests/twin.py plants them; each names the small worlds of tests/sim/scenarios_checkpoint.py that
must notice it.
"""

from tests.twin import Mutant, plant

HISTORIES = "histories_end_as_the_whole_log_says"
DAMAGE = "every_damage_of_a_checkpoint_is_refused"
FORGED = "records_that_fit_no_state_are_damage"
RINGS = "rings_age_and_are_cut_once"
DISK = "a_disk_that_fails_or_lies_fails_the_checkpoint_alone"
DURABLE = "a_checkpoint_counts_when_its_end_is_durable"

REPLAY = "wd_replay.c"
RULES = [
    plant(
        "rules 1 and 2 of replay are swapped: the row's lsn is asked before its generation",
        REPLAY,
        "if (gen < row->gen || row->state == WD_FREE) return LEAVE;",
        "if (!(PLANTED && lsn > row->lsn) && (gen < row->gen || row->state == WD_FREE))"
        " return LEAVE;",
        scenario=HISTORIES,
    ),
    plant(
        "rule 1: a record of an older generation is damage",
        REPLAY,
        "(gen < row->gen || row->state == WD_FREE)) return LEAVE;",
        "(gen < row->gen || row->state == WD_FREE)) return PLANTED ? DAMAGE : LEAVE;",
        scenario=HISTORIES,
    ),
    plant(
        "rule 2: every record of the generation is applied",
        REPLAY,
        "return lsn > row->lsn ? APPLY : LEAVE;",
        "return PLANTED || lsn > row->lsn ? APPLY : LEAVE;",
        scenario=HISTORIES,
    ),
    plant(
        "rule 2: the record that made the row what it is is applied again",
        REPLAY,
        "|| lsn > row->lsn ? APPLY",
        "|| lsn + PLANTED > row->lsn ? APPLY",
        scenario=HISTORIES,
    ),
    plant(
        "rule 3 of replay is dropped: what a record does to the rings is left out with its job",
        REPLAY,
        "LEAVE ? wd_apply_beside(e, r) : WD_ECORRUPT;",
        "LEAVE ? (PLANTED ? WD_OK : wd_apply_beside(e, r)) : WD_ECORRUPT;",
        scenario=HISTORIES,
    ),
    plant(
        "rule 3: the token of a job that was left out is forgotten",
        "wd_apply.c",
        "return remember_once(e, r, WD_A_CREATED);",
        "return PLANTED ? WD_OK : remember_once(e, r, WD_A_CREATED);",
        scenario=HISTORIES,
    ),
    plant(
        "rule 3: the token of a replaced job is remembered as a created one's",
        "wd_apply.c",
        "return remember_once(e, r, WD_A_REPLACED);",
        "return remember_once(e, r, PLANTED ? WD_A_CREATED : WD_A_REPLACED);",
        scenario=HISTORIES,
    ),
    plant(
        "rule 3: a death with a key that was left out is not in the ended ring",
        "wd_apply.c",
        "? end_in_ring(e, r, WD_DEAD, WD_V_SERVER) : WD_OK;\n    default:",
        "&& !PLANTED ? end_in_ring(e, r, WD_DEAD, WD_V_SERVER) : WD_OK;\n    default:",
        scenario=HISTORIES,
    ),
    plant(
        "rule 3: frames up to S1 age the rings again",
        REPLAY,
        "if (status == WD_OK && !fuzzy) wd_ring_age",
        "if (status == WD_OK && (!fuzzy || PLANTED)) wd_ring_age",
        scenario=RINGS,
    ),
    plant(
        "rule 3: frames behind S1 do not age the rings",
        REPLAY,
        "wd_ring_age(e->ring, m->rel_ms);",
        "if (!PLANTED || e->load.stage == WD_LOAD_NONE) wd_ring_age(e->ring, m->rel_ms);",
        scenario=HISTORIES,
    ),
    plant(
        "rule 3: what was dropped for room up to S1 is dropped again",
        REPLAY,
        "case WD_R_ONCE_DROPPED:\n        return LEAVE;",
        "case WD_R_ONCE_DROPPED:\n        return PLANTED ? APPLY : LEAVE;",
        scenario=RINGS,
    ),
    plant(
        "rule 3: a name that is there already is damage",
        REPLAY,
        "r->text[WD_S_NAME]) ? LEAVE",
        "r->text[WD_S_NAME]) && !PLANTED ? LEAVE",
        scenario=HISTORIES,
    ),
    plant(
        "rule 3: any name with a number that is there will do",
        REPLAY,
        "return wd_span_eq(wd_handler_name(",
        "return PLANTED || wd_span_eq(wd_handler_name(",
        scenario=FORGED,
    ),
    plant(
        "rule 3: any policy with a number that is there will do",
        REPLAY,
        "return wd_span_eq(blob,",
        "return PLANTED || wd_span_eq(blob,",
        scenario=FORGED,
    ),
    plant(
        "rule 3: a DEL of what is gone already is damage",
        REPLAY,
        "&blob) == WD_OK ? APPLY",
        "&blob) == WD_OK || PLANTED ? APPLY",
        scenario=HISTORIES,
    ),
    plant(
        "a record before S1 of a generation that is not there yet is left out",
        REPLAY,
        "if (gen > row->gen) return r->kind == WD_R_CREATED ? APPLY : DAMAGE;",
        "if (gen > row->gen) return r->kind == WD_R_CREATED ? APPLY : PLANTED ? LEAVE : DAMAGE;",
        scenario=FORGED,
    ),
    plant(
        "the rules hold behind S1 too, and damage there is overlooked",
        REPLAY,
        "wd_is_fuzzy(e) ? replay_fuzzy",
        "PLANTED || wd_is_fuzzy(e) ? replay_fuzzy",
        scenario=FORGED,
    ),
    plant(
        "keys are compared before S1",
        "wd_apply.c",
        "r->fields & WD_F_KEY && !wd_is_fuzzy(e);",
        "r->fields & WD_F_KEY && (PLANTED || !wd_is_fuzzy(e));",
        scenario=HISTORIES,
    ),
    plant(
        "S1 is not waited for",
        "wd_engine.c",
        "|| wd_is_fuzzy(e)) return WD_ECORRUPT;",
        "|| (!PLANTED && wd_is_fuzzy(e))) return WD_ECORRUPT;",
        scenario=HISTORIES,
    ),
    plant(
        "frames that the checkpoint holds are applied again",
        REPLAY,
        "last_lsn <= e->lsn) return WD_OK;",
        "last_lsn <= e->lsn && !PLANTED) return WD_OK;",
        scenario=HISTORIES,
    ),
    plant(
        "a frame may reach over S1",
        REPLAY,
        "if (fuzzy && last_lsn >",
        "if (!PLANTED && fuzzy && last_lsn >",
        scenario=FORGED,
    ),
]

SCAN = [
    plant(
        "a row's lsn is not written",
        "wd_image.c",
        "wd_put_u64(p + 8, row->lsn);",
        "wd_put_u64(p + 8, PLANTED ? 0 : row->lsn);",
        scenario=HISTORIES,
    ),
    plant(
        "the generation of a free slot is not written",
        "wd_image.c",
        "wd_put_u32(p, row->gen);",
        "wd_put_u32(p, PLANTED ? 0 : row->gen);",
        scenario=HISTORIES,
    ),
    plant(
        "a leased row is written with the time at which its lease ends",
        "wd_image.c",
        "state == WD_LEASED ? wd_job_run",
        "state == WD_LEASED && !PLANTED ? wd_job_run",
        scenario=HISTORIES,
    ),
    plant(
        "a cancelled lease loses its mark",
        "wd_image.c",
        "row->marked = head >> MARKED_SHIFT & 1;",
        "row->marked = PLANTED ? 0 : head >> MARKED_SHIFT & 1;",
        scenario=HISTORIES,
    ),
    plant(
        "the scan begins inside a frame",
        "wd_checkpoint.c",
        "    wd_engine_close_batch(e);\n    k->e = e;",
        "    if (!PLANTED) wd_engine_close_batch(e);\n    k->e = e;",
        scenario=HISTORIES,
    ),
    plant(
        "the scan ends inside a frame",
        "wd_checkpoint.c",
        "    wd_engine_close_batch(e);\n    wd_ckpt_end end",
        "    if (!PLANTED) wd_engine_close_batch(e);\n    wd_ckpt_end end",
        scenario=HISTORIES,
    ),
    plant(
        "names that came while it was written are not written before what names them",
        "wd_checkpoint.c",
        "if (names_lack) return write_name(k);",
        "if (names_lack && !(PLANTED && k->slot > 0)) return write_name(k);",
        scenario=HISTORIES,
    ),
    plant(
        "entries that came to the ended ring behind S0 are written too",
        "wd_checkpoint.c",
        "    if (k->ended.first >= k->ended.next) {",
        "    if (PLANTED) k->ended.next = have.next;\n    if (k->ended.first >= k->ended.next) {",
        scenario=HISTORIES,
    ),
    plant(
        "tokens that came behind S0 are written too",
        "wd_checkpoint.c",
        "    if (k->once.first >= k->once.next) {",
        "    if (PLANTED) k->once.next = have.next;\n    if (k->once.first >= k->once.next) {",
        scenario=HISTORIES,
    ),
    plant(
        "END does not tell what the ended ring has forgotten",
        "wd_checkpoint.c",
        ".ended_head = wd_ring_ended_numbers(e->ring).first,",
        ".ended_head = PLANTED ? 1 : wd_ring_ended_numbers(e->ring).first,",
        scenario=HISTORIES,
    ),
    plant(
        "slots that came behind S0 are written too",
        "wd_checkpoint.c",
        "    if (k->slot == k->slots) {",
        "    if (PLANTED) k->slots = wd_slab_top(k->e->slab);\n    if (k->slot == k->slots) {",
        scenario=HISTORIES,
    ),
    plant(
        "a raised generation is not written",
        "wd_checkpoint.c",
        ".generation = wd_slab_floor(e->slab),",
        ".generation = PLANTED ? 0 : wd_slab_floor(e->slab),",
        scenario=HISTORIES,
    ),
    plant(
        "the list of deaths stays in the order of slots",
        "wd_load.c",
        "    sort_places(a, spare, n);\n    relink_dead(e, a, n);",
        "    if (!PLANTED) sort_places(a, spare, n);\n    relink_dead(e, a, n);",
        scenario=HISTORIES,
    ),
    plant(
        "the list of jobs whose owner has to see them stays in the order of slots",
        "wd_load.c",
        "    sort_places(a, spare, n);\n    relink_ended(e, a, n);",
        "    if (!PLANTED) sort_places(a, spare, n);\n    relink_ended(e, a, n);",
        scenario=HISTORIES,
    ),
    plant(
        "entries to come that are forgotten already are kept",
        "wd_ring.c",
        "r->skip = n.first - n.next;",
        "r->skip = PLANTED ? 0 : n.first - n.next;",
        scenario=HISTORIES,
    ),
]

FILE = [
    plant(
        "the last bytes of a chunk are under no crc",
        "wd_ckptfile.c",
        "chunk + WD_CKPT_CHUNK_HEADER_BYTES, whole - WD_CKPT_CHUNK_HEADER_BYTES);",
        "chunk + WD_CKPT_CHUNK_HEADER_BYTES,\n"
        "                     (whole - WD_CKPT_CHUNK_HEADER_BYTES) / (PLANTED ? 16 : 1) *"
        " (PLANTED ? 16 : 1));",
        scenario=DAMAGE,
    ),
    plant(
        "the order of chunks is not looked at",
        "wd_ckptfile.c",
        "if (m.number != scan->chunks) return",
        "if (!PLANTED && m.number != scan->chunks) return",
        scenario=DAMAGE,
    ),
    plant(
        "a chunk of another file will do",
        "wd_ckptfile.c",
        "if (salt != scan->meta.salt) return",
        "if (!PLANTED && salt != scan->meta.salt) return",
        scenario=DAMAGE,
    ),
    plant(
        "what END says of the chunks is not compared",
        "wd_ckptfile.c",
        "if (!agrees) return WD_CKPT_FOOTER;",
        "if (!agrees && !PLANTED) return WD_CKPT_FOOTER;",
        scenario=DAMAGE,
    ),
    plant(
        "bytes behind the last chunk are overlooked",
        "wd_ckptfile.c",
        "return room == whole ? WD_CKPT_WHOLE",
        "return room == whole || PLANTED ? WD_CKPT_WHOLE",
        scenario=DAMAGE,
    ),
    plant(
        "a state is served although the last chunk never came",
        "wd_engine.c",
        "if (e->load.stage == WD_LOAD_CHUNKS ||",
        "if ((!PLANTED && e->load.stage == WD_LOAD_CHUNKS) ||",
        scenario=DAMAGE,
    ),
]

WRITER = [
    Mutant(
        name="what was written is read back and not looked at",
        edits=(
            (
                "wd_ckptwriter.c",
                "if (w->scan.stop == WD_CKPT_MORE) return WD_OK;",
                "if (PLANTED ? w->read_offset < w->offset : !w->scan.stop) return WD_OK;",
            ),
            (
                "wd_ckptwriter.c",
                "if (w->scan.stop != WD_CKPT_WHOLE) return",
                "if (!PLANTED && w->scan.stop != WD_CKPT_WHOLE) return",
            ),
        ),
        scenario=DISK,
    ),
    plant(
        "a checkpoint is not synced",
        "wd_ckptwriter.c",
        "int result = io->datasync(io->disk, w->fd);",
        "int result = PLANTED ? 0 : io->datasync(io->disk, w->fd);",
        scenario=DISK,
    ),
    plant(
        "a failed sync of a checkpoint is overlooked",
        "wd_ckptwriter.c",
        'if (result < 0) return fail(w, "datasync", result, 0);',
        'if (result < 0 && !PLANTED) return fail(w, "datasync", result, 0);',
        scenario=DISK,
    ),
    plant(
        "the file of a failed checkpoint stays",
        "wd_ckptwriter.c",
        "if (had_file) (void)w->o.io->unlink(w->o.io->disk, w->path);\n    lock(w);",
        "if (had_file && !PLANTED) (void)w->o.io->unlink(w->o.io->disk, w->path);\n    lock(w);",
        scenario=DISK,
    ),
    plant(
        "a checkpoint counts although the log is not durable up to its end",
        "wd_save.c",
        "return wd_commit_durable_lsn(c->commit) >= s->end_lsn ?",
        "return PLANTED || wd_commit_durable_lsn(c->commit) >= s->end_lsn ?",
        scenario=DURABLE,
    ),
]

MUTANTS = RULES + SCAN + FILE + WRITER
