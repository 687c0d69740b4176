"""The properties of a history (durability.md, T10), each with a fault of the server that breaks it.

A scenario plays a small life of a server, notes what its clients saw and checks that history. Over
the sound core nothing is found; with the fault of PROPERTIES planted the rule that it breaks is.
tests/hunt.py runs them.
"""

from tests.asking import ask, code, replies
from tests.fed import TERM, Bench
from tests.history import (
    Answer,
    History,
    Moment,
    Run,
    Schedule,
    Skip,
    check_occurrences,
)
from tests.load import grant_of
from tests.scheduled import World
from wheel.engine.core import Core
from wheel.wire import ReplyError

EVERY_MS = 300_000


class Seen:
    """A server without a network, and the history of what its client and its workers saw."""

    def __init__(self):
        self.bench, self.term, self.history = Bench(), TERM, History()
        self.conn = self.bench.open()

    def now(self):
        return Moment(boot_ms=self.bench.boot_ms, wall_ms=self.bench.wall_ms)

    def pass_time(self, ms):
        self.bench.advance(ms)
        self.bench.settle()

    def ask(self, line):
        """Return the reply when everything is durable, a ms later."""
        reply = ask(self.conn, line)
        self.pass_time(1)
        return reply

    def schedule(self, token, *, lease_ms=1000, delay_ms=0, lost=False, durable=True):
        """Schedule and note it; lost: the reply does not come."""
        called = self.now()
        line = f"SCHEDULE h +{delay_ms} {token} ONCE {token} TIMEOUT 0 LEASE {lease_ms}"
        if durable:
            found = [self.ask(line)]
        else:
            self.conn.feed(line.encode() + b"\r\n")
            found = replies(self.conn.take())
        reply = found[0] if found and not lost else None
        job, word = reply if isinstance(reply, list) else (reply, b"created")
        self.history.add(
            Schedule(
                token=token,
                called=called,
                returned=self.now() if reply else None,
                job=int(job) if reply else 0,
                word=word.decode() if isinstance(word, bytes) else str(word),
                delay_ms=delay_ms,
            )
        )

    def lease(self):
        """Lease one job, and note the grant and its run; None when there is none."""
        asked = self.now()
        items = self.ask("LEASE h")
        if not items:
            return None
        grant = grant_of(items[0], asked, self.now())
        self.history.add(grant)
        self.history.add(Run(fence=grant.fence, started=self.now(), ended=self.now()))
        return grant

    def say(self, verb, grant):
        self.pass_time(1)  # what was read in the same ms may have been read later
        called = self.now()
        reply = self.ask(f"{verb} {grant.job}.{grant.fence[0]}.{grant.fence[1]}")
        [word] = reply if isinstance(reply, list) else [reply]
        self.history.add(
            Answer(
                job=grant.job,
                fence=grant.fence,
                verb=verb,
                called=called,
                returned=self.now(),
                answer=code(word).split()[0],
            )
        )

    def restart(self):
        """Kill the server: what was not durable is gone."""
        bench = self.bench
        rel_ms = bench.core.engine_figures()["rel_ms"]
        bench.core.close()
        bench.core = Core(bench.options)
        for frame in bench.frames:
            bench.core.replay(frame, term=self.term)
        self.term += 1
        bench.core.start(term=self.term, rel_ms=rel_ms, clocks=bench.clocks())
        bench.core.tick(bench.clocks())
        self.conn = bench.open()

    def check(self):
        """Ask what became of each job, and hold all that was seen against the promises."""
        for number in list(self.history.jobs()):
            reply = self.ask(f"JOB {number}")
            state = "unknown"
            if reply and not isinstance(reply, ReplyError):
                fields = dict(zip(reply[::2], reply[1::2], strict=True))
                state = fields[b"state"].decode()
            self.history.states[number] = state
        rules = sorted({violation.rule for violation in self.history.check()})
        assert not rules, " ".join(rules)


def a_confirmed_job_outlives_a_kill():
    """Replies are read as soon as they come; nothing is durable by then."""
    seen = Seen()
    seen.schedule("a", durable=False)
    seen.restart()
    seen.check()


def a_job_completed_by_another_is_completed():
    """The first one's lease runs out; the second one is given the job; both say ACK."""
    seen = Seen()
    seen.schedule("a")
    first = seen.lease()
    seen.pass_time(3_000)
    seen.say("ACK", seen.lease())
    seen.say("ACK", first)
    seen.check()


def nobody_completes_what_another_holds():
    seen = Seen()
    seen.schedule("a")
    first = seen.lease()
    seen.pass_time(3_000)
    seen.lease()
    seen.say("ACK", first)
    seen.check()


def an_eager_worker_waits_for_the_end_of_a_lease():
    seen = Seen()
    seen.schedule("a", lease_ms=4_000)
    seen.lease()
    for _ in range(30):
        seen.pass_time(100)
        seen.lease()
    seen.check()


def fences_of_a_job_rise():
    seen = Seen()
    seen.schedule("a")
    seen.say("RELEASE", seen.lease())
    seen.lease()
    seen.check()


def an_eager_worker_waits_for_the_due_time():
    seen = Seen()
    seen.schedule("a", delay_ms=40)
    for _ in range(12):
        seen.pass_time(4)
        if grant := seen.lease():
            seen.say("ACK", grant)
    seen.check()


def what_was_not_answered_is_asked_again():
    """It had been carried out: the repetition is told the same job."""
    seen = Seen()
    seen.schedule("a", lost=True)
    seen.schedule("a")
    while grant := seen.lease():
        seen.say("ACK", grant)
    seen.check()


def a_schedule_runs_at_all_its_times():
    """An hour of every five minutes; its worker is away for some, so that some are skipped."""
    world = World()
    begin_ms = world.now_ms
    world.cron("SET s", "*/5 * * * *", "h", "x")
    ran = []
    for step in range(12):
        world.advance(EVERY_MS)
        if step % 4 != 1:
            ran = world.nominals("h")
    ran = world.nominals("h")
    told = [row for row in world.runs("s") if row["outcome"] == "skipped"]
    assert told
    skips = [
        Skip(first_ms=row["nominal_ms"], last_ms=row["last_ms"], count=row["count"]) for row in told
    ]
    expected = range(begin_ms // EVERY_MS * EVERY_MS + EVERY_MS, world.now_ms + 1, EVERY_MS)
    rules = sorted({found.rule for found in check_occurrences(expected, ran, skips)})
    assert not rules, " ".join(rules)


# Fault (a name of tests/c/mutants*.py or of pymutants.OF_SCHEDULES), scenario, the rule it breaks.
PROPERTIES = [
    ("no reply waits for anything", a_confirmed_job_outlives_a_kill, "lost"),
    (
        "a lease lasts half of what was said",
        an_eager_worker_waits_for_the_end_of_a_lease,
        "overlap",
    ),
    (
        "a completion is taken after the end, whoever completed it",
        a_job_completed_by_another_is_completed,
        "completed_twice",
    ),
    ("an ACK needs no fence", nobody_completes_what_another_holds, "stale_accepted"),
    ("fences do not rise over a restart", fences_of_a_job_rise, "fence"),
    ("a job is ready a ms before it is due", an_eager_worker_waits_for_the_due_time, "early"),
    ("ONCE is not remembered", what_was_not_answered_is_asked_again, "once"),
    ("a rule leaves times out", a_schedule_runs_at_all_its_times, "cron_missed"),
]
