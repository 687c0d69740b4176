"""INFO: what the server tells about itself, in sections of ``name:value`` lines.

The form is Redis's, and so are the names of what means the same, because client libraries and
dashboards look for them (``loading``, ``redis_version``, ``connected_clients``). Units are in the
names of the rest.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

Value = int | float | str
Section = Mapping[str, Value]

# The Redis whose answers to HELLO, CLIENT and COMMAND ours follow; clients switch on this number.
REDIS_VERSION: Final = "7.2.0"
_PAGE_BYTES: Final = 4096


def render(sections: Mapping[str, Section], wanted: Iterable[str] = ()) -> str:
    """Return INFO's text.

    Args:
        sections: by title, in the order to show them.
        wanted: titles in lower case; none = all. Unknown ones show nothing, as in Redis.
    """
    titles = frozenset(wanted)
    blocks: list[str] = []
    for title, fields in sections.items():
        if titles and title.lower() not in titles:
            continue
        lines = [f"# {title}", *(f"{name}:{_shown(value)}" for name, value in fields.items())]
        blocks.append("".join(f"{line}\r\n" for line in lines))
    return "\r\n".join(blocks)


def _shown(value: Value) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def pairs(values: Mapping[str, Value]) -> str:
    """Return ``a=1,b=2``: several numbers that belong together on one line."""
    return ",".join(f"{name}={_shown(value)}" for name, value in values.items())


def shown_bytes(size_bytes: int) -> str:
    """Return a size as Redis shows it: ``512.00M``."""
    size = float(size_bytes)
    for unit in ("B", "K", "M", "G"):
        if size < 1024:
            return f"{size:.0f}B" if unit == "B" else f"{size:.2f}{unit}"
        size /= 1024
    return f"{size:.2f}T"


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Return the memory that the kernel has given this process; 0 where it does not tell."""
    try:
        return int(statm.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
