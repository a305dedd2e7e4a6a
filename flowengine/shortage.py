"""What a machine can run out of, in words: disk, memory, file descriptors, processes."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from flowengine.errors import FlowError, OutOfBudgetError

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space, or name a run directory on another disk",
    errno.EDQUOT: "the disk quota is used up; free some space, or name another run directory",
    errno.EFBIG: "a file may not become this large; raise the limit with `ulimit -f`",
    errno.EMFILE: "too many files are open in one process; raise the limit with `ulimit -n`",
    errno.ENFILE: "too many files are open on this machine; raise fs.file-max",
    errno.ENOMEM: "there is not enough memory; lower capacity= or samples=, or use fewer replicas",
}
_NUMBER = re.compile(r"\(os error (\d+)\)")
_MEMORY = ("can't allocate memory", "out of memory")


def describe_shortage(error: BaseException) -> str | None:
    """What has run out and what to do, if that is what this error tells; else None.

    Also for errors of libraries that tell it in their text alone: safetensors, torch.
    """
    if isinstance(error, FlowError):
        return None
    if isinstance(error, MemoryError):
        return _REMEDIES[errno.ENOMEM]
    if isinstance(error, OSError):
        return _REMEDIES.get(error.errno or 0)
    try:
        text = str(error)
    except Exception:  # An exception of the user's may have no text to give.
        return None
    if any(told in text.lower() for told in _MEMORY):
        return _REMEDIES[errno.ENOMEM]
    found = _NUMBER.search(text)
    return _REMEDIES.get(int(found[1])) if found else None


@contextmanager
def naming_shortages(doing: str) -> Iterator[None]:
    """Within, an error that tells of a shortage becomes an OutOfBudgetError, which says at what;
    others pass."""
    try:
        yield
    except Exception as error:
        told = describe_shortage(error)
        if told is None:
            raise
        raise OutOfBudgetError(f"{doing}: {told} ({error})") from error
