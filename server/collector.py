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
