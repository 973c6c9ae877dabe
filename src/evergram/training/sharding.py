"""A factorization whose tables are divided by rows among the processes of one training.

All processes read rows together: in a step each its own, and of a whole table all alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from evergram.atomic_files import make_folder
from evergram.collectives import ALONE, Collectives
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder, Scene
from evergram.encoders.factorization import Factorization
from evergram.encoders.features import SIDES, EntityInputs, Schema
from evergram.encoders.mapped_tensors import mapped_zeros
from evergram.encoders.row_encoder import RowEncoder
from evergram.errors import TrainingError
from evergram.training.distributed import ProcessCollectives
from evergram.training.optimizers import RowAdagrad
from evergram.training.resuming import write_tensors

# Rows that are drawn or read at once. torch draws sixteen numbers at a time and redraws the last
# sixteen of a remainder; a block of this size ends between two draws for any D.
BLOCK = 65_536
# Marks, among the parameters of the best epoch, that each process keeps its rows of it.
KEPT = "encoder|shards"
T = TypeVar("T")


def shard_of(size: int, rank: int, processes: int) -> slice:
    """Return which of `size` rows a process holds: ⌈size/processes⌉ each, the last ones fewer,
    perhaps none."""
    each = -(-size // processes)
    return slice(min(size, rank * each), min(size, (rank + 1) * each))


def draw_shard(
    shape: tuple[int, int], scale: float, generator: torch.Generator, own: slice
) -> Tensor:
    """Return the rows `own` of a table [N, D] of N(0, scale²) numbers: those that one draw of the
    whole table would give. The others are drawn in blocks, and dropped."""
    size, dim = shape
    kept = torch.empty(own.stop - own.start, dim)
    ends = [*range(BLOCK, size - BLOCK + 1, BLOCK), size]
    for start, end in pairwise([0, *ends]):
        block = nn.init.normal_(torch.empty(end - start, dim), std=scale, generator=generator)
        first, last = max(start, own.start), min(end, own.stop)
        if first < last:
            kept[first - own.start : last - own.start] = block[first - start : last - start]
    return kept


class ShardedTable(nn.Embedding):
    """A table [N, D] of which this process holds the rows `own`, as `weight` [n, D].

    A `state_dict` has no rows: `ShardedFactorization.save` keeps them.

    Args:
        shape: N and D of the whole table.
        scale: standard deviation of the initial rows.
        generator: draws them; they are those of a table in one process.
    Attributes:
        size: N.
        best: a copy of `weight` at the best epoch so far; None before one.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        scale: float,
        generator: torch.Generator,
        collectives: Collectives,
    ) -> None:
        self.own: slice[Any, Any, Any] = shard_of(shape[0], collectives.rank, collectives.size)
        rows = draw_shard(shape, scale, generator, self.own)
        super().__init__(len(rows), shape[1], sparse=True, _weight=rows)
        self.size: int = shape[0]
        self.collectives = collectives
        self.best: Tensor | None = None
        self.weight.is_shard = True  # type: ignore[attr-defined]

    def forward(self, ids: Tensor) -> Tensor:
        """Return rows [B, D] for this process's ids [B], each in 0 … N − 1; differentiable.

        All processes call it together, each with ids of its own.
        """
        if self.collectives.size == 1:
            return functional.embedding(ids, self.weight, sparse=True)
        rows: Tensor = _LookUp.apply(self.weight, ids, self)  # type: ignore[no-untyped-call]
        return rows

    @torch.no_grad()
    def rows_alike(self, ids: Tensor) -> Tensor:
        """Return rows [B, D] for ids [B] that are the same in every process, without gradient;
        zeros for the id −1."""
        return self.collectives.sum(self.own_rows(ids), "tables read")

    def own_rows(self, ids: Tensor) -> Tensor:
        """Return rows [B, D] for ids [B], zeros where another process has the row."""
        inside = (ids >= self.own.start) & (ids < self.own.stop)
        rows = self.weight.new_zeros(len(ids), self.weight.shape[1])
        rows[inside] = self.weight.detach()[ids[inside] - self.own.start]
        return rows

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Save nothing."""

    def _load_from_state_dict(self, *args: Any) -> None:
        """Load nothing."""


class _LookUp(torch.autograd.Function):
    """Rows from the processes that hold them, and gradients back to these."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, table: ShardedTable) -> Tensor:
        collectives = table.collectives
        assert isinstance(collectives, ProcessCollectives)
        distinct, places = torch.unique(ids, return_inverse=True)
        mine = torch.tensor([len(distinct)], device=ids.device)
        most = int(collectives.rows(mine, collectives.size, "counts").max())
        padded = torch.full((most,), -1, device=ids.device)
        padded[: len(distinct)] = distinct
        everyone = collectives.rows(padded, most * collectives.size, "tables")
        rows = collectives.own_sums(table.own_rows(everyone), "tables")
        ctx.table, ctx.most, ctx.shape = table, most, weight.shape
        ctx.save_for_backward(places, everyone)
        return rows[places]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        places, everyone = ctx.saved_tensors
        collectives, own = ctx.table.collectives, ctx.table.own
        mine = grad.new_zeros(ctx.most, grad.shape[1]).index_add_(0, places, grad)
        values = collectives.rows(mine, len(everyone), "tables")
        inside = (everyone >= own.start) & (everyone < own.stop)
        indices = (everyone[inside] - own.start)[None]
        sparse = torch.sparse_coo_tensor(indices, values[inside], ctx.shape, check_invariants=False)
        return sparse, None, None


