"""The blocking client: ``schedule_at`` and its kin, on a ``Client`` or on the module's own one.

Plain sockets; no event loop is imported. A client may be used by many threads at once and across a
fork. The module's functions use one client that is made on the first call, from ``WHEELD_URL``.

Every SCHEDULE carries a ONCE token that this side makes, so that a call that is repeated after a
lost reply makes no second job.
"""

import atexit
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Final, Self, TypeAlias, Unpack

from wheel.applying import Applied
from wheel.bulk import Bulk, Row, schedule_answer
from wheel.definitions import CronOptions, Definition
from wheel.encode import PAYLOAD_BYTES_MAX, payload_bytes, schedule_command
from wheel.errors import InvalidRequest, NotFound, WheeldError
from wheel.link import (
    DEFAULT_URL,
    Answer,
    Pool,
    array,
    ask,
    checked,
    fields,
    number,
    parse_url,
    text,
)
from wheel.recurring import Recurring, Schedule
from wheel.system import SYSTEM, System
from wheel.values import (
    BatchResult,
    Duration,
    Item,
    Job,
    JobInfo,
    Options,
    Payload,
    When,
    duration_ms,
    from_ms,
    when_wire,
    wire_due,
)
from wheel.wire import Reply, encode_command

__all__ = [
    "Batch",
    "Client",
    "Item",
    "Job",
    "JobInfo",
    "apply",
    "batch",
    "cancel",
    "default_client",
    "get",
    "schedule",
    "schedule_at",
    "schedule_cron",
    "schedule_in",
    "schedule_many",
    "schedules",
]

CONNECT_TIMEOUT_S: Final = 2.0
CALL_TIMEOUT_S: Final = 5.0
CHUNK: Final = 500

JobRef: TypeAlias = Job | JobInfo | int | str


