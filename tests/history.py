"""What clients and workers saw of a server, and whether it could have kept its promises.

Clients note call and return of each SCHEDULE and CANCEL, workers each grant, run and answer, all
on one pair of clocks; at the end JOB is asked what became of each job. ``check`` then looks for
what no honest server can have done. A call whose reply was lost may have been carried out or not:
whatever allows either is no violation.

The idea is that of Jepsen's checkers (concurrent histories with indeterminate operations), for
these promises only, so it is a sort and a few passes: O(n log n).
"""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

LIVE: Final = frozenset({"scheduled", "held", "ready", "leased"})
COMPLETED: Final = frozenset({"OK", "ALREADY"})
TAKEN: Final = frozenset({"OK", "RETRY", "DEAD"})  # a verb was carried out
GONE: Final = "unknown"  # JOB knows nothing of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One look at the clocks, both rounded down to the millisecond as the server does.

    ``boot_ms`` never steps: order, relative times and leases are judged by it. ``wall_ms`` judges
    absolute times.
    """

    boot_ms: int
    wall_ms: int


def now() -> Moment:
    """Return this moment."""
    return Moment(
        boot_ms=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000,
        wall_ms=time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One SCHEDULE call; a repetition is another one with the same token.

    Attributes:
        token: its ONCE token, which the job carries as its payload too.
        called: before it was sent.
        returned: None: the reply was lost.
        job: what the reply named, 0 = nothing.
        word: ``created``, ``existing``, ``ended`` or ``replaced``; ``""`` = not known.
        refused: an error's code.
        delay_ms: asked for from now; None: at ``due_ms``.
        due_ms: the absolute time asked for, wall.
    """

    token: str
    called: Moment
    returned: Moment | None = None
    job: int = 0
    word: str = "created"
    refused: str = ""
    delay_ms: int | None = None
    due_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """One CANCEL of one job; ``answer`` is ``""`` when the reply was lost."""

    job: int
    called: Moment
    returned: Moment | None = None
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One job of a LEASE reply.

    Attributes:
        job: its id.
        fence: (term, lsn) of the receipt.
        attempt: as the reply says.
        token: the payload.
        due_ms: as the reply says, wall.
        lease_ms: as the reply says.
        timeout_ms: as the reply says, 0 = none.
        asked: before the LEASE was sent.
        got: when its reply was read; the run starts here or later.
    """

    job: int
    fence: tuple[int, int]
    attempt: int
    token: str
    due_ms: int
    lease_ms: int
    timeout_ms: int = 0
    asked: Moment
    got: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The handler ran for a grant."""

    fence: tuple[int, int]
    started: Moment
    ended: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One verb about one receipt: ACK, DONE, FAIL, RELEASE, EXTEND.

    ``answer`` is the first word or the error's code, for EXTEND the lease in ms; ``""`` when the
    reply was lost.
    """

    job: int
    fence: tuple[int, int]
    verb: str
    called: Moment
    returned: Moment | None = None
    answer: str = ""


Event = Schedule | Cancel | Grant | Run | Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One promise that was broken: its name, and the case."""

    rule: str
    text: str


@dataclass(slots=True)
class Job:
    """All that is known of one job."""

    id: int
    state: str = ""  # at the end; "" = nobody asked
    confirmed: list[Schedule] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def accepted(self) -> list[Answer]:
        """Return the completions that the server took, one a fence."""
        taken = {
            a.fence: a for a in self.answers if a.verb in {"ACK", "DONE"} and a.answer in COMPLETED
        }
        return list(taken.values())

    def maybe(self, *verbs: str) -> bool:
        """Return whether a verb's reply was lost, so that it may have been carried out."""
        return any(a.verb in verbs and a.returned is None for a in self.answers)


