"""Asking a fed connection, and reading its answers: short words for tests of the engine."""

from tests.fed import Bench, Fed
from wheel.wire import NotReady, Reply, ReplyError, ReplyReader


def replies(data: bytes) -> list[Reply]:
    reader = ReplyReader()
    reader.feed(data)
    found: list[Reply] = []
    while (reply := reader.gets()) is not NotReady.NOT_READY:
        found.append(reply)
    return found


def ask(conn: Fed, line: str | bytes) -> Reply:
    [reply] = replies(conn.ask(line))
    return reply


def text(reply: Reply) -> str:
    assert isinstance(reply, bytes)
    return reply.decode()


def schedule(conn: Fed, line: str) -> str:
    """Return the id of a new job."""
    reply = ask(conn, f"SCHEDULE {line}")
    return text(reply[0] if isinstance(reply, list) else reply)


def leased(reply: Reply) -> list[Reply]:
    """Return the fields of the one job in a LEASE reply."""
    assert isinstance(reply, list)
    [job] = reply
    assert isinstance(job, list)
    return job


def lease(conn: Fed, line: str) -> str:
    """Return the receipt of the one job that a LEASE gets."""
    return text(leased(ask(conn, f"LEASE {line}"))[0])


def job(conn: Fed, name: str) -> dict[str, Reply]:
    reply = ask(conn, f"JOB {name}")
    assert isinstance(reply, list)
    return {text(name): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def code(reply: Reply) -> str:
    return reply.code if isinstance(reply, ReplyError) else str(reply)


def codes(reply: Reply) -> list[str]:
    assert isinstance(reply, list)
    return [code(item) for item in reply]


def pass_time(bench: Bench, ms: int) -> None:
    bench.advance(ms)
    bench.settle()
