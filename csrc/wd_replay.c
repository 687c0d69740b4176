/* wd_replay.c -- frames read back -> state, and the rules for those that a checkpoint has seen.
 *
 * A checkpoint is fuzzy: it was written in slices while records went on being made. Let S0 be the
 * last lsn when it began and S1 when it ended; the log is replayed from S0 + 1 on. Each row in it
 * is exact as of some moment in [S0, S1], and knows it: row.lsn is its last change. So between S0
 * and S1 the state is a mixture, and at S1 it is what it was in memory. A record r is judged by
 * three rules; beyond S1 apply alone judges, and whatever does not fit is damage.
 *
 *  1. The slot's generation is newer than r's, or it is free and had r's last: r's job was over
 *     when the slot was written. What r did to the job is left out.
 *  2. The generations are equal: r is applied if it is newer than the row (r.lsn > row.lsn);
 *     otherwise the row has it.
 *  3. What is not a job has its own moment:
 *     - ended ring and ONCE ring: entries are written as they were at S0, so each entry that a
 *       record behind S0 makes is new, also when rule 1 or 2 leaves its job out. Which of them are
 *       forgotten is written as of S1: by number, so RING_DROPPED, ONCE_DROPPED and the ageing of
 *       frames up to S1 are done already, and entries that come and are forgotten by then are only
 *       counted (wd_ring_settle_ended).
 *     - names: handlers and policies are never changed or forgotten, and numbered in order, so one
 *       that is there already must be the same.
 *     - settings and PUT entries: a record carries the whole thing, whatever was there. The image
 *       is of some moment in [S0, S1]; a thing that no record behind S0 touches is in it as it was
 *       at S0 and at S1; of any other the last record up to S1 makes what it was at S1, whatever
 *       the image held. So applying them all converges, and what is missing for a DEL was gone.
 *     - logical now and the lowest generation to come: written as of S0 and moved by the frames and
 *       records behind it, as ever.
 *
 * A row that is older than r's generation without r being its CREATED is damage. Keys are not
 * compared before S1: jobs that held a key one after the other may stand in the mixture together.
 * The three rules in this form are this project's; the shape, fuzzy pages that carry the lsn of
 * their last change, is that of ARIES (Mohan et al. 1992).
 */
#include "wd_state.h"

enum verdict { APPLY, LEAVE, DAMAGE };

static int is_about_a_job(uint8_t kind)
{
    switch ((enum wd_kind)kind) {
    case WD_R_CREATED:
    case WD_R_REPLACED:
    case WD_R_LEASED:
    case WD_R_RETRY:
    case WD_R_ENDED:
    case WD_R_DIED:
    case WD_R_EXTENDED:
    case WD_R_MARKED:
    case WD_R_MOVED:
    case WD_R_REQUEUED:
    case WD_R_PURGED:
    case WD_R_CLOSED:
    case WD_R_UNHELD:
        return 1;
    case WD_R_HANDLER:
    case WD_R_POLICY:
    case WD_R_HANDLER_SET:
    case WD_R_PUT:
    case WD_R_DEL:
    case WD_R_RING_DROPPED:
    case WD_R_ONCE_DROPPED:
    case WD_R_CLOCK:
    case WD_R_ONCE:
    case WD_R_GENERATIONS:
        break;
    }
    return 0;
}

/* Rules 1 and 2. */
static enum verdict judge_job(const wd_engine *e, const wd_record *r)
{
    uint64_t lsn = e->lsn + 1, gen = r->id >> 32;
    uint32_t slot = (uint32_t)r->id;
    if (!(r->fields & WD_F_ID)) return DAMAGE;
    if (slot >= wd_slab_top(e->slab)) return r->kind == WD_R_CREATED ? APPLY : DAMAGE;
    const wd_job *row = &e->rows[slot];
    if (gen > row->gen) return r->kind == WD_R_CREATED ? APPLY : DAMAGE;
    if (gen < row->gen || row->state == WD_FREE) return LEAVE;
    return lsn > row->lsn ? APPLY : LEAVE;
}