class History:
    """Events of many threads; appending to a list is atomic."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = list(events)
        self.states: dict[int, str] = {}

    def add(self, event: Event) -> None:
        """Note an event."""
        self.events.append(event)

    def jobs(self) -> dict[int, Job]:
        """Return what the events say, by job."""
        jobs: dict[int, Job] = {}

        def job(number: int) -> Job:
            return jobs.setdefault(number, Job(number, self.states.get(number, "")))

        for event in self.events:
            match event:
                case Schedule():
                    if event.job:
                        job(event.job).confirmed.append(event)
                case Cancel():
                    job(event.job).cancels.append(event)
                case Grant():
                    job(event.job).grants.append(event)
                case Answer():
                    job(event.job).answers.append(event)
                case Run():
                    pass
        return jobs

    def check(self) -> list[Violation]:
        """Return every broken promise; none = an honest server can have done all this."""
        jobs = self.jobs()
        found = [*self._check_tokens(), *self._check_starts()]
        for job in jobs.values():
            found += _check_end(job)
            found += _check_completions(job)
            found += _check_fences(job)
            found += _check_leases(job)
        return found

    def _check_tokens(self) -> Iterator[Violation]:
        """One token, one job; and nothing runs that nobody asked for, or that was refused."""
        jobs: defaultdict[str, set[int]] = defaultdict(set)
        calls: defaultdict[str, list[Schedule]] = defaultdict(list)
        ran: set[str] = set()
        for event in self.events:
            if isinstance(event, Schedule):
                calls[event.token].append(event)
                if event.job:
                    jobs[event.token].add(event.job)
            elif isinstance(event, Grant):
                jobs[event.token].add(event.job)
                ran.add(event.token)
        for token, ids in jobs.items():
            if len(ids) > 1:
                yield Violation(rule="once", text=f"token {token} made jobs {sorted(ids)}")
        for token in ran:
            if token not in calls:
                yield Violation(rule="invented", text=f"{token} ran, and nobody scheduled it")
            elif all(call.refused for call in calls[token]):
                yield Violation(rule="refused_ran", text=f"{token} ran, and was refused")

    def _check_starts(self) -> Iterator[Violation]:
        """No run starts before its job is due, by the server's word and by the caller's."""
        earliest: dict[str, Schedule] = {}
        for event in self.events:
            if isinstance(event, Schedule):
                known = earliest.setdefault(event.token, event)
                if event.called.boot_ms < known.called.boot_ms:
                    earliest[event.token] = event
        started: dict[tuple[int, int], Moment] = {}
        for event in self.events:
            if isinstance(event, Run):
                started[event.fence] = event.started
        for grant in self.events:
            if isinstance(grant, Grant):
                start = started.get(grant.fence, grant.got)
                early_ms = _early_ms(grant, earliest.get(grant.token), start)
                if early_ms > 0:
                    yield Violation(
                        rule="early", text=f"job {grant.job} began {early_ms} ms before it was due"
                    )


def _early_ms(grant: Grant, call: Schedule | None, start: Moment) -> int:
    """Return by how much a run began too early; 0 or less = it did not."""
    early_ms = grant.due_ms - start.wall_ms
    if call is None:
        return early_ms
    if call.delay_ms is None:
        return max(early_ms, call.due_ms - start.wall_ms)
    return max(early_ms, call.called.boot_ms + call.delay_ms - start.boot_ms)


def _check_end(job: Job) -> Iterator[Violation]:
    """A confirmed job is somewhere, once, and where the answers say."""
    makers = {call.token for call in job.confirmed if call.word == "created"}
    if len(makers) > 1:
        yield Violation(rule="id_twice", text=f"job {job.id} was made by {sorted(makers)}")
    completed = bool(job.accepted())
    cancelled = any(c.answer == "CANCELLED" for c in job.cancels) or any(
        a.answer == "CANCELLED" and a.verb != "EXTEND" for a in job.answers
    )
    died = any(a.verb == "FAIL" and a.answer == "DEAD" for a in job.answers)
    said = [
        word
        for word, so in (("succeeded", completed), ("cancelled", cancelled), ("dead", died))
        if so
    ]
    if len(said) > 1:
        yield Violation(rule="two_ends", text=f"job {job.id} was answered {said}")
    if not job.state:
        return
    if job.state == GONE:
        if job.confirmed or said:
            yield Violation(rule="lost", text=f"job {job.id} was confirmed and is not known")
        return
    if said and job.state not in said:
        rule = "resurrected" if job.state in LIVE else "other_end"
        yield Violation(rule=rule, text=f"job {job.id} was answered {said}, and is {job.state}")
    possible = {
        "succeeded": completed or job.maybe("ACK", "DONE"),
        "cancelled": cancelled or any(c.answer in {"MARKED", ""} for c in job.cancels),
        "dead": bool(job.grants) or job.maybe("FAIL"),
    }
    if not said and job.state not in LIVE and not possible.get(job.state, False):
        yield Violation(rule="no_reason", text=f"job {job.id} is {job.state}, nobody did that")


def _check_completions(job: Job) -> Iterator[Violation]:
    """At most one completion is accepted, and behind an end nobody is given the job."""
    accepted = job.accepted()
    if len(accepted) > 1:
        fences = sorted(answer.fence for answer in accepted)
        yield Violation(rule="completed_twice", text=f"job {job.id} by fences {fences}")
    said = sorted(
        (a for a in job.answers if a.verb in {"ACK", "DONE"}), key=lambda a: a.called.boot_ms
    )
    asked: set[tuple[int, int]] = set()
    for answer in said:
        if answer.answer == "ALREADY" and answer.fence not in asked:
            yield Violation(rule="already", text=f"job {job.id}: first ACK of {answer.fence}")
        asked.add(answer.fence)
    yield from _check_stale(job)
    ends = [a.returned for a in accepted]
    ends += [c.returned for c in job.cancels if c.answer == "CANCELLED"]
    ended_ms = min((end.boot_ms for end in ends if end), default=None)
    for grant in job.grants if ended_ms is not None else []:
        if grant.asked.boot_ms > ended_ms:
            yield Violation(rule="granted_after_end", text=f"job {job.id} by fence {grant.fence}")


def _check_stale(job: Job) -> Iterator[Violation]:
    """Once somebody else was given the job, nothing is accepted from who had it before."""
    newest: list[tuple[int, tuple[int, int]]] = []  # (read at, highest fence by then)
    for grant in sorted(job.grants, key=lambda grant: grant.got.boot_ms):
        if not newest or grant.fence > newest[-1][1]:
            newest.append((grant.got.boot_ms, grant.fence))
    for answer in job.answers:
        before = bisect_left(newest, (answer.called.boot_ms,))
        taken = answer.answer in TAKEN or answer.answer.isdigit()
        if taken and before and newest[before - 1][1] > answer.fence:
            yield Violation(
                rule="stale_accepted",
                text=f"job {job.id}: {answer.verb} of {answer.fence} was answered"
                f" {answer.answer}, and {newest[before - 1][1]} had been read",
            )


def _check_fences(job: Job) -> Iterator[Violation]:
    """Fences and attempts of a job rise together, in real time's order where that is known."""
    grants = sorted(job.grants, key=lambda grant: grant.fence)
    got_ms = None  # of the later fences, the first one that was read
    later = None
    for grant in reversed(grants):
        if later is not None and (grant.fence == later.fence or grant.attempt >= later.attempt):
            yield Violation(
                rule="fence",
                text=f"job {job.id}: attempt {later.attempt} has fence {later.fence}, "
                f"attempt {grant.attempt} has {grant.fence}",
            )
        if got_ms is not None and got_ms < grant.asked.boot_ms:
            yield Violation(
                rule="fence", text=f"job {job.id}: {grant.fence} was granted after a higher fence"
            )
        got_ms = grant.got.boot_ms if got_ms is None else min(got_ms, grant.got.boot_ms)
        later = grant


