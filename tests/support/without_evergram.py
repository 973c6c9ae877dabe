"""A Python without Evergram, for what is written for other programs."""

from __future__ import annotations

import subprocess
import sys


def elsewhere(code: str, *arguments: object) -> None:
    """Run code, with `sys` imported, in a Python that cannot import Evergram."""
    barred = "import sys; sys.modules['evergram'] = None\n"
    command = [sys.executable, "-I", "-c", barred + code, *map(str, arguments)]
    subprocess.run(command, check=True, timeout=300)
