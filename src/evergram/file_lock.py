"""Locks between processes: files that one process at a time holds."""

from __future__ import annotations

import errno
from functools import partial
from typing import Any

import filelock


class FileLock(filelock.FileLock):
    """filelock's lock, which says where the file system has no locks."""

    def acquire(self, *args: Any, **options: Any) -> Any:
        """Acquire the lock. Raises: Timeout: another process holds it. OSError: it cannot be."""
        try:
            return super().acquire(*args, **options)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK):
                raise
            # The system says "Function not implemented".
            why = "this file system has no locks"
            raise OSError(error.errno, why, self.lock_file) from error


# Without locks the library by itself would wait for a file that nobody removes, as if another
# process held the lock.
file_lock: partial[FileLock] = partial(FileLock, fallback_to_soft=False)