def _check_leases(job: Job) -> Iterator[Violation]:
    """While a lease is valid for certain nobody else is given the job."""
    answers: defaultdict[tuple[int, int], list[Answer]] = defaultdict(list)
    for answer in job.answers:
        answers[answer.fence].append(answer)
    grants = sorted(job.grants, key=lambda grant: grant.fence)
    for grant, following in pairwise(grants):
        until_ms = _valid_until_ms(grant, answers[grant.fence], following.got.boot_ms)
        if following.got.boot_ms < until_ms:
            yield Violation(
                rule="overlap",
                text=f"job {job.id}: {following.fence} was read {until_ms - following.got.boot_ms}"
                f" ms before the lease of {grant.fence} could end",
            )


def _valid_until_ms(grant: Grant, answers: list[Answer], before_ms: int) -> int:
    """Return up to when a lease was surely valid, given what was said before a moment.

    The server's term begins no earlier than the request was sent, and a verb that may have spent
    the receipt ends it.
    """
    until_ms = grant.asked.boot_ms + grant.lease_ms
    for answer in answers:
        if answer.verb == "EXTEND":
            if answer.answer.isdigit():
                until_ms = max(until_ms, answer.called.boot_ms + int(answer.answer))
        elif answer.called.boot_ms <= before_ms:
            until_ms = min(until_ms, answer.called.boot_ms)
    if grant.timeout_ms:
        until_ms = min(until_ms, grant.asked.boot_ms + grant.timeout_ms)
    return until_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Nominal times that a schedule says it made no run for: the first, the last, how many."""

    first_ms: int
    last_ms: int
    count: int = 1


def check_occurrences(
    expected_ms: Iterable[int], ran_ms: Iterable[int], skips: Iterable[Skip]
) -> Iterator[Violation]:
    """Each nominal time of a schedule has one run, or is told as skipped; nothing else runs.

    Args:
        expected_ms: all that the rule says, by somebody who shares no code with the server.
        ran_ms: of the runs that were leased.
        skips: what the schedule's history tells.
    """
    left = dict.fromkeys(sorted(expected_ms), 0)
    for nominal_ms in ran_ms:
        if nominal_ms not in left:
            yield Violation(rule="cron_invented", text=f"a run of {nominal_ms}")
        left[nominal_ms] = left.get(nominal_ms, 0) + 1
        if left[nominal_ms] > 1:
            yield Violation(rule="cron_twice", text=f"two runs of {nominal_ms}")
    for skip in skips:
        told = [ms for ms in left if skip.first_ms <= ms <= skip.last_ms and not left[ms]]
        if len(told) != skip.count:
            yield Violation(rule="cron_skip", text=f"{skip} stands for {len(told)} times")
        left |= dict.fromkeys(told, 1)
    for nominal_ms, runs in left.items():
        if not runs:
            yield Violation(rule="cron_missed", text=f"{nominal_ms} neither ran nor was skipped")