class ShardedFactorization(Factorization):
    """A factorization of which each process holds N/P rows of each side, and of their optimiser.

    Args:
        generator: draws the same rows as for a factorization in one process.
        folder: where the first process maps all embeddings from files; None: temporary files.
    Attributes:
        optimizers: whose numbers of the tables' rows `save` keeps.
    """

    def __init__(
        self,
        schema: Schema,
        options: Mapping[str, Any],
        generator: torch.Generator,
        collectives: Collectives,
        folder: Path | None = None,
    ) -> None:
        RowEncoder.__init__(self, schema, options["dim"], options.get("normalize", False))
        for side in SIDES:
            shape = max(1, len(schema.ids(side))), self.dim
            table = ShardedTable(shape, options.get("scale", 0.1), generator, collectives)
            setattr(self, side, table)
        self.collectives = collectives
        self.folder = folder
        self.optimizers: Sequence[torch.optim.Optimizer] = ()

    @property
    def tables(self) -> dict[str, ShardedTable]:
        """The table of each side."""
        return {side: getattr(self, side) for side in SIDES}

    def blocks(self, side: str, inputs: EntityInputs, batch_size: int = BLOCK) -> Iterator[Tensor]:
        """Iterate over all embeddings in blocks [b, D], without gradient; in all processes
        together."""
        table = self.tables[side]
        for ids in torch.split(inputs.ids, batch_size):
            yield self.normalized(table.rows_alike(ids.to(self.device)))

    blocks_of_loss = blocks

    def embed_all(self, what: Corpus | Scene) -> dict[str, Tensor]:
        """Return all embeddings of each side, [N, D]: in the first process mapped from files, on
        the device "meta" in others. All processes call it."""
        scene = what if isinstance(what, Scene) else self.read(what)
        return {
            side: self._gathered(self.blocks(side, scene.inputs[side]), scene.size(side))
            for side in SIDES
        }

    def _gathered(self, blocks: Iterable[Tensor], size: int) -> Tensor:
        if self.collectives.is_first:
            return mapped_rows(blocks, (size, self.dim), self.folder)
        for _ in blocks:  # the first process's have this one's rows
            pass
        return torch.empty(size, self.dim, device="meta")

    def keep(self) -> dict[str, Tensor]:
        """Copy this process's rows as those of the best epoch. Return a mark of it."""
        for table in self.tables.values():
            rows = table.weight.detach()
            table.best = rows.clone() if table.best is None else table.best.copy_(rows)
        return {KEPT: torch.ones(1)}

    def parts(self) -> dict[str, tuple[ShardedTable, Tensor]]:
        """Return, by name, each table with a tensor of its rows: this process's numbers."""
        parts = {}
        for side, table in self.tables.items():
            parts[f"{side}.weight"] = table, table.weight.detach()
            if table.best is not None:
                parts[f"{side}.best"] = table, table.best
            for optimizer in self.optimizers:
                if isinstance(optimizer, RowAdagrad) and table.weight in optimizer.state:
                    parts[f"{side}.sum"] = table, optimizer.state[table.weight]["sum"]
        return parts

    def save(self, folder: Path) -> None:
        """Write this process's rows, optimiser and best epoch to a folder, a file each, as a file
        is copied before it is written; all processes call it.

        Raises: TrainingError: a file cannot be written.
        """
        for name, (table, rows) in self.parts().items():
            path = folder / f"{name}.{self.collectives.rank:05d}.safetensors"
            write_tensors(path, {name: rows}, {"start": str(table.own.start)})
        self.collectives.sum(torch.zeros(1, device=self.device), "counts")  # all have written

    def load(self, folder: Path) -> None:
        """Read this process's rows of what any number of processes have written to a folder.

        Raises: TrainingError: the folder does not have them.
        """
        for side, table in self.tables.items():
            best = any(folder.glob(f"{side}.best.*"))
            table.best = torch.zeros_like(table.weight.detach()) if best else None
        try:
            for name, (table, rows) in self.parts().items():
                read_rows(folder, name, table.own, rows)
        except (OSError, SafetensorError) as error:
            raise TrainingError(
                f"The rows of divided tables cannot be read in {folder} ({error}); remove it with "
                "the checkpoint beside it. All processes must see the same folder, so that several "
                "machines need a shared disk."
            ) from error

    def gathered(self, *, best: bool) -> GatheredFactorization:
        """Return the encoder to publish, with the kept rows if `best`; all processes call it."""
        if best:
            with torch.no_grad():
                for table in self.tables.values():
                    assert table.best is not None
                    table.weight.copy_(table.best)
                    table.best = None
        whole = GatheredFactorization(self.schema, self.dim, normalize=self.normalize)
        whole.folder = self.folder
        for side, table in self.tables.items():
            ids = torch.split(torch.arange(table.size, device=self.device), BLOCK)
            blocks = (table.rows_alike(some).cpu() for some in ids)
            whole.set_rows(side, self._gathered(blocks, table.size))
        return whole


