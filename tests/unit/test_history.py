"""The history checker finds what an honest server cannot have done, and nothing else."""

import random
from dataclasses import replace

import pytest

from tests.history import (
    GONE,
    Answer,
    Cancel,
    Grant,
    History,
    Moment,
    Run,
    Schedule,
    Skip,
    check_occurrences,
)

WALL_MS = 1_800_000_000_000
LEASE_MS = 500


def at(ms):
    return Moment(boot_ms=ms, wall_ms=WALL_MS + ms)


def schedule(job=1, token=None, called=0, **changes):
    known = {"token": token or f"t{job}", "called": at(called), "returned": at(called + 1)}
    return Schedule(**{**known, "job": job, "delay_ms": 10, **changes})


def unanswered(event):
    """The same call, with its reply lost."""
    lost = replace(event, returned=None)
    return replace(lost, job=0) if isinstance(event, Schedule) else replace(lost, answer="")


def granted(lsn=5, job=1, attempt=1, asked=10, got=12, term=1, **changes):
    """A grant and its run, which begins when the reply is read."""
    known = {"token": f"t{job}", "due_ms": WALL_MS + 10, "lease_ms": LEASE_MS}
    grant = Grant(
        **{
            **known,
            "job": job,
            "fence": (term, lsn),
            "attempt": attempt,
            "asked": at(asked),
            "got": at(got),
            **changes,
        }
    )
    return [grant, Run(fence=(term, lsn), started=at(got), ended=at(got + 1))]


def answer(verb="ACK", word="OK", lsn=5, job=1, called=20, term=1):
    return Answer(
        job=job,
        fence=(term, lsn),
        verb=verb,
        called=at(called),
        returned=at(called + 1),
        answer=word,
    )


def cancel(word="CANCELLED", job=1, called=5):
    return Cancel(job=job, called=at(called), returned=at(called + 1), answer=word)


def rules(*events, **states):
    """Return the names of what is found; states are given as ``j1="succeeded"``."""
    history = History()
    for event in events:
        for one in event if isinstance(event, list) else [event]:
            history.add(one)
    history.states = {int(name[1:]): state for name, state in states.items()}
    return sorted({violation.rule for violation in history.check()})


DONE = (schedule(), granted(), answer())


# ---------------------------------------------------------------- what an honest server does


@pytest.mark.parametrize(
    ("events", "states"),
    [
        (DONE, {"j1": "succeeded"}),
        ((schedule(),), {"j1": "scheduled"}),
        ((schedule(), cancel()), {"j1": "cancelled"}),
        ((schedule(), granted(), answer("FAIL", "DEAD")), {"j1": "dead"}),
        # marked while it ran: either end may come of it
        ((schedule(), granted(), cancel("MARKED", called=15), answer()), {"j1": "succeeded"}),
        (
            (schedule(), granted(), cancel("MARKED", called=15), answer("FAIL", "CANCELLED")),
            {"j1": "cancelled"},
        ),
        # the lease ran out, and another was given the job
        (
            (
                schedule(),
                granted(),
                granted(lsn=9, attempt=2, asked=500, got=600),
                answer(lsn=9, called=610),
                answer(word="STALE", called=620),
            ),
            {"j1": "succeeded"},
        ),
        # given back before its end
        (
            (
                schedule(),
                granted(),
                answer("RELEASE", "OK"),
                granted(lsn=9, attempt=2, asked=20, got=22),
                answer(lsn=9, called=30),
            ),
            {"j1": "succeeded"},
        ),
    ],
)
def test_what_an_honest_server_does_is_no_violation(events, states):
    assert rules(*events, **states) == []


@pytest.mark.parametrize("state", ["succeeded", "ready"])
def test_unanswered_ack_may_have_been_carried_out_or_not(state):
    assert rules(schedule(), granted(), unanswered(answer()), j1=state) == []


@pytest.mark.parametrize("state", ["cancelled", "scheduled"])
def test_unanswered_cancel_may_have_been_carried_out_or_not(state):
    assert rules(schedule(), unanswered(cancel()), j1=state) == []


def test_unanswered_schedule_may_have_made_a_job_or_not():
    assert rules(unanswered(schedule())) == []
    assert rules(unanswered(schedule()), granted(), answer(), j1="succeeded") == []


def test_repeated_schedule_may_be_answered_with_the_first_job():
    assert rules(unanswered(schedule()), schedule(called=3), *DONE[1:], j1="succeeded") == []


