"""Encoders: their inputs (a corpus's ids and features, as rows of vocabularies), their tables and
interface, and those of tables: a free vector for each entity; or ids and bags of features through
layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from evergram.data.corpus import Corpus, Side, Vocabulary, take_ragged
from evergram.data.feature_types import bucket_starts, is_measure, positions, type_name
from evergram.encoders.kinds import ENCODERS
from evergram.encoders.mapped_tensors import draw_normal, join_blocks, mapped_zeros
from evergram.errors import DataError, IntegrityError, LineageError, RecipeError, ShapeError

SIDES = ("query", "candidate")


@dataclass(frozen=True)
class EntityInputs:
    """B entities as an encoder reads them, in rows of its own vocabularies.

    Args:
        ids: int64 [B], rows of the id vocabulary, -1 for an id that it does not have.
        bags: for each feature, ragged rows of its vocabulary: indices [nnz] and offsets [B + 1];
            of a number or time that is missing, none.
        has_all_ids: True where no id is -1, so that reading a table needs no mask.
        in_order: True where ids are 0 to B - 1, as of the corpus that the vocabularies are of.
    """

    ids: Tensor
    bags: Mapping[str, tuple[Tensor, Tensor]]
    has_all_ids: bool = False
    in_order: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_known(self) -> Tensor:
        """bool [B], True if the vocabularies have the entity's id or any of its features."""
        known = self.ids >= 0
        for _, offsets in self.bags.values():
            known = known | (offsets[1:] > offsets[:-1])
        return known

    def bag(self, name: str, of_missing: int | None) -> tuple[Tensor, Tensor]:
        """Return the ragged rows of a feature, in which an empty bag has the row `of_missing`.

        Args:
            of_missing: `Vocabulary.row_of_missing`; None leaves the bags as they are.
        """
        indices, offsets = self.bags[name]
        if of_missing is None:
            return indices, offsets
        empty = offsets[1:] == offsets[:-1]
        first = torch.cat([indices, indices.new_zeros(1)])[offsets[:-1]]
        rows = torch.where(empty, of_missing, first)
        return rows, torch.arange(len(rows) + 1, device=rows.device)

    def take(self, rows: Tensor) -> EntityInputs:
        bags = {name: take_ragged(*bag, rows) for name, bag in self.bags.items()}
        ids = rows if self.in_order else self.ids[rows]
        return EntityInputs(ids, bags, self.has_all_ids)

    def to(self, device: torch.device) -> EntityInputs:
        bags = {n: (i.to(device), o.to(device)) for n, (i, o) in self.bags.items()}
        return replace(self, ids=self.ids.to(device), bags=bags)


def table_name(vocabulary: str) -> str:
    """Return the name of an encoder's table of a vocabulary: a module's name has no dots."""
    return vocabulary.replace(".", "/")


@dataclass(frozen=True)
class Schema:
    """The vocabularies of an encoder, and which of them each side's inputs use.

    Args:
        vocabularies: by name.
        inputs: for each side, input name ("id" or a feature) to vocabulary name. Two inputs that
            name one vocabulary read the same keys.
    """

    vocabularies: Mapping[str, Vocabulary]
    inputs: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, corpus: Corpus, *, features: bool) -> Schema:
        """Return the schema of a corpus, with or without its features."""
        vocabularies: dict[str, Vocabulary] = {}
        inputs: dict[str, dict[str, str]] = {}
        for name, side in zip(SIDES, (corpus.queries, corpus.candidates), strict=True):
            id_name = "id" if corpus.shared_ids else f"{name}.id"
            vocabularies[id_name] = side.vocabulary
            inputs[name] = {"id": id_name}
            for feature in side.features if features else ():
                vocabularies[f"feature.{feature}"] = _vocabulary_of(corpus, feature)
                inputs[name][feature] = f"feature.{feature}"
        tables = [table_name(name) for name in vocabularies]
        if twice := {name for name in tables if tables.count(name) > 1}:
            names = sorted(name for name in vocabularies if table_name(name) in twice)
            same = [name.removeprefix("feature.") for name in names]
            raise DataError(
                f"The features {' and '.join(same)} would share one table, as names that differ in "
                "'.' and '/' alone do; rename one."
            )
        return cls(vocabularies, inputs)

    def ids(self, side: str) -> Vocabulary:
        return self.vocabularies[self.inputs[side]["id"]]

    def read(self, side: str, entities: Side) -> EntityInputs:
        """Return the inputs of entities of any corpus, in their order.

        Keys that a vocabulary lacks are left out; a feature that `entities` lack has empty bags.
        """
        bags: dict[str, tuple[Tensor, Tensor]] = {}
        for feature, vocabulary_name in self.inputs[side].items():
            if feature == "id":
                continue
            if feature not in entities.features:
                empty = torch.zeros(len(entities) + 1, dtype=torch.int64)
                bags[feature] = (torch.zeros(0, dtype=torch.int64), empty)
                continue
            column = entities.features[feature]
            vocabulary = self.vocabularies[vocabulary_name]
            refuse_other_types(feature, vocabulary, column.vocabulary)
            translated = vocabulary.rows(column.vocabulary.keys)
            indices = translated[column.indices]
            known = indices >= 0
            before = torch.zeros(len(known) + 1, dtype=torch.int64)
            torch.cumsum(known, 0, out=before[1:])
            bags[feature] = (indices[known], before[column.offsets])
        ids = self.ids(side).rows(entities.vocabulary.keys)
        # Once for a corpus: a batch could not tell without waiting for its device.
        in_order = torch.equal(ids, torch.arange(len(ids)))
        has_all = in_order or bool((ids >= 0).all())
        return EntityInputs(ids, bags, has_all, in_order)


