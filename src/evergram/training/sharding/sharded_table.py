"""A table of which each process holds an equal part of the rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from evergram.collectives import Collectives
from evergram.errors import TrainingError
from evergram.training.distributed.process_group import MESHES, ProcessCollectives

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Rows that are drawn or read at once. torch draws sixteen numbers at a time, and the last sixteen
# anew where some are left over; blocks of so many rows end between two draws whatever D is.
BLOCK = 65_536


def shard_of(size: int, rank: int, processes: int) -> slice:
    """Return which of `size` rows a process holds, as torch.distributed.tensor's `Shard(0)` has it:
    ⌈size/processes⌉ each, the last ones fewer, perhaps none."""
    each = -(-size // processes)
    return slice(min(size, rank * each), min(size, (rank + 1) * each))


def draw_shard(
    shape: tuple[int, int], scale: float, generator: torch.Generator, own: slice
) -> Tensor:
    """Return some rows of a table [N, D] of N(0, scale²) numbers: those that one draw of the whole
    table would give. The others are drawn in blocks, and dropped.

    Args:
        shape: N and D.
        own: the rows to keep.
    """
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

    Reading is an operation of all processes, see `forward`. A `state_dict` has no rows:
    `shard_files` keeps them.

    Args:
        shape: N and D of the whole table.
        scale: standard deviation of the initial rows.
        generator: draws them; they are those of a table in one process.
        collectives: of the processes.
    Attributes:
        size: N.
        best: a copy of `weight` at the best epoch so far; None before one.
        alike: whether all processes ask for the same rows.
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
        self.alike: bool = False
        # Its gradient is the sum over the processes already, see `gradients.sum_gradients`.
        self.weight.is_shard = True  # type: ignore[attr-defined]
        self._mesh: DeviceMesh | None = None

    def forward(self, ids: Tensor) -> Tensor:
        """Return rows [B, D] for this process's ids [B], each in 0 … N − 1; differentiable.

        All processes call it together, each with ids of its own.
        """
        if self.collectives.size == 1:
            return functional.embedding(ids, self.weight, sparse=True)
        if self.alike:
            return self.rows_alike(ids)
        rows: Tensor = _LookUp.apply(self.weight, ids, self)  # type: ignore[no-untyped-call]
        return rows

    @contextmanager
    def reading_alike(self) -> Iterator[None]:
        """Let `forward` read inside the block, without gradient, what all processes ask for."""
        before, self.alike = self.alike, True
        try:
            yield
        finally:
            self.alike = before

    @torch.no_grad()
    def rows_alike(self, ids: Tensor) -> Tensor:
        """Return rows [B, D] for ids [B] that are the same in every process, without gradient."""
        inside = (ids >= self.own.start) & (ids < self.own.stop)
        rows = self.weight.new_zeros(len(ids), self.weight.shape[1])
        rows[inside] = self.weight[ids[inside] - self.own.start]
        return self.collectives.sum(rows, "tables read")

    def distributed(self, rows: Tensor) -> Tensor:
        """Return a part of a tensor with a row for each of the table's, [n] or [n, D], as torch's
        DTensor of the whole; in one process, which has all of it, as it is."""
        if self.collectives.size == 1:
            return rows
        from torch.distributed.tensor import DTensor, Shard

        shape = torch.Size((self.size, *rows.shape[1:]))
        stride = (*rows.shape[1:], 1)
        whole: Tensor = DTensor.from_local(
            rows, self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
        )
        return whole

    @property
    def mesh(self) -> DeviceMesh:
        """The processes, as torch.distributed.tensor names them."""
        if self._mesh is None:
            from torch.distributed.device_mesh import init_device_mesh

            self._mesh = init_device_mesh(self.weight.device.type, (self.collectives.size,))
            MESHES.append(self._mesh)
        return self._mesh

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Save nothing."""

    def _load_from_state_dict(self, *args: Any) -> None:
        """Load nothing."""


class _LookUp(torch.autograd.Function):
    """Rows from the processes that hold them, and gradients back to these.

    torch.distributed.tensor looks up all processes' ids in each one's rows, and sends each process
    its own. Its gradient of a table would be dense, [N/P, D] a step (torch 2.13.0 has no sharding
    of the operator that makes sparse ones), so that the sparse one is made here.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, table: ShardedTable) -> Tensor:
        collectives = table.collectives
        distinct, places = torch.unique(ids, return_inverse=True)
        mine = torch.tensor([len(distinct)], device=ids.device)
        most = int(collectives.rows(mine, collectives.size, "counts").max())
        padded = torch.full((most,), -1, device=ids.device)
        padded[: len(distinct)] = distinct
        everyone = collectives.rows(padded, most * collectives.size, "tables")
        rows = _own_rows(table, weight.detach(), everyone)
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


def _own_rows(table: ShardedTable, weight: Tensor, everyone: Tensor) -> Tensor:
    """Return this process's rows [R, D] of all processes' ids [P · R]; zeros for the id −1."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    collectives = table.collectives
    assert isinstance(collectives, ProcessCollectives)
    ids = DTensor.from_local(everyone, table.mesh, [Replicate()], run_check=False)
    with collectives.reaching_others():
        partial = functional.embedding(ids, table.distributed(weight))
        assert isinstance(partial, DTensor)
        rows: Tensor = partial.redistribute(placements=[Shard(0)]).to_local()
        if hasattr(rows, "wait"):
            rows = rows.wait()
    collectives.received["tables"] += rows.numel() * rows.element_size() * (collectives.size - 1)
    return rows


def save_shards(tensors: Mapping[str, Tensor], folder: Path, together: Collectives) -> None:
    """Write tensors, divided or plain, to a folder; all processes call it.

    Raises: TrainingError: the folder cannot be written.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with _named(folder, "written", "make room there"):
        folder.mkdir(parents=True, exist_ok=True)
        # A file each: the writer copies what goes into one file before it writes it.
        files = {name: number for number, name in enumerate(tensors, start=1)}
        writer = HuggingFaceStorageWriter(str(folder), files, save_distributed=True)
        save(dict(tensors), storage_writer=writer, no_dist=together.size == 1)


def load_shards(tensors: Mapping[str, Tensor], folder: Path, together: Collectives) -> None:
    """Read tensors from a folder into those that are handed in; all processes call it.

    Raises: TrainingError: they are not in it.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with _named(folder, "read", "remove it with the checkpoint beside it"):
        reader = HuggingFaceStorageReader(str(folder))
        load(dict(tensors), storage_reader=reader, no_dist=together.size == 1)


@contextmanager
def _named(folder: Path, verb: str, remedy: str) -> Iterator[None]:
    """Raises: TrainingError: torch.distributed.checkpoint could not do its part."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            # One process needs no process group.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            yield
    except (CheckpointException, RuntimeError, OSError) as error:
        failures = error.failures if isinstance(error, CheckpointException) else {}
        cause = next((exception for exception, _ in failures.values()), error)
        reason = " ".join(str(cause).split()).rstrip(".")[:300]
        raise TrainingError(
            f"The rows of divided tables cannot be {verb} in {folder} ({reason}); {remedy}. All "
            "processes must see the same folder, so that several machines need a shared disk."
        ) from error
