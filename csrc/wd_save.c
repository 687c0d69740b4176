/* wd_save.c -- a core's checkpoints: the scan and the writer brought together, a slice a round.
 *
 * Self-clocking: a round that could write another slice asks for the next round; one that finds the
 * writer behind does not, and the writer wakes the loop when a buffer is free. So an idle core goes
 * at the writer's pace, and a busy one gives each round a tenth of a millisecond.
 */
#include "wd_save.h"

#include "wd_checkpoint.h"
#include "wd_round.h"

#include <errno.h>

struct wd_save {
    wd_ckptwriter *writer; /* NULL: it is over, and `last` says how */
    wd_checkpoint *scan;
    uint64_t began_ns;
    uint64_t lent_bytes; /* of buffers, on the engine's account */
    int threaded;
    wd_checkpoint_state last;
};

static int phase_of(const wd_core *c, const wd_checkpoint_state *s, int stage)
{
    switch ((enum wd_ckptwriter_stage)stage) {
    case WD_WRITER_WRITES:
        return WD_CHECKPOINT_SCANS;
    case WD_WRITER_SYNCS:
        return WD_CHECKPOINT_SYNCS;
    case WD_WRITER_VERIFIES:
        return WD_CHECKPOINT_VERIFIES;
    case WD_WRITER_DONE:
        return wd_commit_durable_lsn(c->commit) >= s->end_lsn ? WD_CHECKPOINT_DONE
                                                              : WD_CHECKPOINT_WAITS;
    case WD_WRITER_FAILED:
        break;
    }
    return WD_CHECKPOINT_FAILED;
}

/* Bring `last` up to date while the parts live. */
static void look(const wd_core *c, wd_save *s)
{
    wd_checkpoint_figures f;
    wd_ckptwriter_state w;
    wd_checkpoint_get(s->scan, &f);
    wd_ckptwriter_get(s->writer, &w);
    s->last = (wd_checkpoint_state){
        .start_lsn = f.start_lsn,
        .end_lsn = f.end_lsn,
        .slots = f.slots,
        .slots_done = f.slots_done,
        .jobs = f.jobs,
        .things = f.things,
        .chunks = f.chunks,
        .size_bytes = f.bytes,
        .written_bytes = w.written_bytes,
        .verified_bytes = w.verified_bytes,
        .slices = f.slices,
        .slice_ns_max = f.slice_ns_max,
        .slice_cpu_ns_max = f.slice_cpu_ns_max,
        .scan_ns = f.scan_ns,
        .took_ns = wd_clock_mono_ns() - s->began_ns,
        .crc = f.crc,
        .error = w.error,
        .verdict = w.verdict,
        .corrupt_id = f.corrupt_id,
    };
    memcpy(s->last.call, w.call, sizeof s->last.call);
    s->last.phase = phase_of(c, &s->last, w.stage);
    if (f.no_memory) {
        s->last.phase = WD_CHECKPOINT_FAILED;
        s->last.error = ENOMEM;
        memcpy(s->last.call, "memory", sizeof "memory");
    }
}

/* Let the parts go; a file that is not whole goes with them. */
static void take_down(wd_core *c, wd_save *s)
{
    if (!s->writer) return;
    wd_engine_add_memory(c->engine, -(int64_t)s->lent_bytes);
    s->lent_bytes = 0;
    wd_checkpoint_free(s->scan);
    wd_ckptwriter_free(s->writer);
    s->scan = NULL;
    s->writer = NULL;
}

static int is_under_way(const wd_core *c)
{
    return c->save && c->save->writer;
}

/* The buffers count against maxmemory, as long as they are. */
static void account(wd_core *c, wd_save *s)
{
    uint64_t bytes = wd_ckptwriter_memory(s->writer);
    wd_engine_add_memory(c->engine, (int64_t)bytes - (int64_t)s->lent_bytes);
    s->lent_bytes = bytes;
}

void wd_save_round(wd_core *c)
{
    if (!is_under_way(c)) return;
    wd_save *s = c->save;
    int more = wd_checkpoint_slice(s->scan);
    if (!s->threaded) more |= wd_ckptwriter_step(s->writer);
    account(c, s);
    look(c, s);
    int phase = s->last.phase;
    if (phase == WD_CHECKPOINT_FAILED || phase == WD_CHECKPOINT_WAITS ||
        phase == WD_CHECKPOINT_DONE)
        take_down(c, s);
    else if (more)
        wd_commit_kick(c->commit);
}

