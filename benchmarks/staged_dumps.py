"""Memory and seconds of a MediaWiki dump that is prepared, whose links stay on disk, beside one
that is loaded, by the number of links between as many pages.

    python -m benchmarks staged-dumps
    python -m benchmarks.staged_dumps 1e6 1e8
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.dumps import write
from benchmarks.preparing import watched

SIZES, PAGES = (5_000_000, 20_000_000), 50_000
KINDS = ("prepared", "loaded")


@dataclass(frozen=True)
class Reading:
    """A dump that was read in a process of its own.

    Args:
        links: rows of pagelinks.
        kind: one of KINDS.
        seconds: by the clock.
        growth: bytes of anonymous memory at most, beyond those of the process before.
    """

    links: int
    kind: str
    seconds: float
    growth: int


def measure(sizes: Sequence[int] = SIZES, pages: int = PAGES) -> list[Reading]:
    """Read dumps of so many links between the same number of pages, in both ways."""
    readings = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as there:
            for name, count in (
                ("page", pages),
                ("redirect", pages // 4),
                ("linktarget", pages * 5 // 4),
                ("pagelinks", size),
                ("categorylinks", pages * 3),
            ):
                write(Path(there), name, count, pages)
            for kind in KINDS:
                command = [sys.executable, "-m", "benchmarks.staged_dumps", kind, there]
                root = Path(__file__).parents[1]
                done = subprocess.run(
                    [*command, str(size)], cwd=root, check=True, stdout=subprocess.PIPE, text=True
                )
                readings.append(Reading(**json.loads(done.stdout)))
    return readings


def tiny() -> list[Reading]:
    return measure((2_000, 4_000), 200)


def table(readings: Sequence[Reading]) -> str:
    """Return a row for each size and kind."""
    lines = ["| links | the dump is | seconds | growth of anonymous memory |", "|---|---|---|---|"]
    for each in readings:
        growth = f"{each.growth / (1 << 20):,.0f} MiB"
        lines.append(f"| {each.links:,} | {each.kind} | {each.seconds:.1f} | {growth} |")
    return "\n".join(lines)


def read(kind: str, folder: Path, links: int) -> Reading:
    """Read a dump in this process."""
    from benchmarks.preparing import bytes_of
    from evergram.data.prepared.prepare import prepare
    from evergram.data.prepared.settings import PrepareSettings
    from evergram.data.wikipedia.dump import load_mediawiki

    settings = PrepareSettings(kind="mediawiki", memory="256MiB", threads=1)
    before = bytes_of("RssAnon")
    if kind == "prepared":
        seconds, most = watched(lambda: prepare(folder, folder / "out", settings))
    else:
        seconds, most = watched(lambda: load_mediawiki(folder))
    return Reading(links, kind, seconds, most - before)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in KINDS:
        print(json.dumps(asdict(read(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))))
    else:
        print(table(measure([int(float(text)) for text in sys.argv[1:]] or SIZES)))
