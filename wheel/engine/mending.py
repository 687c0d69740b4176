"""A core's calls about payloads that changed in memory: finding another copy, putting it back.

A part of ``wheel.engine.core.Core``, which gives it the C library; it crosses into C by that alone.
"""
# pyright: basic

from collections.abc import Callable
from typing import Any

Bytes = bytes | bytearray | memoryview


class Mending:
    """Those calls."""

    _lib: Any
    _ffi: Any
    _core: Any
    _need: Callable[[int, str], int]

    def checkpoint_go_on(self) -> None:
        """Let a checkpoint that stands at a payload (``corrupt_id``) look at it again."""
        self._lib.wd_core_checkpoint_go_on(self._core)

    def mend(self, job: int, payload: bytes) -> bool:
        """Put the payload of a job back, if it changed; False: this is not what was scheduled.

        True as well when there is nothing to mend: it is intact, or the job is gone.
        """
        status = self._lib.wd_core_mend(self._core, job, payload, len(payload))
        if status == self._lib.WD_EINVAL:
            return False
        if status != self._lib.WD_EGONE:
            self._need(status, f"mending job {job}")
        return True

    def payload_in_frames(self, frames: Bytes, job: int) -> bytes | None:
        """Return the last payload that whole valid frames give a job. Any thread may ask."""
        return self._found(self._lib.wd_frames_payload, frames, job)

    def payload_in_chunks(self, chunks: Bytes, job: int) -> bytes | None:
        """Return the payload that a checkpoint's whole valid chunks give a job; any thread."""
        return self._found(self._lib.wd_chunks_payload, chunks, job)

    def _found(self, find: Callable[..., int], data: Bytes, job: int) -> bytes | None:
        view = self._ffi.from_buffer(data)
        start, size = self._ffi.new("const uint8_t **"), self._ffi.new("size_t *")
        status = find(view, len(view), job, start, size)
        if status == self._lib.WD_EGONE:
            return None
        self._need(status, f"looking for the payload of job {job}")
        return bytes(self._ffi.buffer(start[0], size[0]))
