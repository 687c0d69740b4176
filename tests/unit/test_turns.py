"""The loop's turns, with a real core, real sockets and answers of the test's own."""

import asyncio
import socket

from server.answers import Outcome
from server.turns import COMMANDS_A_TURN, Turns
from tests.fakes import Lines
from wheel.engine.core import Commit, Core, CoreOptions
from wheel.engine.facts import Clocks
from wheel.wire import NOT_READY, ReplyError, ReplyReader, encode_command

DEADLINE_S = 20


class Scripted:
    """Answers TIME with what the test says, INFO with its argument."""

    def __init__(self):
        self.time = Outcome(value="now")
        self.asked = []
        self.two_asked = asyncio.Event()

    def answer(self, _handle, argv):
        self.asked.append(argv)
        if len(self.asked) == 2:
            self.two_asked.set()
        if argv[0] == b"TIME":
            if isinstance(self.time, Exception):
                raise self.time
            return self.time
        return Outcome(value=argv[1])


class Talk:
    """One client of the core, on the same loop."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.replies = ReplyReader()

    def send(self, *commands):
        self.writer.write(b"".join(encode_command(command) for command in commands))

    async def read(self):
        while (reply := self.replies.gets()) is NOT_READY:
            data = await asyncio.wait_for(self.reader.read(1 << 16), DEADLINE_S)
            assert data, "closed"
            self.replies.feed(data)
        return reply


def run(scenario):
    """Run an async test with a core that serves (answers, lines, connect)."""

    async def main():
        with Core(CoreOptions(commit=Commit.DRIVEN)) as core:
            listener = socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            core.listen(listener.detach())
            core.start(term=1, rel_ms=0, clocks=Clocks(wall_ms=0, boot_ms=0, mono_ms=0))
            answers, lines = Scripted(), Lines()
            turns = Turns(
                core,
                answers,
                logger=lines.logger,
                on_moved=lambda: None,
                on_failed=lambda: None,
            )
            turns.start()
            writers = []
            answers.turns, answers.core = turns, core

            async def connect():
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writers.append(writer)
                return Talk(reader, writer)

            try:
                await scenario(answers, lines, connect)
            finally:
                turns.stop()
                for writer in writers:
                    writer.close()
                    await writer.wait_closed()

    asyncio.run(main())


def test_many_pipelined_commands_are_answered_in_order():
    async def scenario(_answers, _lines, connect):
        talk = await connect()
        count = 3 * COMMANDS_A_TURN + 1
        talk.send(*[("INFO", number) for number in range(count)])
        assert [await talk.read() for _ in range(count)] == [b"%d" % n for n in range(count)]

    run(scenario)


def test_many_connections_are_all_answered():
    async def scenario(_answers, _lines, connect):
        talks = [await connect() for _ in range(2 * COMMANDS_A_TURN)]
        for number, talk in enumerate(talks):
            talk.send(("INFO", number))
        for number, talk in enumerate(talks):
            assert await talk.read() == b"%d" % number

    run(scenario)


def test_command_that_fails_is_answered_logged_and_stops_nobody():
    async def scenario(answers, lines, connect):
        answers.time = KeyError("oops")
        talk = await connect()
        talk.send(("TIME",), ("INFO", "x"))
        failed = await talk.read()
        assert isinstance(failed, ReplyError)
        assert "oops" not in failed.text
        assert await talk.read() == b"x"
        (line,) = lines.all
        assert line["event"] == "command_failed"
        assert line["error"] == "KeyError"
        assert "in answer" in str(line["trace"])
        assert "oops" not in str(line), "it may be a token or a payload"

    run(scenario)


def test_answer_that_has_no_form_on_the_wire_is_a_failure_too():
    async def scenario(answers, lines, connect):
        answers.time = Outcome(value=object())  # type: ignore[arg-type]
        talk = await connect()
        talk.send(("TIME",), ("INFO", "x"))
        assert isinstance(await talk.read(), ReplyError)
        assert await talk.read() == b"x"
        assert lines.events == ["command_failed"]

    run(scenario)


def test_answer_made_in_steps_lets_others_in_between():
    async def scenario(answers, _lines, connect):
        slow, quick = await connect(), await connect()
        told = asyncio.Event()

        def work():
            while not told.is_set():
                yield
            return "done"

        answers.time = Outcome(work=work())
        slow.send(("TIME",), ("INFO", "behind"))
        quick.send(("INFO", "x"))
        assert await quick.read() == b"x"
        told.set()
        assert await slow.read() == b"done"
        assert await slow.read() == b"behind"

    run(scenario)


def test_step_that_fails_is_answered():
    async def scenario(answers, lines, connect):
        def work():
            yield
            raise KeyError("oops")

        talk = await connect()
        answers.time = Outcome(work=work())
        talk.send(("TIME",))
        assert isinstance(await talk.read(), ReplyError)
        assert lines.events == ["command_failed"]

    run(scenario)


def test_delayed_answer_holds_back_its_own_connection_only():
    async def scenario(answers, _lines, connect):
        slow, quick = await connect(), await connect()
        answers.time = Outcome(value="late", delay_s=0.05)
        slow.send(("TIME",), ("INFO", "behind"))
        quick.send(("INFO", "x"))
        assert await quick.read() == b"x"
        assert await slow.read() == b"late"
        assert await slow.read() == b"behind"

    run(scenario)


def test_closing_answer_is_the_last_one():
    async def scenario(answers, _lines, connect):
        talk = await connect()
        answers.time = Outcome(value="bye", close=True)
        talk.send(("TIME",), ("INFO", "never"))
        assert await talk.read() == b"bye"
        assert await talk.reader.read() == b""
        assert [argv[0] for argv in answers.asked] == [b"TIME"]

    run(scenario)


def test_silent_answer_closes_without_a_byte():
    async def scenario(answers, _lines, connect):
        talk = await connect()
        answers.time = Outcome(silent=True)
        talk.send(("TIME",))
        assert await talk.reader.read() == b""

    run(scenario)


def test_connection_that_is_gone_before_its_late_answer_is_left_alone():
    async def scenario(answers, lines, connect):
        gone, other = await connect(), await connect()
        answers.time = Outcome(value="late", delay_s=0.05)
        gone.send(("TIME",))
        other.send(("TIME",))
        await asyncio.wait_for(answers.two_asked.wait(), DEADLINE_S)
        gone.writer.transport.abort()
        assert await other.read() == b"late"
        assert lines.events == []

    run(scenario)


def test_what_waits_for_the_disk_grows_old_although_nobody_asks_anything():
    async def scenario(answers, _lines, connect):
        core, turns = answers.core, answers.turns
        (await connect()).send(("SCHEDULE", "h", "now", "x"), ("INFO", 1), ("INFO", 2))
        await asyncio.wait_for(answers.two_asked.wait(), DEADLINE_S)
        assert core.lsn() > core.durable_lsn()
        turns.look()
        await asyncio.sleep(0.02)
        turns.look()
        assert core.stats()["queue_age_ms"] >= 19

    run(scenario)
