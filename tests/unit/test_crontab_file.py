"""Crontabs: what becomes of each line, and what is said of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel.files.crontab import name_of, read_crontab, split_percent
from wheel.files.found import FileRefused

SYSTEM = """\
# /etc/crontab: system-wide
SHELL=/bin/bash
PATH=/usr/sbin:/usr/bin
MAILTO="ops@example.org"
'QUOTED NAME' = " blanks kept "
CRON_TZ=Europe/Rome

17 *\t* * *\troot    cd / && run-parts --report /etc/cron.hourly
25 6\t* * *\troot\ttest -x /usr/sbin/anacron || ( cd / && run-parts /etc/cron.daily )
@reboot root /usr/bin/start-me --now
*/5 * * * * www-data php /srv/cron.php %line one%line \\% two
  # indented comment
0 0 */2 * 1 root /opt/日報.sh
@DAILY root /opt/日報.sh
-*/15 * * * * root quiet
"""
USERS = {"root", "www-data"}


def read(text, **options):
    return read_crontab(text, "crontab", users=USERS, **options)


def kinds(entry):
    return [remark.kind for remark in entry.remarks]


def test_each_line_of_a_crontab_becomes_a_schedule():
    found = read(SYSTEM, tz="Asia/Tokyo", prefix="web1/")
    shown = [
        (entry.place, entry.definition.name, entry.definition.rule, kinds(entry))
        for entry in found.entries
    ]
    assert shown == [
        ("line 8", "web1/cd-run-parts-report-cron.hourly", "17 * * * *", ["user"]),
        ("line 9", "web1/test-x-anacron-cd-run-parts-cron.daily", "25 6 * * *", ["user"]),
        ("line 11", "web1/php-cron.php", "*/5 * * * *", ["user", "percent"]),
        ("line 13", "web1/日報.sh", "0 0 */2 * 1", ["user", "day-step"]),
        ("line 14", "web1/日報.sh-2", "@DAILY", ["user"]),
        ("line 15", "web1/quiet", "*/15 * * * *", ["user"]),
    ]
    environment = {"PATH": "/usr/sbin:/usr/bin", "QUOTED NAME": " blanks kept "}
    assert found.entries[2].definition.payload == {
        "command": "php /srv/cron.php",
        "stdin": "line one\nline % two\n",
        "shell": "/bin/bash",
        "env": environment,
        "user": "www-data",
    }


def test_cron_is_kept_to_in_what_it_does_with_late_failed_and_overlapping_runs():
    [entry] = read("0 5 * * * backup").entries
    assert entry.definition.handler == "shell.run"
    assert entry.definition.options == {
        "tz": "UTC",
        "overlap": "allow",
        "catch_up": "skip",
        "retries": 0,
        "timeout": 0,
    }


def test_what_has_no_counterpart_is_named():
    found = read(SYSTEM)
    assert [(remark.place, remark.kind, remark.skipped) for remark in found.remarks] == [
        ("line 2", "environment", False),
        ("line 3", "path", False),
        ("line 4", "mailto", False),
        ("line 5", "environment", False),
        ("line 6", "zone", False),
        ("line 10", "reboot", True),
    ]
    assert "'/usr/bin/start-me --now'" in found.remarks[-1].text
    texts = [remark.text for entry in found.entries for remark in entry.remarks]
    assert "as user root: its worker must be run by root" in texts
    assert "as user www-data: its worker must be run by www-data, or by root" in texts


@pytest.mark.parametrize(
    ("days", "says"),
    [
        ("*/2 * *", "*/2 as day of month counts from the first one of each month or week anew"),
        ("* * */2", "*/2 as weekday counts from the first one of each month or week anew"),
        ("*/2 * 1", "*/2 as day of month begins with a star: both day fields must match"),
        ("13 * */2", "*/2 as weekday begins with a star: both day fields must match"),
        ("1-31/2 * 1", None),
        ("* * *", None),
    ],
)
def test_a_star_with_a_step_in_a_day_field_is_named(days, says):
    [entry] = read(f"0 0 {days} run").entries
    assert [remark.text for remark in entry.remarks] == ([] if says is None else [says])


def test_a_zone_and_a_delay_hold_for_the_lines_below():
    first, second, third = read(
        "0 1 * * * a\nCRON_TZ=Asia/Tokyo\n0 1 * * * b\nRANDOM_DELAY=5\n0 1 * * * c"
    ).entries
    assert [entry.definition.options["tz"] for entry in (first, second, third)] == [
        "UTC",
        "Asia/Tokyo",
        "Asia/Tokyo",
    ]
    assert [entry.definition.options.get("jitter") for entry in (first, second, third)] == [
        None,
        None,
        "5m",
    ]


def test_the_environment_of_a_line_is_what_stands_above_it():
    first, second = read("A=1\n0 1 * * * a\nA=2\nB = two words  \n0 1 * * * b").entries
    assert first.definition.payload["env"] == {"A": "1"}
    assert second.definition.payload["env"] == {"A": "2", "B": "two words"}


@pytest.mark.parametrize(
    ("text", "users"),
    [
        ("0 1 * * * root run\n@daily www-data run", True),
        ("0 1 * * * root run\n@daily run", False),
        ("0 1 * * * root", False),  # a command of that name, or nothing to run
        ("0 1 * * * backup run", False),
        ("", False),
    ],
)
def test_a_column_of_users_is_found_out(text, users):
    found = read(text)
    assert any("user" in entry.definition.payload for entry in found.entries) == users


def test_a_column_of_users_can_be_said():
    [entry] = read("0 1 * * * unheard-of run", user_column=True).entries
    assert entry.definition.payload == {"command": "run", "user": "unheard-of"}
    [entry] = read("0 1 * * * root run", user_column=False).entries
    assert entry.definition.payload == {"command": "root run"}


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("# fine\n0 1 * *", "line 2", "not a line of a crontab"),
        ("0 1 * * *", "line 1", "no command"),
        ("0 1 * * *   ", "line 1", "no command"),
        ("0 1 * * * %in", "line 1", "no command"),
        ("@every 5m run", "line 1", "not a line of a crontab"),
        ("@every_minute run", "line 1", "not a line of a crontab"),
        ("RANDOM_DELAY=soon", "line 1", "write a number of minutes"),
        ("0 1 * * é run", "line 1", ""),
        ("hello", "line 1", "not a line of a crontab"),
        ("= 5", "line 1", "not a line of a crontab"),
    ],
)
def test_a_line_that_is_none_refuses_the_file(text, place, says):
    if not says:  # the server says what is wrong with a rule
        assert read(text).entries[0].definition.rule == "0 1 * * é"
        return
    with pytest.raises(FileRefused) as refused:
        read(f"{text}\n0 2 * * * fine")
    [problem] = refused.value.problems
    assert problem.place == place
    assert says in problem.text


def test_every_bad_line_is_named():
    with pytest.raises(FileRefused, match=r"line 1: .*\n  line 3: "):
        read("x\n0 2 * * * fine\ny\n")


def test_a_file_with_line_ends_of_windows_is_read():
    [entry] = read("# x\r\n0 1 * * * run\r\n").entries
    assert entry.definition.payload == {"command": "run"}


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("run", ("run", None)),
        ("echo 100%", ("echo 100", "")),
        ("run%%", ("run", "\n")),
        ("run%a%b", ("run", "a\nb\n")),
        ("run%a%b%", ("run", "a\nb\n")),
        ("run%  lead and trail  ", ("run", "  lead and trail  \n")),
        (r"date +\%F", ("date +%F", None)),
        (r"a\\%b", ("a\\", "b\n")),
        (r"a\\b\nc\d", (r"a\b\nc\d", None)),
        (r"a\\\%b", (r"a\%b", None)),
        (r"a \n % b\%c", (r"a \n", " b%c\n")),
        (r"run%a\%b\\c\d\\%e", ("run", "a%b\\\\c\\d\\%e\n")),
        ("a\\", ("a\\", None)),
        ("%", ("", "")),
    ],
)
def test_a_percent_sign_parts_command_and_input(command, parts):
    """As Debian's cron did it when these lines were given to it (3.0pl1-162)."""
    assert split_percent(command) == parts


@given(st.text(alphabet="a%\\ b", max_size=12))
def test_no_letter_of_a_command_is_lost(text):
    command, stdin = split_percent(text)
    kept = command + (stdin or "")
    assert kept.count("a") == text.count("a")
    if stdin is None:
        assert command.count("%") == text.count("%")
    else:
        assert kept.count("%") + kept.count("\n") in {text.count("%") - 1, text.count("%")}


def test_a_doubled_backslash_is_named():
    found = read("* * * * * printf 'a\\\\nb'\n0 0 * * * run%a\\\\b\n")
    assert [kinds(entry) for entry in found.entries] == [["backslash"], ["percent"]]
    assert found.entries[0].definition.payload["command"] == r"printf 'a\nb'"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/backup --all", "backup-all"),
        ("cd /srv/app && ./run.sh >/dev/null 2>&1", "cd-app-run.sh"),
        ("|||", "command"),
        ("x" * 500, "x" * 120),
        ("日" * 100, "日" * 40),
    ],
)
def test_a_name_is_made_of_the_command(command, name):
    assert name_of(command) == name
