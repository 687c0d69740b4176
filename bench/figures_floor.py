"""The floor: a server that does nothing (bench/echo.c) under the loads of W1, beside wheeld.

It parses as far as it must to count commands, and answers each as SCHEDULE is answered: what it
takes is the price of the kernel's sockets, here and now. What wheeld takes on top is what wheeld
does. Both are driven by the same load generator, in rounds that take turns; fsync off, so that no
disk stands between.
"""

from collections.abc import Generator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from bench.contests import OURS, Contest, Sample, Start, Target, compete, timed
from bench.figures_schedule import MANY, MANY_DEEP, ONE, ONE_DEEP, Shape, far, words
from bench.harness import ROOT, Result, Scale, compiled, free_port, running
from bench.peers import Peer, wheeld

COMMAND: Final = "python -m bench.run floor"
FLOOR: Final = "bare echo"
SHAPES: Final[tuple[Shape, ...]] = (ONE, ONE_DEEP, MANY, MANY_DEEP)


@contextmanager
def echo(folder: Path, program: Path) -> Generator[Peer, None, None]:
    """Run the server that does nothing, until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    log = folder / "echo.log"
    with running([str(program), str(port)], log) as process:
        peer = Peer(name=FLOOR, port=port, process=process, log=log)
        peer.wait("COUNT")
        with closing(peer):
            yield peer


def _load(server: Peer, shape: Shape, scale: Scale) -> Sample:
    return timed(
        server,
        lambda: far(server, shape, scale.far_jobs, scale.run_s),
        lambda report: report.stored,
    )


def run(folder: Path, scale: Scale) -> list[Result]:
    """Return rate and CPU a command of both, and how far wheeld is above the floor."""
    program = compiled(folder / "echo", [ROOT / "bench" / "echo.c"])
    results: list[Result] = []
    for shape in SHAPES:
        contest = Contest(text=f"floor, {words(shape)}", command=COMMAND)
        starts: dict[str, Start] = {
            OURS: partial(wheeld, fsync="off"),
            FLOOR: partial(echo, program=program),
        }
        compete(contest, folder, scale, starts, partial(_load, shape=shape, scale=scale))
        results += contest.rows(Target(peer=FLOOR))
        costs = contest.ratios(FLOOR, lambda one: one.cpu_us)
        results.append(contest.row(f"server CPU a job beside {FLOOR}", "x", costs))
    return results
