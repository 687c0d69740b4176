"""What the simulation has found, each as the shortest history that shows it."""

from tests.logkit import History, Server, read_all
from tests.simdisk import SimDisk


def test_room_is_given_back_by_old_segments_and_not_by_the_one_in_use():
    """A start replaces an empty segment by one of the same name, which is the log's end now."""
    disk, history = SimDisk(), History()
    first = Server(disk, history)
    first.start()
    first.log.close()
    second = Server(disk, history)
    second.start()
    second.append(b"confirmed")
    second.log.checkpoints.trim()
    second.append(b"behind it")
    second.log.close()
    history.check(read_all(disk.crashed(0))[0])
