"""How much of a mapped file is in this process's memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SMAPS = Path("/proc/self/smaps")
on_linux = pytest.mark.skipif(not SMAPS.exists(), reason="the kernel tells it on Linux alone")


def resident_bytes(path: Path) -> int:
    """Return the bytes of all mappings of a file, or of files in a folder, that are resident."""
    size, inside = 0, False
    for line in SMAPS.read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = str(path) in line
        elif inside and line.startswith("Rss:"):
            size += int(line.split()[1]) << 10
    return size
