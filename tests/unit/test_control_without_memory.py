"""Any allocation of the core may fail under saving and signing in, which Python answers.

tests/unit/test_memory_runs_out.py has the commands that C answers, how C hands the others over, and
what schedules submit.
"""

from contextlib import suppress

from tests.allocations import failures
from tests.fed import Bench
from tests.simdisk import SimDisk
from tests.store import Life
from wheel.engine.facts import CheckpointPhase
from wheel.errors import CoreError, CoreMemoryError

ENDS = (CheckpointPhase.IDLE, CheckpointPhase.DONE, CheckpointPhase.FAILED)
ROLE_WORKER = 1 << 2


def test_a_checkpoint_that_meets_no_memory_fails_alone_and_the_next_one_is_whole():
    """SAVE, and a BACKUP, which begins with one."""
    for failure in failures(2):
        disk = SimDisk()
        life = Life("/data", disk=disk)
        for i in range(20):
            life.ask(f"SCHEDULE mail +1h {i} KEY k{i} ONCE t{i}")
        state = life.core.state_hash()
        with suppress(CoreError), failure:
            path = life.log.checkpoints.temporary_path()
            life.core.checkpoint_start(path, salt=9, io=disk.io, threaded=False, slice_things=3)
            while life.core.checkpoint_state().phase not in ENDS:
                life.core.commit()
        if life.core.checkpoint_state().phase != CheckpointPhase.IDLE:
            life.core.checkpoint_abort()
        assert life.core.check() == 0
        assert life.core.state_hash() == state
        life.save()
        life.kill()
        again = Life("/data", disk=disk)
        assert again.store.checkpoint is not None
        assert again.core.state_hash() == state
        again.kill()


def test_a_sign_in_that_meets_no_memory_gives_no_rights():
    """AUTH, HELLO and client certificates all end in it; a token is a line of a file, not ours."""
    globs = ",".join(f"handler-{i}.*" for i in range(60))
    for failure in failures(1):
        bench = Bench(auth_required=True)
        conn = bench.open()
        refused = True
        with suppress(CoreMemoryError), failure:
            bench.core.set_session(conn.handle, user="ann", roles=ROLE_WORKER, globs=globs)
            refused = False
        assert refused == failure.happened
        leased = conn.ask("LEASE handler-7.a")
        assert leased.startswith(b"-NOAUTH") if refused else leased == b"*0\r\n"
        assert conn.ask("LEASE other").startswith(b"-")
        bench.check()
        bench.core.close()
