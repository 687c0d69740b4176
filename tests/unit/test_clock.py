"""The machine's clocks, and the name of what one of them counts from."""

from server.clock import SystemClock, name_boot

BOOT = "6f1c2d3e-0000-4000-8000-0123456789ab\n"
HOME = "monotonic           0         0\nboottime            0         0\n"


def test_boot_is_named_by_the_kernels_id_where_its_clock_has_no_offset():
    kernels = bytes.fromhex(BOOT.strip().replace("-", ""))
    assert name_boot(BOOT, "") == name_boot(BOOT, HOME) == kernels
    assert name_boot(BOOT, "1 0 0\n7 0 0\n") == kernels


def test_each_offset_of_a_time_namespace_is_a_name_of_its_own():
    offsets = ["86400 0", "-86400 0", "86400 1", "864000 0", "0 1"]
    names = {name_boot(BOOT, f"monotonic 0 0\nboottime  {offset}\n") for offset in offsets}
    assert len(names) == len(offsets)
    assert name_boot(BOOT, HOME) not in names
    assert all(len(name) == 16 for name in names)
    assert name_boot(BOOT, "1 0 0\n7 86400 0\n") == name_boot(BOOT, "boottime  86400  0\n") in names


def test_an_offset_of_the_other_clock_changes_nothing():
    assert name_boot(BOOT, "monotonic 99 5\nboottime 0 0\n") == name_boot(BOOT, HOME)


def test_the_systems_boot_has_a_name_that_stays():
    assert SystemClock().boot_id() == SystemClock().boot_id()
    assert len(SystemClock().boot_id()) == 16
