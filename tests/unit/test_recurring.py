"""A ``Schedule`` in Python: what its methods ask, and what they make of the answers."""

from collections import deque
from datetime import UTC, date, datetime, timedelta

import pytest

from wheel.errors import InvalidRequest, NaiveDatetimeError, NotFound
from wheel.recurring import Recurring

NEXT_MS = 1_798_099_200_000  # 2026-12-24T08:00:00Z
NEXT = datetime(2026, 12, 24, 8, tzinfo=UTC)
ENTRY = {"name": "n", "version": 3, "rule": "0 9 * * *", "tz": "Europe/Rome", "dst": "literal"}
FIRE = [NEXT_MS, b"2026-12-24T09:00:00+01:00", NEXT_MS + 60_000]


class Server(Recurring):
    payload_max = 1_000

    def __init__(self, *replies):
        self.replies = deque(replies)
        self.asked = []
        self.tokens = 0

    def token(self):
        self.tokens += 1
        return f"t{self.tokens}"

    def execute(self, *words):
        self.asked.append([word.decode() if isinstance(word, bytes) else word for word in words])
        return self.replies.popleft()


def made(*replies):
    """Return a schedule, and the server behind it, which has these replies left."""
    server = Server(ENTRY, *replies)
    schedule = server.schedule("n")
    server.asked.clear()
    return schedule, server


def test_what_scheduling_answers_is_a_handle():
    server = Server([b"2", b"changed", NEXT_MS], [1, b"created", None])
    schedule = server.schedule_cron("n", "@daily", "h")
    assert (schedule.name, schedule.version, schedule.next_at) == ("n", 2, NEXT)
    assert (schedule.created, schedule.changed, schedule.unchanged) == (False, True, False)
    assert repr(schedule) == "<Schedule n version 2 next 2026-12-24T08:00:00Z changed>"
    other = server.schedule_cron("m", "-", "h", after="n")
    assert (other.created, other.next_at) == (True, None)
    with pytest.raises(AttributeError):
        schedule.version = 3


def test_a_schedule_that_is_not_there_is_not_found():
    with pytest.raises(NotFound, match="no schedule 'n'") as missing:
        Server(None).schedule("n")
    assert missing.value.code == "UNKNOWN"
    schedule, _ = made(None)
    with pytest.raises(NotFound):
        schedule.refresh()


def test_next_gives_moments_with_the_clock_of_the_zone():
    schedule, server = made({"next": [FIRE]})
    (fire,) = schedule.next()
    assert server.asked == [["CRON", "NEXT", "n", "COUNT", 1]]
    assert (fire.at, fire.due) == (NEXT, NEXT + timedelta(minutes=1))
    assert str(fire) == "Thu 2026-12-24 09:00 +01:00 = 08:00Z"
    for count in (0, 101, True):
        with pytest.raises(InvalidRequest, match="between 1 and 100"):
            schedule.next(count)


def test_explain_asks_for_the_rule_as_it_is_now():
    schedule, server = made(
        {**ENTRY, "rule": "30 9 * * *"},
        {"tz": "Europe/Rome", "words": "At 09:30", "next": [FIRE], "remarks": ["r"], "herd": None},
    )
    told = schedule.explain()
    assert server.asked[1][:3] == ["CRON", "EXPLAIN", "30 9 * * *"]
    assert server.asked[1][3:9] == ["TZ", "Europe/Rome", "DST", "literal", "NAME", "n"]
    assert str(told) == ("At 09:30 (Europe/Rome). Next: Thu 2026-12-24 09:00 +01:00 = 08:00Z\nr")
    assert (told.remarks, told.herd) == (("r",), None)


def test_runs_are_read_page_by_page_as_they_are_asked_for():
    row = {"run": "n@x", "nominal_ms": NEXT_MS, "outcome": "succeeded", "date": "2026-12-24"}
    many = {**row, "outcome": "missed", "reason": "down", "count": 3, "last_ms": NEXT_MS + 2_000}
    schedule, server = made(["7", [row, many]], ["0", [row]])
    runs = schedule.runs(date=date(2026, 12, 24))
    first = next(runs)
    assert len(server.asked) == 1
    assert (first.run_id, first.nominal, first.last, first.count) == ("n@x", NEXT, NEXT, 1)
    second = next(runs)
    assert (second.outcome, second.reason, second.count) == ("missed", "down", 3)
    assert second.last == NEXT + timedelta(seconds=2)
    assert len(list(runs)) == 1
    assert [words[3:5] for words in server.asked] == [["DATE", "2026-12-24"]] * 2
    assert [words[-1] for words in server.asked] == ["0", "7"]


def test_what_makes_runs_carries_a_token_of_its_own():
    schedule, server = made("n@x!1", "n@x!2", ["n@x"], ["n@x~1"])
    assert [schedule.trigger(), schedule.trigger(at=NEXT, force=True)] == ["n@x!1", "n@x!2"]
    assert schedule.backfill(NEXT, "+1h", active=2) == ["n@x"]
    assert schedule.rerun("2026-12-24", downstream=True) == ["n@x~1"]
    assert [words[-2:] for words in server.asked] == [["ONCE", f"t{k}"] for k in (1, 2, 3, 4)]
    assert server.asked[1][3:6] == ["AT", str(NEXT_MS), "FORCE"]
    assert server.asked[2][3:7] == [str(NEXT_MS), "+3600000", "ACTIVE", 2]


def test_schedules_are_read_page_by_page():
    server = Server(["+m", [ENTRY, ENTRY]], ["0", [{**ENTRY, "next_ms": NEXT_MS, "dag": b"d"}]])
    found = list(server.schedules("n"))
    assert [words[-1] for words in server.asked] == ["0", "+m"]
    assert server.asked[0][2:4] == ["PREFIX", "n"]
    assert (found[0].next_at, found[2].next_at) == (None, NEXT)
    assert (found[0].dag, found[2].dag, found[0].after) == ("", "d", ())


@pytest.mark.parametrize("label", [NEXT, 20261224, None])
def test_a_logical_date_is_a_date_or_its_text(label):
    schedule, server = made()
    with pytest.raises(InvalidRequest, match="logical date"):
        schedule.rerun(label)
    assert server.asked == []


def test_a_stretch_of_time_has_a_zone():
    schedule, server = made()
    with pytest.raises(NaiveDatetimeError):
        schedule.backfill("2026-12-24T00:00", "now")
    assert server.asked == []