def refuse_other_types(feature: str, mine: Vocabulary, other: Vocabulary) -> None:
    """Raises: DataError: a feature is a number or a time in one vocabulary and not in the other."""
    kinds = [mine.keys.type, other.keys.type]
    if kinds[0] != kinds[1] and any(is_measure(kind) for kind in kinds):
        raise DataError(
            f"The feature {feature!r} is a {type_name(kinds[1])} here, and the encoder was trained "
            f"with a {type_name(kinds[0])}: a cell that is not one makes its column a category. "
            "Write it as before, or set upgrade.start = 'fresh'."
        )


def _vocabulary_of(corpus: Corpus, feature: str) -> Vocabulary:
    """Return the keys of a feature, which both sides may have; of numbers and times their buckets,
    which depend on how many objects have which."""
    columns = [
        s.features[feature] for s in (corpus.queries, corpus.candidates) if feature in s.features
    ]
    vocabulary = columns[0].vocabulary
    if not is_measure(vocabulary.keys.type):
        return vocabulary
    values = positions(vocabulary.keys)
    given = np.concatenate([values[column.indices.numpy()] for column in columns])
    missing = any(bool((c.offsets[1:] == c.offsets[:-1]).any()) for c in columns)
    return Vocabulary(bucket_starts(given, vocabulary.keys.type, missing=missing))


# Entities, or rows of a table, that are embedded or read at once.
ROWS = 65_536


def embedding_table(
    size: int, dim: int, scale: float, generator: torch.Generator, folder: Path | None = None
) -> nn.Embedding:
    """Return a table [size, dim] of N(0, scale²) rows whose gradient has only the rows it read.

    Args:
        folder: where it is mapped from a file, with the same numbers; None keeps it in memory.
    """
    if folder is not None:
        weight = mapped_zeros((max(size, 1), dim), folder)
        draw_normal(weight, scale, generator)
        return nn.Embedding(len(weight), dim, sparse=True, _weight=weight)
    table = nn.Embedding(max(size, 1), dim, sparse=True)
    nn.init.normal_(table.weight, std=scale, generator=generator)
    return table


def look_up(table: nn.Embedding, ids: Tensor, *, has_all: bool = False) -> Tensor:
    """Return rows of a table for ids [B], as [B, dim]; zeros for the id -1.

    Args:
        has_all: no id is -1, which saves a pass over the rows and one over their gradient.
    """
    if has_all:
        known: Tensor = table(ids)
        return known
    rows: Tensor = table(ids.clamp(min=0))
    return rows * (ids >= 0).unsqueeze(-1)


# Shorter rows are divided by this, so that one of zeros stays as it is.
LEAST_NORM = 1e-12


def unit_rows(rows: Tensor) -> Tensor:
    """Return rows [N, D] divided by their norms; rows of zeros stay as they are.

    It is torch's `normalize`, whose gradient takes a pass and a matrix of its own for each of its
    operations: of all candidates' rows, a large part of a softmax's step.
    """
    unit: Tensor = _UnitRows.apply(rows)  # type: ignore[no-untyped-call]
    return unit