def test_repeated_ack_is_answered_already():
    again = answer(word="ALREADY", called=40)
    assert rules(*DONE, again, j1="succeeded") == []
    lost = unanswered(answer())
    assert rules(schedule(), granted(), lost, again, j1="succeeded") == []


# ---------------------------------------------------------------- every promise, broken once


def test_confirmed_job_that_is_not_known_any_more_is_lost():
    assert rules(schedule(), j1=GONE) == ["lost"]
    assert rules(*DONE, j1=GONE) == ["lost"]


@pytest.mark.parametrize("state", ["scheduled", "ready", "leased"])
def test_completed_job_that_lives_is_reported(state):
    assert rules(*DONE, j1=state) == ["resurrected"]


def test_cancelled_job_that_lives_is_reported():
    assert rules(schedule(), cancel(), j1="scheduled") == ["resurrected"]


def test_another_end_than_the_one_that_was_answered_is_reported():
    assert rules(*DONE, j1="dead") == ["other_end"]
    assert rules(schedule(), granted(), answer("FAIL", "DEAD"), j1="succeeded") == ["other_end"]


def test_end_that_nobody_brought_about_is_reported():
    assert rules(schedule(), granted(), j1="succeeded") == ["no_reason"]
    assert rules(schedule(), j1="cancelled") == ["no_reason"]
    assert rules(schedule(), j1="dead") == ["no_reason"]
    assert rules(schedule(), j1="expired") == ["no_reason"]


def test_two_ends_are_reported():
    assert "two_ends" in rules(*DONE, cancel(called=30), j1="succeeded")


def test_two_accepted_completions_are_reported():
    second = granted(lsn=9, attempt=2, asked=600, got=601)
    events = (schedule(), granted(), second, answer(called=602), answer(lsn=9, called=603))
    assert "completed_twice" in rules(*events, j1="succeeded")


@pytest.mark.parametrize(
    ("verb", "word"), [("ACK", "OK"), ("FAIL", "RETRY"), ("RELEASE", "OK"), ("EXTEND", "500")]
)
def test_word_about_a_grant_that_another_has_taken_over_is_reported(verb, word):
    events = (schedule(), granted(), granted(lsn=9, attempt=2, asked=600, got=601))
    assert "stale_accepted" in rules(*events, answer(verb, word, called=602))
    assert rules(*events, answer(verb, "STALE", called=602)) == []
    assert "stale_accepted" not in rules(*events, answer(verb, word, called=601))


def test_ack_that_is_called_a_repetition_and_is_none_is_reported():
    assert rules(schedule(), granted(), answer(word="ALREADY"), j1="succeeded") == ["already"]


@pytest.mark.parametrize("end", [answer(), cancel("CANCELLED", called=20)])
def test_grant_behind_an_end_is_reported(end):
    late = granted(lsn=9, attempt=2, asked=600, got=601)
    assert "granted_after_end" in rules(schedule(), granted(), end, late)


def test_start_before_the_delay_is_over_is_reported():
    assert rules(schedule(delay_ms=13), granted(due_ms=WALL_MS)) == ["early"]
    assert rules(schedule(delay_ms=12), granted(due_ms=WALL_MS)) == []


def test_start_before_the_absolute_time_is_reported():
    call = schedule(delay_ms=None, due_ms=WALL_MS + 13)
    assert rules(call, granted(due_ms=WALL_MS)) == ["early"]
    assert rules(replace(call, due_ms=WALL_MS + 12), granted(due_ms=WALL_MS)) == []


def test_start_before_the_time_that_the_server_tells_is_reported():
    assert rules(schedule(), granted(due_ms=WALL_MS + 13)) == ["early"]
    assert rules(schedule(), granted(due_ms=WALL_MS + 12)) == []


@pytest.mark.parametrize(
    "second",
    [
        granted(lsn=4, attempt=2, asked=600, got=601),  # lower
        granted(lsn=5, attempt=2, asked=600, got=601),  # the same again
        granted(lsn=9, attempt=1, asked=600, got=601),  # an attempt counted twice
    ],
)
def test_fence_that_does_not_rise_is_reported(second):
    assert "fence" in rules(schedule(), granted(), second)


def test_fence_is_compared_by_its_term_first():
    assert rules(schedule(), granted(), granted(2, attempt=2, term=2, asked=600, got=601)) == []


def test_second_lease_inside_the_first_is_reported():
    assert rules(schedule(), granted(), granted(9, attempt=2, asked=500, got=509)) == ["overlap"]
    assert rules(schedule(), granted(), granted(9, attempt=2, asked=500, got=510)) == []


