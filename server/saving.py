"""SAVE and BACKUP: what they answer, once the checkpoint they wait for is in force."""

from typing import Final

from server.answers import OK, Outcome
from server.checkpoints import HOLDS_MAX, Checkpointer, CheckpointFailedError
from wal.manifest import Checkpoint
from wheel.wire import Answer, ReplyError

# The core refuses both commands while it loads: this is for the moment between it and the log.
NOT_YET: Final = Outcome(value=ReplyError("LOADING", "the log is being replayed, try again soon"))


async def answer_save(checkpointer: Checkpointer | None) -> Outcome:
    """Make a checkpoint that covers everything up to now, and return what SAVE answers."""
    if checkpointer is None:
        return NOT_YET
    try:
        checkpoint = await checkpointer.save()
    except CheckpointFailedError as error:
        return Outcome(value=ReplyError(error.code, str(error)))
    return Outcome(value=_fields(checkpoint), gated=True)


async def answer_backup_start(checkpointer: Checkpointer | None, handle: int, data: str) -> Outcome:
    """Keep the files as they are for a connection, behind a fresh checkpoint.

    Args:
        checkpointer: None while the log is replayed.
        handle: the connection.
        data: the data directory, for the answer.
    """
    if checkpointer is None:
        return NOT_YET
    if not checkpointer.hold(handle):
        return Outcome(value=ReplyError("LIMIT", f"{HOLDS_MAX} backups are running already"))
    try:
        checkpoint = await checkpointer.save()
    except CheckpointFailedError as error:
        # An older checkpoint and more log make a backup just as good.
        if (older := checkpointer.newest) is None or error.code != "DISKFULL":
            checkpointer.release(handle)
            return Outcome(value=ReplyError(error.code, str(error)))
        checkpoint = older
    head: dict[str, Answer] = {"data": data, "durable_lsn": checkpointer.synced_lsn}
    return Outcome(value=head | _fields(checkpoint), gated=True)


async def answer_backup_end(checkpointer: Checkpointer | None, handle: int) -> Outcome:
    """Let the files go."""
    if checkpointer is None:
        return NOT_YET
    if not checkpointer.release(handle):
        text = "BACKUP END, and this connection has not begun one: say BACKUP START first"
        return Outcome(value=ReplyError("CONFLICT", text))
    return Outcome(value=OK)


def _fields(checkpoint: Checkpoint) -> dict[str, Answer]:
    return {
        "lsn": checkpoint.start_lsn,
        "end_lsn": checkpoint.end_lsn,
        "jobs": checkpoint.rows,
        "size_bytes": checkpoint.size_bytes,
    }