class GatheredFactorization(Factorization):
    """The factorization that is published: its tables are mapped from files in `folder` in the
    first process, and have only shapes in others."""

    folder: Path | None = None

    def __init__(self, schema: Schema, dim: int, *, normalize: bool = False) -> None:
        with torch.device("meta"):
            super().__init__(schema, dim, generator=torch.Generator("cpu"), normalize=normalize)

    def set_rows(self, side: str, rows: Tensor) -> None:
        """Make rows [N, D] a side's table."""
        table: nn.Embedding = self.query if side == "query" else self.candidate
        table.weight = nn.Parameter(rows, requires_grad=False)

    def embed_all(self, what: Corpus | Scene) -> dict[str, Tensor]:
        """Return all embeddings, [N, D] of each side: the tables themselves for the corpus that the
        encoder was trained on, else mapped from files; on the device "meta" in other processes."""
        scene = what if isinstance(what, Scene) else self.read(what)
        return {side: self._all(side, scene) for side in SIDES}

    def _all(self, side: str, scene: Scene) -> Tensor:
        table: nn.Embedding = self.query if side == "query" else self.candidate
        inputs = scene.inputs[side]
        if table.weight.is_meta:
            return table.weight.new_empty(len(inputs), self.dim)
        if inputs.in_order and not self.normalize and len(inputs) == len(table.weight):
            return table.weight.detach()
        return mapped_rows(self.blocks(side, inputs), (len(inputs), self.dim), self.folder)


def read_rows(folder: Path, name: str, own: slice, rows: Tensor) -> None:
    """Read the rows `own` of a whole tensor, of which each file of its name in a folder has some.

    Raises: OSError, SafetensorError: there is no file, or it cannot be read.
    """
    paths = sorted(folder.glob(f"{name}.*"))
    if not paths:
        raise FileNotFoundError(f"it has no {name}")
    for path in paths:
        with safe_open(path, framework="pt") as file:
            written, start = file.get_slice(name), int(file.metadata()["start"])
            first = max(start, own.start)
            last = min(start + written.get_shape()[0], own.stop)
            if first < last:
                rows[first - own.start : last - own.start] = written[first - start : last - start]


def mapped_rows(blocks: Iterable[Tensor], shape: tuple[int, int], folder: Path | None) -> Tensor:
    """Return blocks [b, D] as one tensor of a shape [N, D] that is mapped from a file without a
    name.

    Args:
        folder: on the disk that has room for it; None: temporary files.
    Raises: TrainingError: the disk has no room.
    """
    place = Path(tempfile.gettempdir()) if folder is None else folder
    make_folder(place)
    whole: Tensor | None = None
    start = 0
    for block in blocks:
        if whole is None:
            whole = mapped_zeros(shape, place, block.dtype)
        whole[start : start + len(block)] = block
        start += len(block)
    return torch.zeros(shape) if whole is None else whole


def measured_together(
    encoder: Encoder, measure: Callable[[Collectives], T], together: Collectives
) -> T:
    """Return what `measure` makes of an encoder's embeddings: all processes share the work, but the
    first does it alone where it alone has them."""
    if isinstance(encoder, ShardedFactorization | GatheredFactorization):
        answer: T = together.from_first(lambda: measure(ALONE))
        return answer
    return measure(together)