def test_second_lease_inside_an_extended_one_is_reported():
    extended = answer("EXTEND", str(LEASE_MS), called=400)
    second = granted(lsn=9, attempt=2, asked=800, got=899)
    assert rules(schedule(), granted(), extended, second) == ["overlap"]
    refused = replace(extended, answer="STALE")
    assert rules(schedule(), granted(), refused, second) == []


def test_lease_ends_at_its_timeout():
    second = granted(lsn=9, attempt=2, asked=100, got=120)
    assert rules(schedule(), granted(timeout_ms=100), second) == []
    assert rules(schedule(), granted(timeout_ms=0), second) == ["overlap"]


def test_unanswered_release_may_have_ended_the_lease():
    second = granted(lsn=9, attempt=2, asked=30, got=40)
    assert rules(schedule(), granted(), unanswered(answer("RELEASE")), second) == []
    assert "overlap" in rules(schedule(), granted(), answer("RELEASE", called=50), second)


def test_token_that_made_two_jobs_is_reported():
    assert rules(schedule(), schedule(job=2, token="t1")) == ["once"]
    # the second one was made by the call whose reply was lost
    both = (unanswered(schedule()), schedule(job=2, token="t1"))
    assert rules(*both, granted(), granted(7, job=2, token="t1")) == ["once"]


def test_id_that_two_jobs_were_given_is_reported():
    assert rules(schedule(), schedule(token="t2")) == ["id_twice"]
    assert rules(schedule(), schedule(token="t2", word="existing")) == []
    assert rules(schedule(), schedule(token="t2", word="replaced")) == []


def test_run_of_what_nobody_scheduled_is_reported():
    assert rules(schedule(job=2), granted()) == ["invented"]


def test_run_of_what_was_refused_is_reported():
    refused = replace(schedule(), job=0, refused="OOM")
    assert rules(refused, granted()) == ["refused_ran"]
    assert rules(unanswered(schedule()), refused, granted()) == []


@pytest.mark.parametrize(
    ("ran", "skips", "rule"),
    [
        ([5, 10, 15, 20], [], None),
        ([5, 20], [Skip(first_ms=10, last_ms=15, count=2)], None),
        ([5, 10, 20], [], "cron_missed"),
        ([5, 10, 15, 20, 10], [], "cron_twice"),
        ([5, 10, 12, 15, 20], [], "cron_invented"),
        ([5, 20], [Skip(first_ms=10, last_ms=10)], "cron_missed"),
        ([5, 20], [Skip(first_ms=10, last_ms=15, count=3)], "cron_skip"),
        ([5, 10, 15, 20], [Skip(first_ms=10, last_ms=10)], "cron_skip"),
    ],
)
def test_occurrences_that_are_not_the_rules_are_reported(ran, skips, rule):
    found = {one.rule for one in check_occurrences([5, 10, 15, 20], ran, skips)}
    assert found == ({rule} if rule else set())


# ---------------------------------------------------------------- many


def honest(count, rng):
    """Return a history of an honest server: jobs overlap, some attempts fail, replies get lost."""
    history, lsn = History(), 0
    for job in range(1, count + 1):
        began = rng.randrange(count)
        call = schedule(job=job, called=began)
        history.add(unanswered(call))
        history.add(call)
        moment = began + 10
        for attempt in range(1, rng.randrange(1, 5)):
            lsn += 1
            asked, got = moment, moment + rng.randrange(5)
            for event in granted(lsn, job, attempt, asked, got, due_ms=WALL_MS + moment):
                history.add(event)
            verb, word = rng.choice([("FAIL", "RETRY"), ("RELEASE", "OK"), ("EXTEND", "500")])
            said = answer(verb, word, lsn, job, got + 1)
            history.add(unanswered(said) if rng.random() < 0.2 else said)
            moment = got + 1 + (LEASE_MS if verb == "EXTEND" else 1)
        lsn += 1
        for event in granted(lsn, job, 9, moment, moment + 1, due_ms=WALL_MS + moment):
            history.add(event)
        history.add(answer("ACK", "OK", lsn, job, moment + 2))
        history.states[job] = "succeeded"
    rng.shuffle(history.events)
    return history


def test_one_lie_among_many_events_is_found_in_any_order():
    history = honest(5_000, random.Random(3))
    assert history.check() == []
    history.states[77] = GONE
    [found] = history.check()
    assert (found.rule, "77" in found.text) == ("lost", True)