void wd_save_free(wd_core *c)
{
    if (!c->save) return;
    take_down(c, c->save);
    wd_release(c->save);
    c->save = NULL;
}

/* ---- public ---- */

/* A commit that syncs waits for what the disk has in hand, so that is little: 64 KiB keep its p99
 * within 1.5 times of what it is alone, 1 MiB makes it 3.5 times. Where nobody waits, large pieces
 * cost less CPU time (0 to 0.13 us a job that is scheduled meanwhile, instead of 0.23 to 0.38). */
static size_t piece_bytes(const wd_core *c)
{
    return c->options.fsync_mode == WD_FSYNC_OFF ? 1 << 20 : 64 << 10;
}

static int bring_up(wd_core *c, wd_save *s, const wd_io *io, const wd_checkpoint_start *o)
{
    wd_ckptwriter_options w = {.io = io,
                               .path = o->path,
                               .rate_bytes = o->rate_bytes,
                               .piece_bytes = piece_bytes(c),
                               .threaded = o->threaded != 0,
                               .wake_fd = o->threaded ? wd_commit_wake_fd(c->commit) : -1};
    wd_checkpoint_options k = {
        .uuid = c->options.store, .salt = o->salt, .slice_things = o->slice_things};
    s->began_ns = wd_clock_mono_ns();
    s->threaded = w.threaded;
    s->writer = wd_ckptwriter_new(&w);
    s->scan = s->writer ? wd_checkpoint_new(c->engine, s->writer, &k) : NULL;
    if (s->scan) return WD_OK;
    wd_ckptwriter_free(s->writer);
    s->writer = NULL;
    return WD_ENOMEM;
}

int wd_core_checkpoint_start(wd_core *c, const wd_io *io, const wd_checkpoint_start *o)
{
    if (!io || !o || !o->path || strlen(o->path) >= WD_CKPT_PATH_BYTES || !c->started)
        return WD_EINVAL;
    if (c->failure != WD_OK) return WD_EIO;
    if (is_under_way(c)) return WD_EAGAIN;
    if (!c->save) c->save = wd_zalloc(sizeof *c->save);
    if (!c->save) return WD_ENOMEM;
    int status = bring_up(c, c->save, io, o);
    if (status != WD_OK) return status;
    account(c, c->save);
    look(c, c->save);
    wd_commit_kick(c->commit);
    return WD_OK;
}

void wd_core_checkpoint_state(wd_core *c, wd_checkpoint_state *out)
{
    wd_save *s = c->save;
    *out = (wd_checkpoint_state){.phase = WD_CHECKPOINT_IDLE};
    if (!s) return;
    if (s->writer) look(c, s);
    int durable = wd_commit_durable_lsn(c->commit) >= s->last.end_lsn;
    if (s->last.phase == WD_CHECKPOINT_WAITS && durable) s->last.phase = WD_CHECKPOINT_DONE;
    *out = s->last;
}

void wd_core_checkpoint_abort(wd_core *c)
{
    if (!c->save) return;
    take_down(c, c->save);
    c->save->last = (wd_checkpoint_state){.phase = WD_CHECKPOINT_IDLE};
}

void wd_core_checkpoint_go_on(wd_core *c)
{
    if (!is_under_way(c)) return;
    wd_checkpoint_go_on(c->save->scan);
    wd_commit_kick(c->commit);
}

int wd_core_mend(wd_core *c, uint64_t id, const uint8_t *p, size_t n)
{
    WD_ASSERT(p);
    if (!c->started) return WD_EINVAL;
    return wd_engine_mend(c->engine, id, (wd_span){p, n});
}

int wd_core_load(wd_core *c, const uint8_t *bytes, size_t n)
{
    if (c->started || !bytes) return WD_EINVAL;
    return wd_engine_load(c->engine, (wd_span){bytes, n});
}

void wd_core_loaded_get(const wd_core *c, wd_core_loaded *out)
{
    const wd_load *l = wd_engine_loaded(c->engine);
    *out = (wd_core_loaded){.start_lsn = l->meta.start_lsn,
                            .end_lsn = l->end.end_lsn,
                            .whole = l->stage == WD_LOAD_OVER,
                            .reached = l->settled};
}
