"""Memory that ranking takes beside the embeddings and the pairs, by the size of the catalogue.

Each ranking runs in a process of its own, whose peak of resident memory is set back just before
(Linux only). The limit, measured in the same run, also in a process of its own, as freed memory may
stay with a process, is the bare product of blocks: what any ranking needs that holds so many scores
at once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from evergram.evaluation.ranking import Relevance, rank_metrics
from evergram.evaluation.score_blocks import SCORE_BYTES, ScoreBlocks

# Queries by the number of candidates; a million is left to fewer, as they take minutes.
SIZES, DIM = {10_000: 20_000, 100_000: 20_000, 1_000_000: 2_000}, 32
TINY = {100: 200, 1_000: 200}
# Pairs of a query that are masked, and that are ranked.
SEEN, HELD = 25, 2
# What is measured, in the order of `Peaks`.
KINDS = ("ranking", "product")
MIB = 1 << 20


@dataclass(frozen=True)
class Peaks:
    """Peaks of resident memory above that before, in bytes.

    Args:
        ranking: of `rank_metrics`.
        product: of the bare product of as large blocks.
    """

    queries: int
    candidates: int
    ranking: int
    product: int

    @property
    def matrix(self) -> int:
        """Bytes of the whole matrix of scores."""
        return 4 * self.queries * self.candidates


def measure(sizes: Mapping[int, int] = SIZES, dim: int = DIM) -> list[Peaks]:
    """Return the peaks for each number of candidates."""
    return [
        Peaks(
            queries, candidates, *(_in_a_process(kind, queries, dim, candidates) for kind in KINDS)
        )
        for candidates, queries in sizes.items()
    ]


def tiny() -> list[Peaks]:
    return measure(TINY, 4)


def table(peaks: list[Peaks]) -> str:
    """Return a row for each size."""
    lines = [
        "| candidates | queries | all scores at once | bare product of blocks | ranking | ranking "
        "over the bare product | over a block's 32 MiB | over all scores |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in peaks:
        ratios = (each.product, SCORE_BYTES, each.matrix)
        cells = [f"{value / MIB:,.1f} MiB" for value in (each.matrix, each.product, each.ranking)]
        cells += [f"{each.ranking / value:.2g}" if value else "–" for value in ratios]
        lines.append(f"| {each.candidates:,} | {each.queries:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def peak(kind: str, queries: int, dim: int, candidates: int) -> int:
    """Return the peak of one of `KINDS` over random embeddings, in this process, in bytes."""
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(queries, dim, generator=draw)
    candidate = torch.randn(candidates, dim, generator=draw)
    rows = torch.arange(queries)
    seen, held = (torch.randint(candidates, (n * queries,), generator=draw) for n in (SEEN, HELD))
    pairs = rows.repeat_interleave(HELD), held, rows.repeat_interleave(SEEN), seen
    relevance = Relevance.of(*pairs)

    def product(some: Tensor) -> None:
        blocks = ScoreBlocks(candidate)
        for part in torch.split(some, blocks.rows):
            for _ in blocks.of(part):
                pass

    # One small call, so that what libraries allocate once is not counted.
    few = torch.arange(2)
    if kind == "product":
        product(query[:2])
        # Some blocks are enough, as each is in the memory of the one before.
        return _peak_of(lambda: product(query[: 4 * ScoreBlocks(candidate).rows]))
    rank_metrics(query[:2], candidate[:100], Relevance.of(few, few, few, few + 1))
    return _peak_of(lambda: rank_metrics(query, candidate, relevance))


def _peak_of(action: Callable[[], object]) -> int:
    """Return by how many bytes the resident memory grows at most while something runs."""
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the present
    before = _memory("VmRSS")
    action()
    return max(0, _memory("VmHWM") - before)


def _memory(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def _in_a_process(kind: str, queries: int, dim: int, candidates: int) -> int:
    sizes = [str(size) for size in (queries, dim, candidates)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ranking_memory", kind, *sizes],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return int(done.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ranking_memory", description=__doc__
    )
    parser.add_argument("kind", choices=KINDS)
    for name in ("queries", "dim", "candidates"):
        parser.add_argument(name, type=int)
    print(peak(**vars(parser.parse_args())))