class _UnitRows(torch.autograd.Function):
    """y = x/‖x‖; ∂/∂x = (g − y ⟨y, g⟩)/‖x‖."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_(min=LEAST_NORM)
        unit: Tensor = rows / norms
        ctx.save_for_backward(unit, norms)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        unit, norms = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, unit).unsqueeze(-1)
        across: Tensor = torch.addcmul(grad, unit, along, value=-1)
        across.div_(norms)
        return across


@dataclass(frozen=True)
class Scene:
    """A corpus as an encoder sees it.

    Args:
        inputs: of each side, every entity's, N of them.
        graph: the interactions, see `graph.adjacency`; None for encoders that do not
            use them.
    """

    inputs: Mapping[str, EntityInputs]
    graph: Tensor | None = None

    def size(self, side: str) -> int:
        """Return N of a side."""
        return len(self.inputs[side])

    def ids(self, side: str) -> Tensor:
        """Return rows of the encoder's id vocabulary, int64 [N], -1 for an id that it lacks."""
        return self.inputs[side].ids

    def to(self, device: torch.device) -> Scene:
        inputs = {side: entities.to(device) for side, entities in self.inputs.items()}
        return Scene(inputs, None if self.graph is None else self.graph.to(device))


class Embeddings(ABC):
    """Embeddings of a scene at the current parameters of its encoder."""

    @abstractmethod
    def rows(self, side: str, ids: Tensor) -> Tensor:
        """Return [B, D] for rows [B] of a side, "query" or "candidate"; differentiable."""

    def of_pairs(self, query: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the query rows [B, D] of B pairs of the scene, and the same rows made without each
        pair's own candidate; None for those if no candidate is in a query's row."""
        return self.rows("query", query), None

    @abstractmethod
    def blocks(self, side: str, batch_size: int = ROWS) -> Iterator[Tensor]:
        """Iterate over all of a side in blocks [b, D], without gradient."""

    def whole(self, side: str) -> Tensor | None:
        """Return all of a side, [N, D], differentiable; None if that needs another forward pass."""
        return None


class Encoder(nn.Module, ABC):
    """Two sides of entities into one space of `dim` dimensions; the score is the inner product.

    Args:
        schema: its vocabularies; a key outside them contributes nothing.
        dim: D.
        normalize: True scales rows to unit norm; a zero row stays zero.
    """

    kind: str
    # Of the layers' products in a training step. Parameters, optimisers, embeddings as they leave
    # the encoder, Gramians and every evaluation are float32.
    layer_dtype: torch.dtype = torch.float32
    # True if both sides' rows are made of one table, without layers.
    one_table = False
    # Where its tables, and all its embeddings, are mapped from files; None keeps them in memory.
    tables_folder: Path | None = None

    def __init__(self, schema: Schema, dim: int, normalize: bool = False) -> None:
        super().__init__()
        self.schema = schema
        self.dim = dim
        self.normalize = normalize

    @abstractmethod
    def forward(self, scene: Scene) -> Embeddings:
        """Return the embeddings of a scene; run computations that its entities share, once."""

    @abstractmethod
    def known(self, side: str, scene: Scene) -> Tensor:
        """Return bool [N], True for entities that the encoder has learned anything about."""

    def keyed(self) -> dict[str, str]:
        """Return, by parameter name, the vocabulary of each parameter with one row for each key."""
        return {}

    def start_from(self, other: Encoder) -> None:
        """Copy the parameters of another encoder; rows of keys that it lacks stay as they are, and
        the bucket of a number gets the row of the bucket that its start is in.

        Raises: ShapeError: it has another architecture. DataError: a feature has another type.
        """
        if self.dim != other.dim:
            raise ShapeError(
                f"The encoder has {self.dim} dims, and the one to start from {other.dim}; set "
                f"model.dim = {other.dim}, or upgrade.start = 'fresh'."
            )
        mine, theirs = self.state_dict(), other.state_dict()
        own_tables, their_tables = self.keyed(), other.keyed()
        if mine.keys() != theirs.keys() or own_tables != their_tables:
            raise ShapeError(
                f"A {self.kind} encoder cannot start from one with other parameters; set "
                "upgrade.start = 'fresh'."
            )
        for name, value in mine.items():
            rows, is_table = theirs[name], name in own_tables
            if rows.shape[is_table:] != value.shape[is_table:]:
                raise ShapeError(
                    f"{name} is {list(value.shape)} here and {list(rows.shape)} in the "
                    "encoder to start from; use the same dims and layers, or upgrade.start = "
                    "'fresh'."
                )
            if not is_table:
                value.copy_(rows)
                continue
            mine_of, theirs_of = (e.schema.vocabularies[own_tables[name]] for e in (self, other))
            refuse_other_types(own_tables[name].removeprefix("feature."), theirs_of, mine_of)
            places = theirs_of.rows(mine_of.keys)
            for known in torch.split(torch.nonzero(places >= 0).flatten(), ROWS):
                value[known.to(value.device)] = rows[places[known].to(rows.device)].to(value)

    def feature_tables(self) -> list[nn.Parameter]:
        """Return the tables whose rows many entities share; a step of one row moves them all."""
        return []

    def read(self, corpus: Corpus) -> Scene:
        """Return the scene of a corpus, in its row order, on the CPU."""
        sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
        return Scene({side: self.schema.read(side, entities) for side, entities in sides})

    def embed_all(self, what: Corpus | Scene) -> dict[str, Tensor]:
        """Return all embeddings, [N, D] of each side, in evaluation mode and without gradient.

        Those of a corpus are on the CPU, in its row order; those of a scene on its device.
        """
        scene = what if isinstance(what, Scene) else self.read(what).to(self.device)
        vectors: dict[str, Tensor] = {}
        with self.evaluating():
            embeddings: Embeddings = self(scene)
            for side in SIDES:
                blocks, size = embeddings.blocks(side), scene.size(side)
                vectors[side] = join_blocks(blocks, size, self.dim, self.tables_folder)
        return vectors if isinstance(what, Scene) else {s: v.cpu() for s, v in vectors.items()}

    @property
    def device(self) -> torch.device:
        # Modules of one's own may have no parameter, as a table of frozen vectors.
        first = next(chain(self.parameters(), self.buffers()), None)
        return torch.device("cpu") if first is None else first.device

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Enter evaluation mode without gradient; on leaving, the mode is as before."""
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train(training)

    def mixed_precision(self) -> torch.autocast:
        """Return a context in which layers compute in `layer_dtype` while the encoder trains."""
        lower = self.training and self.layer_dtype != torch.float32
        return torch.autocast(self.device.type, self.layer_dtype if lower else None, enabled=lower)

    def normalized(self, rows: Tensor) -> Tensor:
        """Return the rows, scaled to unit norm if the encoder normalises."""
        return unit_rows(rows) if self.normalize else rows


class RowEncoder(Encoder):
    """An encoder whose embedding of an entity depends on that entity's id and features alone.

    Any B entities can be embedded without the others.
    """

    def embed(self, side: str, inputs: EntityInputs) -> Tensor:
        """Return [B, D] for B inputs of a side, "query" or "candidate"; differentiable."""
        with self.mixed_precision():
            rows = self._embed(side, inputs)
        return self.normalized(rows.to(torch.promote_types(rows.dtype, torch.float32)))

    @abstractmethod
    def _embed(self, side: str, inputs: EntityInputs) -> Tensor:
        """Do what `embed` does, without the normalisation."""

    def forward(self, scene: Scene) -> Embeddings:
        return _ByRow(self, scene)

    def known(self, side: str, scene: Scene) -> Tensor:
        return scene.inputs[side].is_known

    def blocks(self, side: str, inputs: EntityInputs, batch_size: int = ROWS) -> Iterator[Tensor]:
        """Iterate over all embeddings in blocks [b, D], without gradient, in evaluation mode."""
        for start in range(0, len(inputs), batch_size):
            stop = min(start + batch_size, len(inputs))
            rows = torch.arange(start, stop, device=inputs.ids.device)
            with self.evaluating():
                block = self.embed(side, inputs.take(rows).to(self.device))
            yield block

    def encode(self, side: str, entities: Side, batch_size: int = ROWS) -> Tensor:
        """Return embeddings [N, D] of a corpus's side, in its row order, on the CPU."""
        inputs = self.schema.read(side, entities)
        blocks = (block.cpu() for block in self.blocks(side, inputs, batch_size))
        return join_blocks(blocks, len(inputs), self.dim)


class _ByRow(Embeddings):
    """Embeddings that are computed on demand."""

    def __init__(self, encoder: RowEncoder, scene: Scene) -> None:
        self.encoder = encoder
        self.scene = scene

    def rows(self, side: str, ids: Tensor) -> Tensor:
        return self.encoder.embed(side, self.scene.inputs[side].take(ids))

    def blocks(self, side: str, batch_size: int = ROWS) -> Iterator[Tensor]:
        return self.encoder.blocks(side, self.scene.inputs[side], batch_size)


class Factorization(RowEncoder):
    """u_a and v_b are rows of two tables; an unknown id has the zero vector.

    Args:
        scale: standard deviation of the initial rows.
        generator: draws them.
        folder: where the tables are mapped from files; None keeps them in memory.
    """

    kind = "factorization"

    def __init__(
        self,
        schema: Schema,
        dim: int,
        *,
        generator: torch.Generator,
        scale: float = 0.1,
        normalize: bool = False,
        folder: Path | None = None,
    ) -> None:
        super().__init__(schema, dim, normalize)
        self.tables_folder = folder
        queries, candidates = (len(schema.ids(side)) for side in SIDES)
        self.query: nn.Embedding = embedding_table(queries, dim, scale, generator, folder)
        self.candidate: nn.Embedding = embedding_table(candidates, dim, scale, generator, folder)

    def _embed(self, side: str, inputs: EntityInputs) -> Tensor:
        table: nn.Embedding = self.query if side == "query" else self.candidate
        return look_up(table, inputs.ids, has_all=inputs.has_all_ids)

    @torch.no_grad()
    def rescale(self) -> None:
        """Set all rows to norm 1, which changes no embedding of unit norm; rows of zeros stay."""
        for table in (self.query, self.candidate):
            table.weight.copy_(nn.functional.normalize(table.weight, dim=1))

    def keyed(self) -> dict[str, str]:
        return {f"{side}.weight": self.schema.inputs[side]["id"] for side in SIDES}

    def known(self, side: str, scene: Scene) -> Tensor:
        return scene.inputs[side].ids >= 0


class TwoTower(RowEncoder):
    """x + f(x): x is the sum of an entity's input embeddings, f hidden layers with ReLU.

    It starts as a factorization, with the features' tables and the last layer of f at zero. The
    contributions of features and hidden layers then grow in steps small enough for a moving average
    of Gramians to follow.

    With `residual` false it is f(x) alone, every table and layer drawn at random: the tower of [G1]
    §4 and [G2] §4.1, with `concatenate` and two hidden layers.

    Inputs of one vocabulary share a table, on one side or across both. A bag is the mean of its
    keys' rows; an empty bag and an unknown id are zero, so that features alone place an unseen id.
    A number or a time is the row of its bucket; a missing one has a row of its own.

    Artefacts record the keyword arguments by these names, so they stay separate arguments.

    Args:
        generator: draws the initial parameters.
        input_dim: width of x; `dim` by default. x of another width enters the sum through a learned
            matrix to `dim`, which starts orthogonal and the same on both sides.
        hidden: widths of the hidden layers; without any the embedding is x.
        residual: whether x is added to f(x).
        concatenate: whether x is an entity's input embeddings one after the other, not their sum;
            needs `residual` false.
        scale: standard deviation of the initial id tables; of all tables where `residual` is false.
        normalize: True scales embeddings to unit norm.
        folder: where the tables are mapped from files; None keeps them in memory.
    """

    kind = "two_tower"

    def __init__(
        self,
        schema: Schema,
        dim: int,
        *,
        generator: torch.Generator,
        input_dim: int | None = None,
        hidden: Sequence[int] = (64,),
        residual: bool = True,
        concatenate: bool = False,
        scale: float = 0.1,
        normalize: bool = False,
        folder: Path | None = None,
    ) -> None:
        super().__init__(schema, dim, normalize)
        self.tables_folder = folder
        width = dim if input_dim is None else input_dim
        self.residual = residual
        self.concatenate = concatenate
        ids = {schema.inputs[side]["id"] for side in SIDES}
        # A module's name may not hold a dot.
        self.tables: nn.ModuleDict = nn.ModuleDict(
            {
                table_name(name): embedding_table(
                    len(keys),
                    width,
                    scale if name in ids or not residual else 0.0,
                    generator,
                    folder,
                )
                for name, keys in schema.vocabularies.items()
            }
        )
        self.skip: nn.ModuleDict = nn.ModuleDict()
        if residual and width != dim:
            # One start for both sides: their inner products are those of their inputs.
            start = nn.init.orthogonal_(torch.empty(dim, width), generator=generator)
            for side in SIDES:
                self.skip[side] = nn.Linear(width, dim, bias=False)
                self.skip[side].weight = nn.Parameter(start.clone())
        self.hidden: nn.ModuleDict = nn.ModuleDict()
        for side in SIDES if hidden or not residual else ():
            inputs = len(schema.inputs[side]) if concatenate else 1
            self.hidden[side] = _layers(inputs * width, hidden, dim, generator, zero=residual)

    def keyed(self) -> dict[str, str]:
        return {f"tables.{table_name(name)}.weight": name for name in self.schema.vocabularies}

    def feature_tables(self) -> list[nn.Parameter]:
        ids = {table_name(self.schema.inputs[side]["id"]) for side in SIDES}
        return [p for n, t in self.tables.items() if n not in ids for p in t.parameters()]

    def _embed(self, side: str, inputs: EntityInputs) -> Tensor:
        x = self._input(side, inputs)
        if not self.residual:
            output: Tensor = self.hidden[side](x)
            return output
        embeddings: Tensor = self.skip[side](x) if side in self.skip else x
        return embeddings + self.hidden[side](x) if side in self.hidden else embeddings

    def _input(self, side: str, inputs: EntityInputs) -> Tensor:
        """Return x."""
        parts: list[Tensor] = []
        for name, vocabulary in self.schema.inputs[side].items():
            table = self.tables[table_name(vocabulary)]
            assert isinstance(table, nn.Embedding)
            if name == "id":
                parts.append(look_up(table, inputs.ids, has_all=inputs.has_all_ids))
                continue
            of_missing = self.schema.vocabularies[vocabulary].row_of_missing
            indices, offsets = inputs.bag(name, of_missing)
            parts.append(
                functional.embedding_bag(
                    indices, table.weight, offsets[:-1], mode="mean", sparse=True
                )
            )
        return torch.cat(parts, dim=-1) if self.concatenate else sum(parts[1:], start=parts[0])


def _layers(
    width: int, hidden: Sequence[int], dim: int, generator: torch.Generator, *, zero: bool
) -> nn.Sequential:
    """Return linear layers [width] → hidden → [dim] with ReLU between.

    Args:
        zero: whether the last starts at zero.
    """
    layers: list[nn.Module] = []
    for size in hidden:
        layer = nn.Linear(width, size)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU(inplace=True)]
        width = size
    last = nn.Linear(width, dim)
    if zero:
        nn.init.zeros_(last.weight)
    else:
        nn.init.xavier_normal_(last.weight, generator=generator)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)


