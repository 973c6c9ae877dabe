"""A factorization whose tables are divided by rows among processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evergram.atomic_files import make_folder
from evergram.collectives import Collectives
from evergram.data.corpus import Corpus
from evergram.data.prepared.files import sha256_of
from evergram.encoders.encoder import Embeddings, Encoder, Scene
from evergram.encoders.factorization import Factorization
from evergram.encoders.features import SIDES, EntityInputs, Schema
from evergram.encoders.mapped_tensors import mapped_zeros
from evergram.encoders.row_encoder import RowEncoder
from evergram.errors import FormatError, IntegrityError, TrainingError
from evergram.training.checkpoints.checkpoint_folder import (
    CheckpointFolder,
    StateFile,
    TrainingState,
)
from evergram.training.distributed.process_group import ProcessCollectives
from evergram.training.optimizers import RowAdagrad
from evergram.training.sharding.sharded_table import BLOCK, ShardedTable, load_shards, save_shards

# Marks, among the parameters of the best epoch, that each process keeps its rows of it.
KEPT = "encoder|shards"


class ShardedFactorization(Factorization):
    """A factorization of which each process holds N/P rows of each side, and of their optimiser.

    A step reads rows in all processes together. While the others wait in `Collectives.from_first`,
    during evaluations and checkpoints, they `serve` the first one.

    Args:
        generator: draws the same rows as for a factorization in one process.
        folder: where the first process maps all embeddings from files; None is that of temporary
            files.
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
        if isinstance(collectives, ProcessCollectives):
            collectives.serve = self.serve

    @property
    def tables(self) -> dict[str, ShardedTable]:
        """The table of each side."""
        tables = {side: getattr(self, side) for side in SIDES}
        assert all(isinstance(table, ShardedTable) for table in tables.values())
        return tables

    def attach(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Leave the tables' rows out of the states of optimisers, as they are out of the
        encoder's: `save` keeps them."""
        self.optimizers = optimizers
        for optimizer in optimizers:
            optimizer.register_state_dict_post_hook(_without_rows)
            optimizer.register_load_state_dict_pre_hook(_with_own_rows)

    # What a run reads.

    def blocks(self, side: str, inputs: EntityInputs, batch_size: int = BLOCK) -> Iterator[Tensor]:
        """Iterate over all embeddings in blocks [b, D], without gradient; all processes together,
        or the first one while the others wait for it."""
        for start in range(0, len(inputs), batch_size):
            rows = torch.arange(start, min(start + batch_size, len(inputs)))
            part = inputs.take(rows.to(inputs.ids.device)).to(self.device)
            if self._asks:
                yield self.normalized(self._asked(side, part.ids))
                continue
            with self.evaluating(), self._alike():
                block = self.embed(side, part)
            yield block

    def forward(self, scene: Scene) -> Embeddings:
        return _Asked(self, scene) if self._asks else super().forward(scene)

    def embed_all(self, what: Corpus | Scene) -> dict[str, Tensor]:
        """Return all embeddings of each side, [N, D], in the first process, mapped from files.

        Raises: TrainingError: the other processes do not wait for this one.
        """
        if self.collectives.size > 1 and not self._asks:
            raise TrainingError(
                "All embeddings of tables that are divided among processes are read in the first "
                "one, while the others wait for it: in `on_start`, `on_epoch` or `on_evaluation`."
            )
        scene = what if isinstance(what, Scene) else self.read(what)
        return {
            side: mapped_rows(
                self.blocks(side, scene.inputs[side]), (scene.size(side), self.dim), self.folder
            )
            for side in SIDES
        }

    # What the first process asks of all.

    def keep(self) -> dict[str, Tensor]:
        """Let each process copy its rows as those of the best epoch. Return a mark of it."""
        self._ask({"do": "keep"})
        self._keep()
        return {KEPT: torch.ones(1)}

    def save(self, folder: Path) -> list[str]:
        """Let each process write its rows, optimiser and best epoch. Return the tensors' names."""
        self._ask({"do": "save", "folder": str(folder)})
        return self._save(folder)

    def load(self, folder: Path, names: Sequence[str]) -> None:
        """Let each process read its rows of what any number of processes have written."""
        self._ask({"do": "load", "folder": str(folder), "names": list(names)})
        self._load(folder, names)

    def serve(self, request: Mapping[str, Any]) -> None:
        """Do this process's part of what the first one asks for."""
        do = request["do"]
        if do == "read":
            self._asked(request["side"], torch.empty(request["count"], dtype=torch.int64))
        elif do == "keep":
            self._keep()
        elif do == "save":
            self._save(Path(request["folder"]))
        else:
            self._load(Path(request["folder"]), request["names"])

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

        def gather() -> None:
            for side, table in self.tables.items():
                starts = range(0, table.size, BLOCK)
                ids = (torch.arange(i, min(i + BLOCK, table.size)) for i in starts)
                blocks = (self._asked(side, some).cpu() for some in ids)
                rows = mapped_rows(blocks, (table.size, self.dim), self.folder)
                whole.set_rows(side, rows)

        self.collectives.from_first(gather)
        return whole

    @property
    def _asks(self) -> bool:
        return self.collectives.others_wait

    def _ask(self, request: dict[str, Any]) -> None:
        if isinstance(self.collectives, ProcessCollectives):
            self.collectives.ask(request)

    def _asked(self, side: str, ids: Tensor) -> Tensor:
        """Return rows for ids [B] of the first process, −1 for zeros; others serve them."""
        collectives = self.collectives
        if isinstance(collectives, ProcessCollectives):
            if collectives.is_first:
                collectives.ask({"do": "read", "side": side, "count": len(ids)})
            ids = ids.to(collectives.device).contiguous()
            collectives.broadcast(ids)
        return self.tables[side].rows_alike(ids)

    def _alike(self) -> ExitStack:
        stack = ExitStack()
        for table in self.tables.values():
            stack.enter_context(table.reading_alike())
        return stack

    def _keep(self) -> None:
        for table in self.tables.values():
            rows = table.weight.detach()
            table.best = rows.clone() if table.best is None else table.best.copy_(rows)

    def _parts(self) -> dict[str, tuple[ShardedTable, Tensor]]:
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

    def _save(self, folder: Path) -> list[str]:
        parts = self._parts()
        tensors = {name: table.distributed(rows) for name, (table, rows) in parts.items()}
        save_shards(tensors, folder, self.collectives)
        return list(parts)

    def _load(self, folder: Path, names: Sequence[str]) -> None:
        for side, table in self.tables.items():
            has_best = f"{side}.best" in names
            table.best = torch.zeros_like(table.weight.detach()) if has_best else None
        parts = self._parts()
        tensors = {name: table.distributed(rows) for name, (table, rows) in parts.items()}
        load_shards(tensors, folder, self.collectives)


class _Asked(Embeddings):
    """Embeddings that the first process asks the others for, without gradient."""

    def __init__(self, encoder: ShardedFactorization, scene: Scene) -> None:
        self.encoder, self.scene = encoder, scene

    def rows(self, side: str, ids: Tensor) -> Tensor:
        inputs = self.scene.inputs[side].take(ids)
        return next(iter(self.encoder.blocks(side, inputs, max(1, len(ids)))))

    def blocks(self, side: str, batch_size: int = BLOCK) -> Iterator[Tensor]:
        return self.encoder.blocks(side, self.scene.inputs[side], batch_size)


def _is_shard(parameter: nn.Parameter) -> bool:
    return getattr(parameter, "is_shard", False)


def _without_rows(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimiser's state without that of divided tables."""
    shards = {i for i, p in enumerate(_parameters(optimizer)) if _is_shard(p)}
    return {**state, "state": {i: v for i, v in state["state"].items() if i not in shards}}


def _with_own_rows(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return a state to load, with that of divided tables as it is."""
    own = {
        i: optimizer.state[p]
        for i, p in enumerate(_parameters(optimizer))
        if _is_shard(p) and p in optimizer.state
    }
    return {**state, "state": {**state["state"], **own}}


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def mapped_rows(blocks: Iterable[Tensor], shape: tuple[int, int], folder: Path | None) -> Tensor:
    """Return blocks [b, D] as one tensor [N, D] that is mapped from a file without a name.

    Args:
        shape: N and D.
        folder: on the disk that has room for it; None is that of temporary files.
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


FOLDER, FACT = ".shards", "shards"


def keep_shards(folder: CheckpointFolder, encoder: Encoder) -> None:
    """Let a run's checkpoints have the rows of divided tables, if its encoder has such tables."""
    if isinstance(encoder, ShardedFactorization):
        folder.file = ShardedStateFile(encoder)


class ShardedStateFile(StateFile):
    """A run's state: rows of tables by all processes, then everything else by the first.

    Without the file that comes last, the rows are no part of a checkpoint.
    """

    def __init__(self, encoder: ShardedFactorization) -> None:
        self.encoder = encoder

    def write(self, path: Path, identity: Mapping[str, str], state: TrainingState) -> None:
        # What a killed process left here, or a checkpoint that this one replaces.
        self.remove(path)
        names = self.encoder.save(_folder(path))
        record = {"names": names, "files": _digests(path)}
        super().write(path, identity, replace(state, facts={**state.facts, FACT: record}))
        for shards in path.parent.glob(f"*{FOLDER}"):
            if not shards.with_name(shards.name.removesuffix(FOLDER)).exists():
                shutil.rmtree(shards, ignore_errors=True)

    def remove(self, path: Path) -> None:
        super().remove(path)
        shutil.rmtree(_folder(path), ignore_errors=True)

    def read(self, path: Path) -> TrainingState:
        """Return a state, after comparing it and the rows with their SHA-256.

        Raises: IntegrityError: a file is damaged or missing. FormatError: another release wrote it.
        """
        state = super().read(path)
        record = state.facts.get(FACT)
        if record is None:
            raise FormatError(f"{path.name} has no rows of divided tables.")
        if _digests(path) != record["files"]:
            raise IntegrityError(
                f"{_folder(path).name} is damaged: its files are not those that {path.name} states."
            )
        self.encoder.load(_folder(path), record["names"])
        return state


def _folder(path: Path) -> Path:
    return path.with_name(path.name + FOLDER)


def _digests(path: Path) -> dict[str, str]:
    return {file.name: sha256_of(file) for file in sorted(_folder(path).glob("*"))}
