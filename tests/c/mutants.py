"""Faults of the core and the log that the simulation must find, each with the rule that it breaks.

tests/twin.py plants them; PLANTED is true while a fault is on. Named after what goes wrong.
"""

from tests.twin import Mutant, plant

GATE = [
    plant(
        "no reply waits for anything",
        "wd_conn.c",
        "int waits = done == WD_DONE_GATED && seq > durable_seq;",
        "int waits = !PLANTED && done == WD_DONE_GATED && seq > durable_seq;",
    ),
    plant(
        "the gate is open for reads",
        "wd_conn.c",
        "int done = wd_command_run(r->commands, &c->session, r->argv, argc);",
        "uint64_t before = wd_engine_lsn(r->engine);\n"
        "    int done = wd_command_run(r->commands, &c->session, r->argv, argc);\n"
        "    if (PLANTED && done == WD_DONE_GATED && before == wd_engine_lsn(r->engine))"
        " done = WD_DONE_FREE;",
    ),
    plant(
        "the gate opens one batch too far",
        "wd_conn.c",
        "mark_at(c, 0)->seq <= durable_seq; left--",
        "mark_at(c, 0)->seq <= durable_seq + PLANTED; left--",
    ),
    plant(
        "a lease that was waited for is granted before LEASED is durable",
        "wd_conns.c",
        "wd_conn_gate(c, WD_DONE_GATED,",
        "wd_conn_gate(c, PLANTED ? WD_DONE_FREE : WD_DONE_GATED,",
    ),
    plant(
        "taking a frame makes it durable",
        "wd_commit.c",
        "c->flight = b;\n    *out_frame",
        "c->flight = b;\n    if (PLANTED) c->durable_seq = b->seq;\n    *out_frame",
    ),
    plant(
        "two frames are in flight",
        "wd_commit.c",
        "if (c->flight) return NULL;",
        "if (c->flight && !PLANTED) return NULL;",
    ),
    plant(
        "a frame that found no room is forgotten",
        "wd_commit.c",
        "        c->flight = b;\n        c->stalled = 1;",
        "        if (!PLANTED) c->flight = b;\n        c->stalled = !PLANTED;",
        scenario="a_frame_that_finds_no_room_is_kept",
    ),
]

LOG = [
    plant(
        "a frame is confirmed before it is synced",
        "wd_log.c",
        "if (always && sync_file(log, log->s.fd, log->segment_path) != WD_OK) return WD_EIO;",
        "if (always && !PLANTED && sync_file(log, log->s.fd, log->segment_path) != WD_OK)"
        " return WD_EIO;",
    ),
    plant(
        "after a failed sync the log goes on",
        "wd_log.c",
        'if (result < 0) return fail(log, (wd_file_fault){"datasync", path, 0, result});',
        "if (result < 0 && !PLANTED)"
        ' return fail(log, (wd_file_fault){"datasync", path, 0, result});',
    ),
    plant(
        "a failed write is taken for a written one",
        "wd_file.c",
        "        if (put <= 0) {",
        "        if (PLANTED && put <= 0) put = (int64_t)(bytes.n - done);\n"
        "        if (put <= 0) {",
    ),
    plant(
        "a short write is not continued",
        "wd_file.c",
        "done += (size_t)put;",
        "done = PLANTED ? bytes.n : done + (size_t)put;",
    ),
    plant(
        "the name of a fresh segment is not durable",
        "wd_log.c",
        "    if (durable) {\n        result = io->dirsync",
        "    if (durable && !PLANTED) {\n        result = io->dirsync",
    ),
    plant(
        "the header of a fresh segment is not durable",
        "wd_log.c",
        "if (durable && sync_file(log, log->next_fd, log->next_path) != WD_OK) return WD_EIO;",
        "if (durable && !PLANTED && sync_file(log, log->next_fd, log->next_path) != WD_OK)"
        " return WD_EIO;",
    ),
    plant(
        "an interval's sync leaves out the segments before",
        "wd_log.c",
        "    for (int i = 0; i < n; i++) {\n        if (sync_file(log, sealed[i]",
        "    for (int i = 0; i < n && !PLANTED; i++) {\n        if (sync_file(log, sealed[i]",
    ),
    plant(
        "an interval's sync leaves out the segments' names",
        "wd_log.c",
        "int result = n > 0 ? io->dirsync",
        "int result = n > 0 && !PLANTED ? io->dirsync",
    ),
    plant(
        "a frame says that more is synced than is",
        "wd_log.c",
        "sealed.durable_lsn = log->s.synced.lsn;",
        "sealed.durable_lsn = PLANTED ? log->s.written.lsn : log->s.synced.lsn;",
    ),
    plant(
        "a frame of mode interval or off does not say so",
        "wd_log.c",
        "sealed.flags = always ? 0 : WD_FRAME_UNSYNCED;",
        "sealed.flags = always || PLANTED ? 0 : WD_FRAME_UNSYNCED;",
    ),
    plant(
        "a rotation forgets where the next frame goes",
        "wd_log.c",
        "    log->s.offset = WD_SEGMENT_HEADER_BYTES;\n",
        "    log->s.offset = WD_SEGMENT_HEADER_BYTES + (PLANTED ? 512 : 0);\n",
    ),
    plant(
        "a failed log takes another frame",
        "wd_log.c",
        "    if (atomic_load(&log->failed)) return WD_EIO;\n"
        "    uint64_t whole = WD_FRAME_HEADER_BYTES",
        "    if (atomic_load(&log->failed) && !PLANTED) return WD_EIO;\n"
        "    uint64_t whole = WD_FRAME_HEADER_BYTES",
        scenario="a_failed_log_takes_no_frame",
    ),
    plant(
        "frames do not name the one before them",
        "wd_log.c",
        "    log->prev_crc = crc;\n",
        "    if (!PLANTED) log->prev_crc = crc;\n",
    ),
]

