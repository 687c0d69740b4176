"""schedules.toml: what it says, and where each of its faults stands."""

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel.files.found import FileRefused
from wheel.files.tomlfile import read_toml
from wheel.files.tomllines import key_lines, line_of
from wheel.values import backoff

FULL = '''
prefix = "shop/"

[defaults]
tz = "Europe/Rome"
retries = 2

[schedule."shop/digest"]      # a comment with [brackets] and a = b
cron = "0 9 * * 1"
handler = "digest.send"
payload = { to = "team", rows = [1, 2] }
jitter = "5m"
overlap = "queue_one"
catch_up = "all"
catch_up_window = "7d"
catch_up_max = 10
start = 2026-12-24T09:00:00+01:00
end = "2027-12-24T09:00:00Z"
backoff = { base = "30s", kind = "fixed" }
retries = 0
tz = "UTC"

[schedule."shop/日報"]
after = ["shop/digest"]
after_rule = "all_done"
handler = "report.build"
payload = """
cron = "this is no key"
[neither.is.this]
"""
'''


def test_a_file_says_what_each_schedule_shall_be():
    found = read_toml(FULL, "schedules.toml")
    digest, report = (entry.definition for entry in found.entries)
    assert found.prefix == "shop/"
    assert (digest.name, digest.rule, digest.handler) == ("shop/digest", "0 9 * * 1", "digest.send")
    assert digest.payload == {"to": "team", "rows": [1, 2]}
    assert digest.options == {
        "tz": "UTC",
        "retries": 0,
        "jitter": "5m",
        "overlap": "queue_one",
        "catch_up": "all",
        "catch_up_window": "7d",
        "catch_up_max": 10,
        "start": datetime.fromisoformat("2026-12-24T09:00:00+01:00"),
        "end": "2027-12-24T09:00:00Z",
        "backoff": backoff("30s", "fixed"),
    }
    assert (report.name, report.rule) == ("shop/日報", "-")
    assert report.options == {
        "tz": "Europe/Rome",
        "retries": 2,
        "after": ["shop/digest"],
        "after_rule": "all_done",
    }
    assert report.payload == b'"cron = \\"this is no key\\"\\n[neither.is.this]\\n"'
    assert [entry.place for entry in found.entries] == ["line 8", "line 23"]


def faults(body):
    with pytest.raises(FileRefused) as refused:
        read_toml(body, "schedules.toml")
    assert str(refused.value).startswith("schedules.toml is refused, nothing was changed:\n  line")
    return [tuple(problem) for problem in refused.value.problems]


BAD = [
    ("a = 1", "line 1", "unknown key 'a'; there are defaults, prefix, schedule"),
    ("[schedules.x]\ncron = '@daily'", "line 1", "did you mean 'schedule'?"),
    ("[schedule.x]\nhandler = 'h'\n\ncrom = '@daily'", "line 4", "did you mean 'cron'?"),
    ("[schedule.x]\ncron = '@daily'", "line 1", "no handler"),
    ("[schedule.x]\nhandler = 'h'", "line 1", "no rule and nothing to wait for"),
    ("[schedule.x]\nhandler = 5\ncron = '@daily'", "line 2", "handler is 5; write a text"),
    ("[schedule.x]\nhandler = 'h'\ncron = 5", "line 3", "cron is 5; write a text"),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\njitter = true", "line 4", 'write a duration, "5m"'),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\njitter = '5x'", "line 1", "'5x' is not a duration"),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\noverlap = 'queue'", "line 1", "is not one of skip"),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\nretries = '3'", "line 4", "write a whole number"),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\ntz = 5", "line 4", "tz is 5; write a text"),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\nafter = [1]", "line 4", "write names"),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\nstart = 2026-01-01T00:00:00", "line 4",
     "has no zone"),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\nstart = 2026-01-01", "line 4", "has no zone"),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\nstart = '2026-01-01T00:00'", "line 1",
     "has no time zone"),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\nbackoff = '5x'", "line 4", 'write "30s" or'),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\nbackoff = {bse = '5s'}", "line 4",
     "did you mean 'base'?"),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\npayload = {at = 2026-01-01}", "line 4",
     "a date or time in it"),
    ("[schedule.x]\ncron='@daily'\nhandler='h'\nafter = 'x'", "line 1", "wait for itself"),
    ("[schedule]\nx = 5", "line 2", "write a table, [schedule.x]"),
    ("schedule = 5", "line 1", "write a table, [schedule]"),
    ("[defaults]\nafter = ['x']\n[schedule.x]\ncron='@daily'\nhandler='h'", "line 2",
     "unknown key 'after'"),
    ("prefix = 5\n[schedule.x]\ncron='@daily'\nhandler='h'", "line 1", "prefix is 5"),
    ("prefix = 'a/'\n\n[schedule.x]\ncron='@daily'\nhandler='h'", "line 3",
     "does not begin with the prefix 'a/'"),
    ("", "line 1", "there is no schedule in it"),
    ("[schedule.x]\ncron = '@daily\nhandler = 'h'", "line 2 column 15", "character"),
    ("[schedule.x]\ncron='a'\n[schedule.x]\n", "line 3 column 12", "twice"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "place", "text"), BAD)