class Client(Recurring):
    """A client of one server. It connects on the first call; use it as a context manager to close.

    Args:
        url: ``wheeld://[:token@]host[:port]``; by default ``WHEELD_URL``, else this machine.
        timeout: seconds for a whole call, its repetitions included.
        connect_timeout: seconds for one attempt to connect.
        payload_max: bytes of a payload; raise it together with the server's limit.
        system: clock, sleep and randomness.

    Raises:
        InvalidRequest: the URL cannot be read or a time-out is not above 0.
    """

    __slots__ = ("_closed", "_payload_max", "_pool", "_timeout_s")

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout: float = CALL_TIMEOUT_S,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        payload_max: int = PAYLOAD_BYTES_MAX,
        system: System = SYSTEM,
    ) -> None:
        if not (timeout > 0 and connect_timeout > 0):
            raise InvalidRequest("timeout and connect_timeout are seconds above 0")
        address = parse_url(url or os.environ.get("WHEELD_URL") or DEFAULT_URL)
        self._pool = Pool(address, system, connect_timeout_s=connect_timeout)
        self._timeout_s = timeout
        self._payload_max = payload_max
        self._closed = False

    def schedule_at(
        self, when: When, handler: str, payload: Payload = None, **options: Unpack[Options]
    ) -> Job:
        """Schedule one job at a moment and return it, durable.

        Args:
            when: an aware datetime, ISO text with an offset, or seconds since the epoch. What
                lies in the past is due at once.
            handler: name of the handler that is to run it.
            payload: a mapping becomes a JSON object, bytes go as they are.
            options: see ``Options``.

        Raises:
            NaiveDatetimeError: ``when`` has no zone.
            InvalidRequest: an argument that the server would refuse as well.
            Conflict: the key is taken and ``on_conflict`` is ``error``, or it is ``replace`` and
                the job is running.
            UnavailableError: the server was not reached or did not answer in time.
            WheeldError: the server refused.
        """
        wire = when_wire(when)
        due = wire_due(wire, self._pool.system.wall_ms())
        command = schedule_command(
            handler,
            wire,
            payload_bytes(payload, self._payload_max),
            self._pool.system.token().encode(),
            options,
        )
        reply = self._ask(command)
        job_id, word, state = schedule_answer(reply.value)
        return Job(
            id=job_id,
            store=reply.store,
            handler=handler,
            due=due if word in {"created", "replaced"} else None,
            word=word,
            state=state,
            key=options.get("key"),
        )

    def schedule_in(
        self, delay: Duration, handler: str, payload: Payload = None, **options: Unpack[Options]
    ) -> Job:
        """Schedule one job after a while: ``"90s"``, ``"24h"``, a timedelta, or seconds.

        The while begins when the server takes the job, and no step of a clock changes it.
        For arguments and errors see ``schedule_at``.
        """
        return self.schedule_at(_from_now(delay), handler, payload, **options)

    def schedule_many(self, items: Iterable[Row], *, chunk: int = CHUNK) -> BatchResult:
        """Schedule many jobs and return their ids in the items' order, all durable.

        Args:
            items: ``(when, handler, payload)`` or ``Item``, from any iterable, read as it goes.
                ``when`` may be a timedelta or ``"+90s"`` here: from now.
            chunk: how many travel together, 1 to 5,000; two chunks are in flight.

        A bad item fails alone: its id is None and ``errors`` says why, by position.

        Raises:
            UnavailableError: no answer for the client's time-out; ``confirmed`` tells how many
                leading items had one.
            InvalidRequest: ``chunk`` is out of bounds.
            TypeError: an item is neither a tuple of three nor an Item.
        """
        self._check_open()
        return Bulk(
            self._pool, timeout_s=self._timeout_s, payload_max=self._payload_max, chunk=chunk
        ).run(items)

    def batch(self) -> "Batch":
        """Return a block that collects jobs and schedules them together at its end."""
        return Batch(self)

    def cancel(self, job: JobRef) -> bool:
        """Cancel a job; True if it will not run, False if it was handed out or has ended.

        A job that runs is marked: its worker learns of it, its success still counts, and
        otherwise it ends cancelled.

        Args:
            job: what scheduling returned, an id, or a key.

        Raises:
            NotFound: no such job is known.
            UnavailableError: the server was not reached or did not answer in time.
        """
        reply = self._ask(encode_command(["CANCEL", _job_argument(job)]))
        try:
            answer = checked(array(reply.value, 1)[0])
        except NotFound as error:
            raise _not_found(job) from error
        return text(answer) == "CANCELLED"

    def get(self, job: JobRef) -> JobInfo:
        """Return what the server knows of a job: live, dead, or ended within the last hour.

        Args:
            job: what scheduling returned, an id, or a key.

        Raises:
            NotFound: no such job is known.
            UnavailableError: the server was not reached or did not answer in time.
        """
        reply = self._ask(encode_command(["JOB", _job_argument(job)]))
        if reply.value is None:
            raise _not_found(job)
        found = fields(reply.value)
        due_ms, key = found.get("due_ms"), found.get("key")
        return JobInfo(
            id=number(found.get("id")),
            store=reply.store,
            handler=text(found.get("handler", "")),
            state=text(found.get("state", "")),
            key=None if key is None else text(key),
            due=None if due_ms is None else from_ms(number(due_ms)),
            attempt=number(found["attempt"]) if "attempt" in found else None,
            fields=found,
        )

    def execute(self, *words: str | bytes | int) -> Reply:
        """Return the server's reply to any command that may be repeated.

        Raises:
            UnavailableError: the server was not reached or did not answer in time.
            WheeldError: the server refused.
        """
        return self._ask(encode_command(words)).value

    def token(self) -> str:
        """Return a new ONCE token, for a command that ``execute`` may have to repeat."""
        return self._pool.system.token()

    @property
    def payload_max(self) -> int:
        """Bytes of a payload, at most."""
        return self._payload_max

    def close(self) -> None:
        """Close the idle connections; calls after it are refused. May be repeated."""
        self._closed = True
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self._pool.address}{' closed' if self._closed else ''}>"

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest(f"{self!r}: make a new one")

    def _ask(self, command: bytes) -> Answer:
        self._check_open()
        return ask(self._pool, command, self._timeout_s)