MARK = [
    plant(
        "MARK is never written",
        "wd_log.c",
        "    if (wd_file_write(log->io, log->mark_fd,",
        "    if (PLANTED) return WD_OK;\n    if (wd_file_write(log->io, log->mark_fd,",
    ),
    plant(
        "MARK says what is written, not what is synced",
        "wd_log.c",
        "position at = log->s.synced;",
        "position at = PLANTED ? log->s.written : log->s.synced;",
    ),
    plant(
        "MARK always goes to the same slot",
        "wd_log.c",
        "int64_t offset = (int64_t)(m.count % WD_MARK_SLOTS) * WD_MARK_SLOT_BYTES;",
        "int64_t offset = PLANTED ? 0 : (int64_t)(m.count % WD_MARK_SLOTS) * WD_MARK_SLOT_BYTES;",
    ),
    plant(
        "MARK is written before what it says is synced, and not synced itself",
        "wd_log.c",
        "    int result = log->io->datasync(log->io->disk, log->mark_fd);",
        "    int result = PLANTED ? 0 : log->io->datasync(log->io->disk, log->mark_fd);",
    ),
]

FORMAT = [
    Mutant(
        name="the payload is not under its checksum",
        edits=(
            (
                "wd_frame.c",
                "wd_crc32c(salt, frame + WD_FRAME_HEADER_BYTES, whole - WD_FRAME_HEADER_BYTES));",
                "wd_crc32c(salt, frame + WD_FRAME_HEADER_BYTES, PLANTED ? 0 : whole - 64));",
            ),
            (
                "wd_frame.c",
                "wd_crc32c(salt, p + WD_FRAME_HEADER_BYTES, bytes - WD_FRAME_HEADER_BYTES);",
                "wd_crc32c(salt, p + WD_FRAME_HEADER_BYTES, PLANTED ? 0 : bytes - 64);",
            ),
        ),
    ),
    plant(
        "a frame's checksum is not compared",
        "wd_frame.c",
        "return crc == wd_frame_crc(p) ? WD_SCAN_MORE : WD_SCAN_PAYLOAD_CRC;",
        "return crc == wd_frame_crc(p) || PLANTED ? WD_SCAN_MORE : WD_SCAN_PAYLOAD_CRC;",
    ),
    plant(
        "the order of lsns is not looked at",
        "wd_frame.c",
        "if (m.first_lsn != scan->next_lsn || m.records == 0) return WD_SCAN_LSN;",
        "if ((m.first_lsn != scan->next_lsn && !PLANTED) || m.records == 0) return WD_SCAN_LSN;",
        scenario="a_frame_with_another_lsn_is_refused",
    ),
    plant(
        "a frame's header is not under a checksum",
        "wd_frame.c",
        "if (wd_get_u32(p + WD_FRAME_AT_HEADER_CRC) != header_crc(p, salt))"
        " return WD_SCAN_HEADER_CRC;",
        "if (wd_get_u32(p + WD_FRAME_AT_HEADER_CRC) != header_crc(p, salt) && !PLANTED)"
        " return WD_SCAN_HEADER_CRC;",
        scenario="a_flipped_bit_of_a_header_is_refused",
    ),
    plant(
        "a frame of another history is taken",
        "wd_frame.c",
        "if (wd_get_u32(p + WD_FRAME_AT_PREV_CRC) != scan->prev_crc) return WD_SCAN_PREV_CRC;",
        "if (wd_get_u32(p + WD_FRAME_AT_PREV_CRC) != scan->prev_crc && !PLANTED)"
        " return WD_SCAN_PREV_CRC;",
        scenario="a_frame_that_continues_another_history_is_refused",
    ),
    plant(
        "a frame of another segment is taken",
        "wd_frame.c",
        "if (salt != scan->salt) return WD_SCAN_SALT;",
        "if (salt != scan->salt && !PLANTED) return WD_SCAN_SALT;",
        scenario="a_frame_of_another_segment_is_refused",
    ),
]

