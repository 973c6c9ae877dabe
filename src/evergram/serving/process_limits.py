"""Limits that the operating system sets on a process that serves."""

from __future__ import annotations

import logging
from contextlib import suppress

log: logging.Logger = logging.getLogger("evergram.serving")

# Files that a process needs beside its connections: stores, logs, modules.
FILES = 256


def allowed_connections(wanted: int) -> int:
    """Return how many connections the process may hold, at most `wanted`; each takes a file.

    The process's limit of open files is raised as far as the system allows. A process at that limit
    accepts no connection at all, and closes none, so a smaller number is logged and returned.
    """
    try:
        import resource
    except ImportError:  # systems without such a limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted + FILES
    if soft != resource.RLIM_INFINITY and soft < files:
        more = files if hard == resource.RLIM_INFINITY else min(files, hard)
        # Some systems enforce a limit below the one that they report.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    allowed = max(1, soft - FILES)
    log.warning(
        "This process may open %d files, so it takes %d connections at once, not %d; "
        "'ulimit -n %d' makes room for them.",
        soft,
        allowed,
        wanted,
        files,
    )
    return allowed
