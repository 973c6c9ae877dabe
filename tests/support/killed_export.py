"""`python -m tests.support.killed_export COMMAND …`: an evergram command whose last process dies.

It is killed while it writes its second shard; the others have written theirs by then, or will.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evergram.cli import main
from evergram.collectives import RANK, WORLD
from evergram.vector_files import shards
from evergram.vector_files.base import Block


def kill_in_second_shard() -> None:
    module: Any = shards
    whole, calls = module.write_embeddings, [0]

    def write(
        path: Path, blocks: Iterable[Block], provenance: Mapping[str, str] | None = None
    ) -> int:
        calls[0] += 1
        if calls[0] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        rows: int = whole(path, blocks, provenance)
        return rows

    module.write_embeddings = write


if __name__ == "__main__":
    if os.environ.get(RANK) == str(int(os.environ[WORLD]) - 1):
        kill_in_second_shard()
    sys.argv[0] = "evergram"
    main()
