"""How Python's garbage collector is held back: none of its passes may stop the loop for long."""

import gc
from typing import Final

# A pass looks at what was made since the last one: at most (MIDDLE + 1) * YOUNG objects, half a
# millisecond. With the usual 10 of them one pass took 1.2 to 2 ms while runs were made by the
# thousand.
YOUNG, MIDDLE, NEVER = 700, 3, 1_000_000_000
THRESHOLDS: Final = (YOUNG, MIDDLE, NEVER)


def hold_back() -> None:
    """Leave what there is for good, and never look at old objects again.

    What a start has made stays. And what comes later is not looked at over and over: a full pass
    over a million runs stops the loop for half a second. Young objects are looked at as ever; the
    code makes no old cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def tidy() -> None:
    """Give back the memory that the interpreter keeps for objects to come; looks at none.

    It keeps up to 2,000 dead tuples of each length below 20, 4 MB, and lets go of them in full
    passes alone. They do become that many: a tuple made of a generator is made with another length
    first, so it takes none of them and is one more when it dies. With everything that lives put
    aside before, a full pass has nothing to look at: microseconds, however many runs there are.
    """
    gc.freeze()
    gc.collect()
