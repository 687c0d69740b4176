"""Faults that break what a worker is told of a completion, for the history checker.

tests/sim/scenarios_history.py has what must notice them, and the rule by which.
"""

from tests.twin import plant

MUTANTS = [
    plant(
        "a completion is taken after the end, whoever completed it",
        "wd_lease.c",
        "*out_answer = !end ? WD_A_UNKNOWN : WD_A_STALE;",
        "*out_answer = !end ? WD_A_UNKNOWN : PLANTED ? WD_A_OK : WD_A_STALE;",
        scenario="a_job_completed_by_another_is_completed",
    ),
    plant(
        "an ACK needs no fence",
        "wd_lease.c",
        "    if (slot == WD_NIL) return answer;\n"
        "    if (wd_end(e, slot, WD_SUCCEEDED, verb, result)",
        "    if (slot == WD_NIL && PLANTED) slot = wd_slab_find(e->slab, r.id);\n"
        "    if (slot == WD_NIL) return answer;\n"
        "    if (wd_end(e, slot, WD_SUCCEEDED, verb, result)",
        scenario="nobody_completes_what_another_holds",
    ),
]
