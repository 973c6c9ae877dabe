"""What the system refused, and what to do about it."""

from __future__ import annotations

import errno
import os

# What to do about an error of the system.
_REMEDIES = {
    errno.ENOSPC: "free some space, or name a place on another disk",
    errno.EDQUOT: "free some space, or name a place on another disk",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f), or name a place on another disk",
    errno.EACCES: "let this user read and write there, or name another place",
    errno.EPERM: "let this user read and write there, or name another place",
    errno.EROFS: "name a place that can be written to",
    errno.ENOENT: "make it first, or correct the name",
    errno.EEXIST: "remove it, or name another place",
    errno.ENOTDIR: "a file stands where a folder is needed: remove it, or name another place",
    errno.EISDIR: "a folder stands where a file is needed: name a file",
    errno.ENOTEMPTY: "empty the folder, or name another place",
    errno.ELOOP: "these links lead to each other: name the file itself",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EINVAL: "name a file or a folder of this machine's disk",
    errno.ENOSYS: "name a place on another, such as a disk of this machine",
    errno.ENOLCK: "name a place on another, such as a disk of this machine",
    errno.EBUSY: "wait until no other program uses it, or name another place",
}


def reason_and_remedy(error: OSError, meanwhile: str = "") -> str:
    """Return why the system refused and what to do, without a full stop.

    Args:
        meanwhile: said in between, such as "the lineage is as it was".
    """
    # Its number is in the text of an error of Arrow only.
    number = error.errno or next(
        (n for n in _REMEDIES if os.strerror(n).lower() in str(error).lower()), 0
    )
    reason = error.strerror or (os.strerror(number) if number else str(error))
    remedy = _REMEDIES.get(number, "see that this file can be read and written, and try again")
    if meanwhile:
        return f"{reason.rstrip('.')}; {meanwhile}. {remedy[0].upper()}{remedy[1:]}"
    return f"{reason.rstrip('.')}; {remedy}"
