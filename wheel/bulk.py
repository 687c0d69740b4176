"""Many SCHEDULE commands in chunks, two chunks in flight on one connection.

While the server works on one chunk the next one is made and sent, so neither waits for the other.
Each item has a ONCE token that it keeps for good. So whatever was not answered, because the
connection broke or the server put it off, is simply sent again, and the server knows what it has.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from wheel.encode import payload_bytes, schedule_command
from wheel.errors import (
    ConnectError,
    InvalidRequest,
    UnavailableError,
    WheeldError,
    from_reply,
)
from wheel.link import RETRIED_CODES, Connection, Pauses, Pool, array, number, text
from wheel.values import NO_OPTIONS, BatchResult, Item, Payload, When, when_wire
from wheel.wire import Reply, ReplyError

Row: TypeAlias = tuple[When, str, Payload] | Item

CHUNK_MAX: Final = 5_000
CHUNK_BYTES_MAX: Final = 1 << 20  # payloads may be large: no chunk should take seconds to send
_IN_FLIGHT: Final = 2


class _Chunk:
    """Items that are sent together; ``waiting`` holds the commands not yet answered for good."""

    __slots__ = ("sent", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, bytes] = {}  # by the item's position; in order
        self.sent = False  # on the present connection, and its replies not yet read


class Bulk:
    """One call of ``schedule_many``."""

    __slots__ = (
        "_chunk",
        "_connection",
        "_created",
        "_deadline",
        "_errors",
        "_existing",
        "_flight",
        "_ids",
        "_pauses",
        "_payload_max",
        "_plain",
        "_pool",
        "_replaced",
        "_timeout_s",
        "_token",
    )

    def __init__(self, pool: Pool, *, timeout_s: float, payload_max: int, chunk: int) -> None:
        if not 1 <= chunk <= CHUNK_MAX:
            raise InvalidRequest(f"chunk {chunk!r} is not between 1 and {CHUNK_MAX}")
        self._pool = pool
        self._timeout_s = timeout_s
        self._payload_max = payload_max
        self._chunk = chunk
        self._token = pool.system.token().encode()
        self._pauses = Pauses(pool.system)
        self._deadline = 0.0
        self._connection: Connection | None = None
        self._plain = True  # only ids came so far on this connection: the fast way is open
        self._flight: deque[_Chunk] = deque()
        self._ids: list[int | None] = []
        self._errors: dict[int, WheeldError] = {}
        self._created = self._existing = self._replaced = 0

    def run(self, rows: Iterable[Row]) -> BatchResult:
        """Schedule all and return what became of each.

        Raises:
            UnavailableError: no chunk was answered for ``timeout_s``; ``confirmed`` tells how
                many leading items had been. The same call with the same keys may be repeated.
            TypeError: a row is neither a tuple of three nor an Item.
        """
        source = iter(rows)
        done = True
        try:
            while self._fill(source):
                if done:
                    self._extend_deadline()
                done = self._turn()
            if self._connection is not None:
                self._pool.give(self._connection)
                self._connection = None
        except UnavailableError as error:
            error.confirmed = min(
                (position for chunk in self._flight for position in chunk.waiting),
                default=len(self._ids),
            )
            raise
        finally:
            self._hang_up()
        errors = dict(sorted(self._errors.items()))
        return BatchResult(
            ids=self._ids,
            created=self._created,
            existing=self._existing,
            replaced=self._replaced,
            errors=errors,
        )

    def _turn(self) -> bool:
        """Send what is not sent and read the oldest chunk's replies; False if it must go again."""
        head = self._flight[0]
        try:
            connection = self._push()
            put_off = self._read(connection, head)
        except ConnectError as error:
            self._hang_up()
            self._pause(error)
            return False
        head.sent = False
        if put_off is not None:
            self._flight.rotate(-1)  # it goes behind the chunk that is in flight already
            self._pause(put_off)
            return False
        self._flight.popleft()
        self._pauses.reset()
        return True

    def _extend_deadline(self) -> None:
        self._deadline = self._pool.system.monotonic() + self._timeout_s

    def _pause(self, error: WheeldError) -> None:
        if not self._pauses.sleep_before(self._deadline):
            raise error

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        for chunk in self._flight:
            chunk.sent = False

    def _push(self) -> Connection:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._pool.take(self._deadline)
            self._plain = True
        for chunk in self._flight:
            if not chunk.sent:
                connection.send(b"".join(chunk.waiting.values()), self._deadline)
                chunk.sent = True
        return connection

    def _fill(self, source: Iterator[Row]) -> bool:
        """Make chunks until two are in flight; False when there is nothing left to do."""
        while len(self._flight) < _IN_FLIGHT:
            chunk = _Chunk()
            size_bytes = 0
            for row in source:
                size_bytes += self._add(chunk, row)
                if len(chunk.waiting) >= self._chunk or size_bytes >= CHUNK_BYTES_MAX:
                    break
            if not chunk.waiting:
                break
            self._flight.append(chunk)
            if len(self._flight) < _IN_FLIGHT:
                self._early_push()
        return bool(self._flight)

    def _early_push(self) -> None:
        """Give the server the first chunk before the second is made."""
        self._extend_deadline()
        try:
            self._push()
        except ConnectError:
            self._hang_up()  # _turn meets the same error, and there it counts

    def _add(self, chunk: _Chunk, row: Row) -> int:
        """Put one item into a chunk; its size in bytes. A bad one is refused alone."""
        if isinstance(row, Item):
            when, handler, payload, options = row.when, row.handler, row.payload, row.options()
        else:
            if len(row) != 3:
                raise TypeError(f"{row!r} is neither (when, handler, payload) nor an Item")
            when, handler, payload = row
            options = NO_OPTIONS
        position = len(self._ids)
        self._ids.append(None)
        try:
            command = schedule_command(
                handler,
                when_wire(when),
                payload_bytes(payload, self._payload_max),
                b"%b.%d" % (self._token, position),
                options,
            )
        except InvalidRequest as error:
            self._errors[position] = error
            return 0
        chunk.waiting[position] = command
        return len(command)

    def _read(self, connection: Connection, chunk: _Chunk) -> WheeldError | None:
        """Read a chunk's replies. What is put off stays waiting; one such error, if any."""
        waiting = chunk.waiting
        if self._plain:
            ids = connection.receive_ids(len(waiting), self._deadline)
            if ids is not None:
                for position, job_id in zip(waiting, ids, strict=True):
                    self._ids[position] = job_id
                self._created += len(ids)
                waiting.clear()
                return None
            self._plain = False
        put_off = None
        for position in list(waiting):
            error = self._settle(position, connection.receive(self._deadline))
            if error is None:
                del waiting[position]
            else:
                put_off = error
        return put_off

    def _settle(self, position: int, reply: Reply) -> WheeldError | None:
        """Take down one item's reply; its error if it is to be sent again."""
        if isinstance(reply, ReplyError):
            error = from_reply(reply.code, reply.text)
            if reply.code in RETRIED_CODES:
                return error
            self._errors[position] = error
            return None
        self._ids[position], word, _ = schedule_answer(reply)
        if word == "created":
            self._created += 1
        elif word == "replaced":
            self._replaced += 1
        else:
            self._existing += 1
        return None


def schedule_answer(reply: Reply) -> tuple[int, str, str | None]:
    """Return the id, word and state that SCHEDULE answered; without key it answers the id alone.

    Raises:
        ProtocolError: the reply is neither.
    """
    if not isinstance(reply, list):
        return number(reply), "created", None
    answer = array(reply, 3)
    return number(answer[0]), text(answer[1]), text(answer[2])