def build_encoder(
    kind: str,
    options: Mapping[str, Any],
    schema: Schema,
    generator: torch.Generator,
    folder: Path | None = None,
) -> Encoder:
    """Return a new encoder of a kind.

    Args:
        options: keywords of its class, as JSON; artefacts keep them.
        generator: draws the initial parameters.
        folder: where its tables are mapped from files, for a kind that `maps_tables`.
    Raises: RecipeError: the kind is unknown, or its class says that it is of another.
    """
    if kind not in ENCODERS:
        raise RecipeError(f"The encoder {kind!r} is none of {', '.join(ENCODERS)}.")
    built = ENCODERS[kind].encoder_class()
    if built.kind != kind:
        raise RecipeError(
            f"{built.__name__}.kind is {built.kind!r}, and ENCODERS has it as {kind!r}: a version "
            f"would be read again by another class. Set kind = {kind!r} in it."
        )
    make: Callable[..., Encoder] = built
    place = {} if folder is None else {"folder": folder}
    return make(schema, **options, **place, generator=generator)


def restore_encoder(
    kind: str,
    options: Mapping[str, Any],
    inputs: Mapping[str, Mapping[str, str]],
    state: Mapping[str, Tensor],
    vocabularies: Mapping[str, Vocabulary],
    what: str,
) -> Encoder:
    """Return a published encoder in evaluation mode, from the parts that its artefact keeps.

    Args:
        what: the encoder's owner, such as "version 1", for errors.
    Raises: LineageError: the kind is unknown in this process. IntegrityError: the parts do not fit
        together.
    """
    if kind not in ENCODERS:
        raise LineageError(
            f"The encoder of {what} is of kind {kind!r}, and there are {', '.join(ENCODERS)}; put "
            "its settings into evergram.encoders.kinds.ENCODERS first. Its embeddings can be read "
            "without it."
        )
    encoder = build_encoder(kind, options, Schema(vocabularies, inputs), torch.Generator())
    try:
        encoder.load_state_dict(state)
    except RuntimeError as error:
        raise IntegrityError(f"The encoder of {what} does not fit its manifest: {error}") from error
    return encoder.eval()
