"""The few file calls that ``wal`` makes: the only file here that touches a file system.

The C writer reaches the disk through the ``wd_io`` table that :attr:`Disk.io` names, Python through
the methods; both see one disk, a real or a simulated one.
"""

import fcntl
import os
import stat
import struct
from contextlib import suppress
from typing import Final, Protocol

from wal import frame

BTRFS_MAGIC: Final = 0x9123683E
_FLAGS: Final = struct.Struct("l")  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_NOCOW_FL of linux/fs.h
_GET_FLAGS: Final = 0x80006601 | _FLAGS.size << 16
_SET_FLAGS: Final = 0x40006602 | _FLAGS.size << 16
_NO_COPY: Final = 0x00800000
NETWORK_MAGICS: Final = {
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x517B: "smb",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x5346414F: "afs",
    0x73757245: "coda",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
}


class Disk(Protocol):
    """A disk. Every call raises OSError when it fails; descriptors are plain numbers."""

    @property
    def io(self) -> int:
        """Address of the ``wd_io`` table of the same disk; valid as long as this object."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in no order."""
        ...

    def folder_mode(self, folder: str) -> int:
        """Return the permission bits of a folder; NotADirectoryError when it is none."""
        ...

    def is_own(self, folder: str) -> bool:
        """Return True when this process's user owns the folder."""
        ...

    def make_folder(self, folder: str) -> None:
        """Make a folder with mode 0700."""
        ...

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file; create makes it (mode 0600) when it is absent."""
        ...

    def close(self, fd: int) -> None:
        """Close it."""
        ...

    def size(self, fd: int) -> int:
        """Return the file's length in bytes."""
        ...

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Return up to size_bytes from offset; fewer only at the end of the file."""
        ...

    def pwrite(self, fd: int, data: frame.Bytes, offset: int) -> None:
        """Write all of data at offset."""
        ...

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Give the file another length; what is beyond it is gone."""
        ...

    def datasync(self, fd: int) -> None:
        """Make the file's data durable."""
        ...

    def drop_cache(self, fd: int) -> None:
        """Forget clean cached pages, so that the next read asks the device."""
        ...

    def dirsync(self, folder: str) -> None:
        """Make the names in a folder durable."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file."""
        ...

    def lock(self, path: str) -> int | None:
        """Return a descriptor that holds the lock on a file, None when somebody else has it."""
        ...

    def locked(self, path: str) -> bool:
        """Return True when somebody holds the lock; takes nothing."""
        ...

    def fs_magic(self, path: str) -> int:
        """Return the kernel's number of the file system."""
        ...

    def free_bytes(self, path: str) -> int:
        """Return the room that is left on the file system for this process's user."""
        ...

    def overwrite_in_place(self, folder: str) -> None:
        """Let files that are made in a folder from now on be overwritten where they lie."""
        ...


class RealDisk:
    """The kernel's file calls."""

    __slots__ = ()

    @property
    def io(self) -> int:
        """Address of the table of the kernel's calls."""
        return frame.real_io()

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        return os.listdir(folder)

    def folder_mode(self, folder: str) -> int:
        """Return the permission bits of a folder."""
        mode = os.stat(folder).st_mode
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(folder)
        return stat.S_IMODE(mode)

    def is_own(self, folder: str) -> bool:
        """Return True when this process's user owns the folder."""
        return os.stat(folder).st_uid == os.geteuid()

    def make_folder(self, folder: str) -> None:
        """Make a folder with mode 0700."""
        os.mkdir(folder, 0o700)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file, never through a symbolic link."""
        flags = os.O_RDWR if write else os.O_RDONLY
        flags |= os.O_CREAT if create else 0
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def size(self, fd: int) -> int:
        """Return the file's length."""
        return os.fstat(fd).st_size

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Return up to size_bytes from offset."""
        data = os.pread(fd, size_bytes, offset)
        if not data or len(data) == size_bytes:
            return data
        parts = [data]  # a short read is not the end until a read says so
        got = len(data)
        while got < size_bytes and (data := os.pread(fd, size_bytes - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pwrite(self, fd: int, data: frame.Bytes, offset: int) -> None:
        """Write all of data."""
        view = memoryview(data)
        while view:
            put = os.pwrite(fd, view, offset)
            view = view[put:]
            offset += put

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Give the file another length."""
        os.ftruncate(fd, size_bytes)

    def datasync(self, fd: int) -> None:
        """Make the file's data durable."""
        os.fdatasync(fd)

    def drop_cache(self, fd: int) -> None:
        """Forget clean cached pages."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def dirsync(self, folder: str) -> None:
        """Make the names in a folder durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def lock(self, path: str) -> int | None:
        """Return a descriptor with an exclusive flock().

        flock and not fcntl: an fcntl lock is dropped when any descriptor of the file closes.
        """
        fd = self.open(path, write=True, create=True)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        return fd

    def locked(self, path: str) -> bool:
        """Return True when somebody holds the lock."""
        with suppress(FileNotFoundError):
            fd = self.open(path)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(fd)
        return False

    def fs_magic(self, path: str) -> int:
        """Return the kernel's number of the file system."""
        return frame.fs_magic(path)

    def free_bytes(self, path: str) -> int:
        """Return the room that is left on the file system."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def overwrite_in_place(self, folder: str) -> None:
        """Set btrfs's flag for it (chattr +C), which files and folders made in it inherit.

        Where it cannot be set nothing is lost but that: the log may end on a full disk.
        """
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                (flags,) = _FLAGS.unpack(fcntl.ioctl(fd, _GET_FLAGS, bytes(_FLAGS.size)))
                if not flags & _NO_COPY:
                    fcntl.ioctl(fd, _SET_FLAGS, _FLAGS.pack(flags | _NO_COPY))
        finally:
            os.close(fd)