LEASES = [
    plant(
        "the lsn of a fence is not compared",
        "wd_lease.c",
        "if (!run || run->lsn != r.lsn || run->term != r.term) return WD_NIL;",
        "if (!run || (run->lsn != r.lsn && !PLANTED) || run->term != r.term) return WD_NIL;",
    ),
    plant(
        "a late FAIL counts as a late ACK does",
        "wd_lease.c",
        "return run->fence == WD_FENCE_OPEN && (verb == WD_V_ACK || verb == WD_V_DONE) ? slot",
        "return run->fence == WD_FENCE_OPEN && (verb == WD_V_ACK || verb == WD_V_DONE || PLANTED)"
        " ? slot",
        scenario="a_late_fail_is_stale",
    ),
    plant(
        "a lost lease is not counted",
        "wd_lease.c",
        "if (r.lost < UINT16_MAX) r.lost++;",
        "if (r.lost < UINT16_MAX && !PLANTED) r.lost++;",
    ),
    plant(
        "a lease lasts half of what was said",
        "wd_apply.c",
        "run->lease_end_ms = e->rel_ms + run->lease_ms;",
        "run->lease_end_ms = e->rel_ms + run->lease_ms / (PLANTED ? 2 : 1) - (PLANTED ? 1100 : 0);",
    ),
    plant(
        "a heartbeat renews nothing",
        "wd_lease.c",
        "run->lease_end_ms = e->rel_ms + lease_ms; /* the wheel",
        "if (!PLANTED) run->lease_end_ms = e->rel_ms + lease_ms; /* the wheel",
    ),
    plant(
        "no fresh term after a restart",
        "wd_engine.c",
        "    e->serving = 1;\n    wd_leases_refresh(e);",
        "    e->serving = 1;\n    if (!PLANTED) wd_leases_refresh(e);",
    ),
    plant(
        "no fresh term after a suspend",
        "wd_engine.c",
        "        wd_leases_refresh(e);\n    }\n    if (step_ms",
        "        if (!PLANTED) wd_leases_refresh(e);\n    }\n    if (step_ms",
    ),
    plant(
        "leases are not armed after a restart",
        "wd_engine.c",
        "wd_job_run(e->slab, row)->unheard = 1;\n        wd_arm_lease(e, slot);",
        "wd_job_run(e->slab, row)->unheard = 1;\n        if (!PLANTED) wd_arm_lease(e, slot);",
    ),
    plant(
        "a leased job is cancelled under its worker",
        "wd_decide.c",
        "    if (row->state == WD_LEASED) {\n        wd_record r = {.kind",
        "    if (row->state == WD_LEASED && !PLANTED) {\n        wd_record r = {.kind",
    ),
    plant(
        "one lease more than the limit",
        "wd_lease.c",
        "h->count[WD_LEASED] < h->settings.concurrency",
        "h->count[WD_LEASED] < h->settings.concurrency + PLANTED",
        scenario="a_concurrency_limit_holds",
    ),
    plant(
        "a grant that never left is not given back",
        "wd_conns.c",
        "wd_session_close(s->runner.commands, &c->session, c->sent);",
        "wd_session_close(s->runner.commands, &c->session, PLANTED ? UINT64_MAX : c->sent);",
        scenario="a_grant_that_never_left_goes_back",
    ),
    plant(
        "fences do not rise over a restart",
        "wd_apply.c",
        "    run->lsn = e->lsn + 1;\n    run->due_ms",
        "    run->lsn = PLANTED ? r->id : e->lsn + 1;\n    run->due_ms",
    ),
]

