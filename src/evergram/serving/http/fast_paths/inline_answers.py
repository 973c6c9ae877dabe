"""Around the thread pool: a request of a few ids is answered in the event loop's own thread.

Looking up a few rows in this process's memory takes less time than handing them to a worker. So
does looking up the vectors of a few texts; those that must be encoded are then handed on once.
"""

from __future__ import annotations

from collections.abc import Callable

# Bytes of a body that may be answered inline.
QUICK = 4096


def is_quick(size: int, in_memory: bool, content: Callable[[], bytes | bytearray]) -> bool:
    """Return whether a request for embeddings names a few ids of stores in memory, or texts.

    Features are encoded, which takes longer.

    Args:
        size: bytes of the body.
        in_memory: whether the stores' rows are in this process's memory.
        content: returns the body; called for a small one only.
    """
    if size > QUICK or not in_memory:
        return False
    body = content()
    # JSON may write the letters of "features" as \u0066, too.
    return b"features" not in body and b"\\u00" not in body