def test_a_fault_is_named_with_its_line(body, place, text):
    [(found_place, found_text)] = faults(body)
    assert found_place == place
    assert text in found_text


def test_all_faults_of_a_file_are_named_at_once():
    assert [place for place, _ in faults(
        "[schedule.a]\ncron = '@daily'\n\n[schedule.b]\nhandler = 'h'\njiter = '5m'\ncron = 1\n"
    )] == ["line 1", "line 6", "line 7"]  # fmt: skip


# ------------------------------------------------------------------------------ lines


def test_lines_are_found_for_every_way_to_write_a_key():
    text = (
        "a = '''\nx = 1\n'''\n"  # 1 to 3
        "b.c = [\n  1, # [d]\n  { e = 2 },\n]\n"  # 4 to 7
        "[ f . 'g=h' ]\n"  # 8
        '"i\\"j" = "k = l"   # m = n\n'  # 9
        "\r\n[[o]]\r\np = 1\r\n"  # 10 to 12
        'q = """a"""""\nr = 5'  # 13, 14
    )
    assert tomllib.loads(text)
    assert key_lines(text) == {
        ("a",): 1,
        ("b", "c"): 4,
        ("f", "g=h"): 8,
        ("f", "g=h", 'i"j'): 9,
        ("o",): 11,
        ("o", "p"): 12,
        ("o", "q"): 13,
        ("o", "r"): 14,
    }


def test_a_key_inside_an_inline_table_has_the_line_around_it():
    lines = key_lines("x = 1\n[schedule]\na = {cron = '@daily'}\n")
    assert line_of(lines, ("schedule", "a", "cron")) == 3
    assert line_of(lines, ("nowhere",)) == 1


@given(st.lists(st.text(max_size=12), min_size=1, max_size=6, unique=True))
def test_a_schedule_of_any_name_is_found_at_its_line(names):
    lines, expected = [], {}
    for name in names:
        quoted = "".join(f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else
                         f"\\U{ord(letter):08x}" for letter in name)  # fmt: skip
        if any(0xD800 <= ord(letter) < 0xE000 for letter in name):
            return  # no text of TOML
        expected[name] = len(lines) + 1
        lines += [f'[schedule."{quoted}"]', "cron = '@daily'", 'handler = """', "[x]", '"""']
    found = key_lines("\n".join(lines))
    assert {path[1]: line for path, line in found.items() if len(path) == 2} == expected


def test_moments_of_toml_are_taken_with_their_zone():
    [entry] = read_toml(
        "[schedule.x]\ncron='@daily'\nhandler='h'\nstart = 2026-01-01T00:00:00Z", "f"
    ).entries
    assert entry.definition.options["start"] == datetime(2026, 1, 1, tzinfo=UTC)


def test_the_file_in_the_documents_is_one():
    text = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()
    [block] = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found = read_toml(block, "schedules.toml")
    assert [entry.definition.name for entry in found.entries] == ["shop/digest", "shop/report"]
