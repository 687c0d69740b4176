"""The text of INFO."""

from server.info import pairs, render, resident_bytes, shown_bytes

SECTIONS = {"Server": {"a": 1, "b": "x"}, "Jobs": {"share": 0.5}}


def test_sections_are_headed_and_lines_end_as_redis_ends_them():
    assert render(SECTIONS) == "# Server\r\na:1\r\nb:x\r\n\r\n# Jobs\r\nshare:0.500\r\n"


def test_only_the_wanted_sections_are_shown():
    assert render(SECTIONS, ["jobs", "nothing"]) == "# Jobs\r\nshare:0.500\r\n"
    assert render(SECTIONS, ["nothing"]) == ""


def test_numbers_that_belong_together_stand_on_one_line():
    assert pairs({"max": 10, "refused": 0}) == "max=10,refused=0"


def test_sizes_are_shown_as_redis_shows_them():
    assert [shown_bytes(n) for n in (0, 1023, 1 << 20, 3 << 29, 1 << 40)] == [
        "0B",
        "1023B",
        "1.00M",
        "1.50G",
        "1.00T",
    ]


def test_resident_memory_is_read_from_the_kernel(tmp_path):
    (tmp_path / "statm").write_text("10 7 1 1 0 1 0\n")
    assert resident_bytes(tmp_path / "statm") == 7 * 4096
    assert resident_bytes(tmp_path / "none") == 0
    assert resident_bytes() > 1 << 20