/* Rule 3, for kinds that apply would take for damage, or do twice. */
static enum verdict judge_other(const wd_engine *e, const wd_record *r)
{
    wd_span blob;
    switch ((enum wd_kind)r->kind) {
    case WD_R_HANDLER:
        if (r->handler >= wd_handlers_count(e->names)) return APPLY;
        return wd_span_eq(wd_handler_name(e->names, r->handler), r->text[WD_S_NAME]) ? LEAVE
                                                                                     : DAMAGE;
    case WD_R_POLICY:
        if (r->policy >= wd_policies_count(e->names)) return APPLY;
        blob = (wd_span){(const uint8_t *)wd_policy_at(e->names, r->policy), sizeof(wd_policy)};
        return wd_span_eq(blob, r->text[WD_S_BLOB]) ? LEAVE : DAMAGE;
    case WD_R_DEL:
        if (r->text[WD_S_NAME].n == 0 || r->text[WD_S_NAME].n > WD_TABLE_KEY_BYTES_MAX)
            return DAMAGE;
        return wd_table_get(e->table, r->reason, r->text[WD_S_NAME], &blob) == WD_OK ? APPLY
                                                                                     : LEAVE;
    case WD_R_RING_DROPPED:
    case WD_R_ONCE_DROPPED:
        return LEAVE;
    default:
        return APPLY;
    }
}

/* A record that a loaded checkpoint may have seen. */
static int replay_fuzzy(wd_engine *e, const wd_record *r)
{
    enum verdict verdict = is_about_a_job(r->kind) ? judge_job(e, r) : judge_other(e, r);
    if (verdict == APPLY) return wd_apply(e, r);
    return verdict == LEAVE ? wd_apply_beside(e, r) : WD_ECORRUPT;
}

static int replay_records(wd_engine *e, wd_span payload, uint32_t records)
{
    for (uint32_t i = 0; i < records; i++) {
        wd_record r;
        size_t size;
        int status = wd_record_decode(payload, &r, &size);
        if (status != WD_OK) return status;
        status = wd_is_fuzzy(e) ? replay_fuzzy(e, &r) : wd_apply(e, &r);
        if (status != WD_OK) return status;
        payload = (wd_span){payload.p + size, payload.n - size};
        e->lsn++;
    }
    return payload.n == 0 ? WD_OK : WD_ECORRUPT;
}

static int is_time(int64_t ms)
{
    return ms >= 0 && ms < WD_DUE_MS_END;
}

int wd_engine_replay(wd_engine *e, wd_span payload, const wd_frame_meta *m, uint64_t term)
{
    WD_ASSERT(!e->serving);
    WD_ASSERT(e->lsn >= e->load.meta.start_lsn);
    if (e->load.stage == WD_LOAD_CHUNKS || m->records == 0) return WD_ECORRUPT;
    uint64_t last_lsn = m->first_lsn + m->records - 1;
    /* Nothing was replayed yet, and the checkpoint holds all of this frame. */
    if (e->lsn == e->load.meta.start_lsn && last_lsn <= e->lsn) return WD_OK;
    if (m->first_lsn != e->lsn + 1) return WD_ECORRUPT;
    if (!is_time(m->wall_ms) || !is_time(m->rel_ms)) return WD_ECORRUPT;
    int fuzzy = wd_is_fuzzy(e);
    if (fuzzy && last_lsn > e->load.end.end_lsn) return WD_ECORRUPT; /* S1 ends a frame */
    e->apply_term = term;
    e->frame_wall_ms = m->wall_ms;
    e->frame_rel_ms = m->rel_ms;
    if (m->wall_ms > e->logical_ms) e->logical_ms = m->wall_ms;
    int status = replay_records(e, payload, m->records);
    if (status == WD_OK && !fuzzy) wd_ring_age(e->ring, m->rel_ms);
    if (status == WD_OK && fuzzy && !wd_is_fuzzy(e)) status = wd_load_settle(e);
    return status;
}