class Batch:
    """A ``with`` block that collects jobs and schedules them together when it is left.

    An exception inside the block means that nothing is sent. Afterwards ``result`` and the counts
    tell what became of them.
    """

    __slots__ = ("_client", "_items", "_result")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._items: list[Item] = []
        self._result: BatchResult | None = None

    def schedule_at(
        self, when: When, handler: str, payload: Payload = None, **options: Unpack[Options]
    ) -> int:
        """Add one job and return its position; see ``Client.schedule_at``.

        Raises:
            InvalidRequest: ``when`` is not a moment, or has no zone.
        """
        when_wire(when)
        self._items.append(Item(when, handler, payload, **options))
        return len(self._items) - 1

    def schedule_in(
        self, delay: Duration, handler: str, payload: Payload = None, **options: Unpack[Options]
    ) -> int:
        """Add one job and return its position; see ``Client.schedule_in``.

        Raises:
            InvalidRequest: ``delay`` is not a duration.
        """
        return self.schedule_at(_from_now(delay), handler, payload, **options)

    @property
    def result(self) -> BatchResult:
        """What became of the jobs; only once the block has been left.

        Raises:
            InvalidRequest: still inside the block, or it was left by an exception.
        """
        if self._result is None:
            raise InvalidRequest("the jobs of a batch are sent when its block is left")
        return self._result

    @property
    def created(self) -> int:
        """How many jobs were made."""
        return self.result.created

    @property
    def existing(self) -> int:
        """How many keys were there already."""
        return self.result.existing

    @property
    def failed(self) -> int:
        """How many jobs were refused; ``result.errors`` says why."""
        return self.result.failed

    @property
    def errors(self) -> Mapping[int, WheeldError]:
        """Why a job was refused, by its position."""
        return self.result.errors

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._result = self._client.schedule_many(self._items)


def _from_now(delay: Duration) -> timedelta:
    return timedelta(milliseconds=duration_ms(delay))


def _job_argument(job: object) -> str:
    if isinstance(job, Job | JobInfo):
        return str(job.id)
    if isinstance(job, bool) or not isinstance(job, int | str):
        raise InvalidRequest(f"{job!r} is not a job: give a Job, an id, or a key")
    return str(job)


def _not_found(job: JobRef) -> NotFound:
    error = NotFound(f"no job {job!r} is known: there was none, or it ended over an hour ago")
    error.code = "UNKNOWN"
    return error


_DEFAULT: Final = "default"
_clients: Final[dict[str, Client]] = {}


def default_client() -> Client:
    """Return the client of the module's functions; made on the first call, from WHEELD_URL."""
    client = _clients.get(_DEFAULT)
    if client is None:  # setdefault is atomic: no lock that a fork could leave locked
        client = _clients.setdefault(_DEFAULT, Client())
    return client


@atexit.register
def _close_default() -> None:
    for client in _clients.values():
        client.close()


def schedule_at(
    when: When, handler: str, payload: Payload = None, **options: Unpack[Options]
) -> Job:
    """Schedule one job at a moment with the default client; see ``Client.schedule_at``."""
    return default_client().schedule_at(when, handler, payload, **options)


def schedule_in(
    delay: Duration, handler: str, payload: Payload = None, **options: Unpack[Options]
) -> Job:
    """Schedule one job after a while with the default client; see ``Client.schedule_in``."""
    return default_client().schedule_in(delay, handler, payload, **options)


def schedule_many(items: Iterable[Row], *, chunk: int = CHUNK) -> BatchResult:
    """Schedule many jobs with the default client; see ``Client.schedule_many``."""
    return default_client().schedule_many(items, chunk=chunk)


def batch() -> Batch:
    """Return a block that schedules its jobs together; see ``Batch``."""
    return default_client().batch()


def cancel(job: JobRef) -> bool:
    """Cancel a job with the default client; see ``Client.cancel``."""
    return default_client().cancel(job)


def get(job: JobRef) -> JobInfo:
    """Return what the server knows of a job, with the default client; see ``Client.get``."""
    return default_client().get(job)


def schedule_cron(
    name: str,
    rule: str,
    handler: str,
    payload: Payload = None,
    **options: Unpack[CronOptions],
) -> Schedule:
    """Make or change a schedule with the default client; see ``Client.schedule_cron``."""
    return default_client().schedule_cron(name, rule, handler, payload, **options)


def schedule(name: str) -> Schedule:
    """Return a schedule, with the default client; see ``Client.schedule``."""
    return default_client().schedule(name)


def schedules(prefix: str = "", *, dag: str = "") -> Iterator[Schedule]:
    """Yield schedules, with the default client; see ``Client.schedules``."""
    return default_client().schedules(prefix, dag=dag)


def apply(*definitions: Definition | Iterable[Definition], dry_run: bool = False) -> list[Applied]:
    """Make or change many schedules with the default client; see ``Client.apply``."""
    return default_client().apply(*definitions, dry_run=dry_run)
