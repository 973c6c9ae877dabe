"""What a row of a table costs in memory, from training to publication, and where it is mapped."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from benchmarks import large_run

# Queries and candidates; pairs are one and a quarter of both.
SIZES = ((100_000, 20_000), (1_000_000, 200_000))
DIMS = (32, 64)
# Where tables are, as `training.tables` says.
PLACES = ("memory", "mapped")


@dataclass(frozen=True)
class RowMemory:
    """The anonymous memory of `evergram train` at its peak, with one number of dims.

    Args:
        seconds: that the larger run took, as a whole.
        entities: of the smaller and of the larger corpus; `peaks` in bytes of both.
    """

    dim: int
    entities: tuple[int, int]
    peaks: tuple[int, int]
    tables: str
    seconds: float

    @property
    def row(self) -> float:
        """Bytes that a row adds."""
        return (self.peaks[1] - self.peaks[0]) / (self.entities[1] - self.entities[0])


def measure(
    sizes: tuple[tuple[int, int], tuple[int, int]] = SIZES, dims: tuple[int, ...] = DIMS
) -> list[RowMemory]:
    """Train and publish factorizations of two sizes, for each number of dims."""
    entities = sum(sizes[0]), sum(sizes[1])
    rows = []
    for dim, tables in product(dims, PLACES):
        small, large = (_training(*size, dim, tables) for size in sizes)
        peaks = small.anonymous, large.anonymous
        rows.append(RowMemory(dim, entities, peaks, tables, large.seconds))
    return rows


def tiny() -> list[RowMemory]:
    return measure(((2_000, 1_000), (4_000, 2_000)), (8,))


def table(rows: list[RowMemory]) -> str:
    lines = [
        "| dims | tables | entities | peak MiB | bytes a row | of it the row's own numbers "
        "| seconds of the larger run |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in rows:
        sizes = " and ".join(f"{n:,}" for n in each.entities)
        peaks = " and ".join(f"{p / 2**20:,.0f}" for p in each.peaks)
        lines.append(
            f"| {each.dim} | {each.tables} | {sizes} | {peaks} | {each.row:,.0f} | {4 * each.dim} "
            f"| {each.seconds:.1f} |"
        )
    return "\n".join(lines)


def _training(queries: int, candidates: int, dim: int, tables: str) -> large_run.Phase:
    """Return the training of a run with one and a quarter pairs an entity."""
    pairs = (queries + candidates) * 5 // 4
    run = large_run.measure(pairs, queries, candidates, dim=dim, tables=tables)
    return next(phase for phase in run.phases if phase.name.startswith("train"))