JOBS = [
    plant(
        "a job is ready a ms before it is due",
        "wd_place.c",
        "if (row->due_ms <= (row->rel ? e->rel_ms : e->clocks.wall_ms))",
        "if (row->due_ms <= (row->rel ? e->rel_ms : e->clocks.wall_ms) + (PLANTED ? 50 : 0))",
    ),
    plant(
        "relative times follow the wall clock",
        "wd_decide.c",
        "w.kind == WD_WHEN_REL ? wd_after(e, w.ms) : w.ms",
        "w.kind == WD_WHEN_REL ? PLANTED ? e->clocks.wall_ms + w.ms : wd_after(e, w.ms) : w.ms",
    ),
    plant(
        "absolute times follow the rel axis",
        "wd_decide.c",
        "*out_rel = w.kind != WD_WHEN_ABS;",
        "*out_rel = w.kind != WD_WHEN_ABS || PLANTED;",
    ),
    plant(
        "what was scheduled is not armed after a restart",
        "wd_engine.c",
        "if (row->state == WD_SCHEDULED) wd_place(e, slot);",
        "if (row->state == WD_SCHEDULED && !(PLANTED && slot % 8 == 0)) wd_place(e, slot);",
    ),
    plant(
        "the ended ring is forgotten",
        "wd_ring.c",
        "    r->by_slot[slot] = (uint32_t)number;\n",
        "    if (!PLANTED) r->by_slot[slot] = (uint32_t)number;\n",
    ),
    plant(
        "the ended ring ages in minutes",
        "wd_ring.c",
        "wd_ring_ended_at(r, n)->rel_ms + WD_ENDED_KEPT_MS <= rel_ms)",
        "wd_ring_ended_at(r, n)->rel_ms + (PLANTED ? 5000 : WD_ENDED_KEPT_MS) <= rel_ms)",
    ),
    plant(
        "a lease frees the key",
        "wd_apply.c",
        "    wd_unplace(e, slot);\n    run->term = e->apply_term;",
        "    wd_unplace(e, slot);\n    if (PLANTED) wd_key_remove(e, slot);\n"
        "    run->term = e->apply_term;",
    ),
    plant(
        "ONCE is not remembered",
        "wd_apply.c",
        "if (!(r->fields & WD_F_ONCE)) return WD_OK;\n",
        "if (!(r->fields & WD_F_ONCE) || PLANTED) return WD_OK;\n",
    ),
    plant(
        "the replay does not remember ONCE",
        "wd_apply.c",
        "    return wd_ring_once(e->ring, &(wd_once){.token",
        "    if (PLANTED && !e->serving) return WD_OK;\n"
        "    return wd_ring_once(e->ring, &(wd_once){.token",
    ),
    plant(
        "an id is given out again",
        "wd_slab.c",
        "wd_id_of(next_generation(s, s->rows[s->free_head].gen), s->free_head);",
        "wd_id_of(next_generation(s, s->rows[s->free_head].gen) - PLANTED, s->free_head);",
    ),
    plant(
        "an ended job's row is not freed by the replay",
        "wd_apply.c",
        "    if (!b || !b->owner_len) {\n        wd_job_free(e, slot);",
        "    if (PLANTED && !e->serving) {\n        wd_set_state(e, slot, WD_SCHEDULED);\n"
        "        return WD_OK;\n    }\n"
        "    if (!b || !b->owner_len) {\n        wd_job_free(e, slot);",
    ),
    plant(
        "the replay forgets why a run failed",
        "wd_apply.c",
        "if (r->fields & WD_F_TEXT) {",
        "if (r->fields & WD_F_TEXT && (e->serving || !PLANTED)) {",
    ),
    plant(
        "the replay forgets that a lease was made longer",
        "wd_apply.c",
        "    wd_job_run(e->slab, &e->rows[slot])->lease_ms = r->lease_ms;\n",
        "    if (e->serving || !PLANTED)"
        " wd_job_run(e->slab, &e->rows[slot])->lease_ms = r->lease_ms;\n",
    ),
    plant(
        "a command's records are torn apart",
        "wd_batch.c",
        "    e->lsn++;\n    return WD_OK;\n",
        "    e->lsn++;\n    if (PLANTED) wd_engine_close_batch(e);\n    return WD_OK;\n",
        scenario="what_one_command_did_stands_in_one_frame",
    ),
]

MUTANTS = [*GATE, *LOG, *MARK, *FORMAT, *LEASES, *JOBS]
