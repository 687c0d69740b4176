"""No memory: whichever allocation fails, the core goes on, and what it confirmed stays right."""

import pytest
from _wheeld import lib

from tests.fed import Bench
from wheel.errors import CoreError, CoreMemoryError

SCRIPT = (
    b"PING\r\nSCHEDULE mail now hello\r\nSCHEDULE sms +1h x KEY k\r\nCOUNT\r\n",
    b"LEASE mail COUNT 10\r\nINFO\r\nPING " + b"z" * 3000 + b"\r\n",
    b"JOB k\r\nLEASE sms WAIT 1000\r\nPING\r\n",
    b"*2\r\n$4\r\nPING\r\n$90000\r\n" + b"y" * 50_000,
    b"y" * 40_000 + b"\r\nHANDLERS\r\nCANCEL k\r\n",
)


def run(fail_at: int) -> int:
    """Play the script with one failing allocation; return how many allocations were made."""
    bench = Bench()
    lib.wd_alloc_fail_at(fail_at)
    try:
        first, second = bench.core.fed_open("a"), bench.core.fed_open("b")
        for part in SCRIPT:
            for handle in (first, second):
                bench.core.fed_input(handle, part)
                bench.core.commit()
            bench.settle()
            bench.advance(400)
            bench.settle()
            for handle in (first, second):
                output = bench.core.fed_output(handle)
                bench.core.fed_taken(handle, len(output.data))
            bench.core.commit()
    except CoreError:
        pass  # said so, and changed nothing: what follows proves it
    made = int(lib.wd_alloc_fail_at(0))
    bench.check()
    bench.core.close()
    return made


def test_every_single_allocation_may_fail() -> None:
    count = run(0)
    assert count > 20
    for number in range(1, count + 1):
        run(number)


def test_a_core_that_cannot_be_made_says_so() -> None:
    lib.wd_alloc_fail_at(0)
    Bench().core.close()
    count = int(lib.wd_alloc_fail_at(0))
    assert count > 10
    for number in range(1, count + 1):
        lib.wd_alloc_fail_at(number)
        try:
            Bench().core.close()
        except CoreError:
            continue
        finally:
            lib.wd_alloc_fail_at(0)
    lib.wd_alloc_fail_at(1)
    with pytest.raises(CoreMemoryError):
        Bench()
