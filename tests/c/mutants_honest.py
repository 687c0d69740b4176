"""Faults that would make figures better than they are: work that is left out, or done afterwards.

tests/twin.py plants them; each names the small world of tests/sim/scenarios_honest.py that must
notice it.
"""

from tests.twin import Mutant, plant

MUTANTS: list[Mutant] = [
    Mutant(
        name="replies leave before the round's frames are written",
        edits=(
            (
                "wd_round.c",
                "    if (wd_commit_blocks(c->commit, gated(c))) flush(c);\n",
                (
                    "    if (PLANTED) (void)wd_conns_release(c->conns, wd_engine_seq(c->engine));\n"
                    "    if (PLANTED || wd_commit_blocks(c->commit, gated(c))) flush(c);\n"
                ),
            ),
            (
                "wd_conns.c",
                "    WD_ASSERT(durable_seq >= r->durable_seq);\n",
                "    if (PLANTED && durable_seq < r->durable_seq) return 0;\n",
            ),
        ),
        scenario="always_writes_and_syncs_before_the_reply",
    ),
    plant(
        "mode always does not call fdatasync",
        "wd_log.c",
        "int result = log->io->datasync(log->io->disk, fd);",
        "int result = PLANTED ? 0 : log->io->datasync(log->io->disk, fd);",
        scenario="always_writes_and_syncs_before_the_reply",
    ),
    plant(
        "mode off keeps its frames to itself",
        "wd_commit.c",
        "        int status = write_one(c, b);\n        if (status != WD_OK) return status;",
        "        int status = PLANTED ? land_or_fail(c, b, WD_OK, 0) : write_one(c, b);\n"
        "        if (status != WD_OK) return status;",
        scenario="off_writes_before_the_reply",
    ),
    plant(
        "mode interval keeps its frames to itself",
        "wd_commit.c",
        "    int status = append(c, b, &took_ns);\n    return land_or_fail",
        "    int status = PLANTED && c->fsync_mode == WD_FSYNC_INTERVAL"
        " ? WD_OK : append(c, b, &took_ns);\n    return land_or_fail",
        scenario="interval_writes_before_the_reply",
    ),
    plant(
        "mode interval never syncs by itself",
        "wd_commit.c",
        "            sync_unsynced(c);\n",
        "            if (!PLANTED) sync_unsynced(c);\n",
        scenario="interval_syncs_within_its_interval",
    ),
    plant(
        "mode interval syncs ten times too seldom",
        "wd_commit.c",
        "            next_sync = wd_clock_deadline(SYNC_INTERVAL_NS);\n",
        "            next_sync = wd_clock_deadline(SYNC_INTERVAL_NS * (PLANTED ? 10 : 1));\n",
        scenario="interval_syncs_within_its_interval",
    ),
]
