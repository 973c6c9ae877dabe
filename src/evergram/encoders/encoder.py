"""The inputs of encoders (a corpus's ids and features as rows of vocabularies), embedding tables,
the `Encoder` interface, and two encoders built on tables: `Factorization` and `TwoTower`."""

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

from evergram.data.corpus import Corpus, Side, Vocabulary, offsets_of, take_ragged
from evergram.data.feature_types import bucket_starts, is_measure, positions, type_name
from evergram.encoders.kinds import ENCODERS
from evergram.errors import DataError, IntegrityError, LineageError, RecipeError, ShapeError
from evergram.mapped_tensors import draw_normal, join_blocks, mapped_zeros

SIDES = ("query", "candidate")


@dataclass(frozen=True)
class EntityInputs:
    """B entities as rows of an encoder's vocabularies."""

    ids: Tensor  # int64 [B], rows of the id vocabulary, -1 for an unknown id
    # For each feature, ragged rows of its vocabulary: indices [nnz] and offsets [B + 1]; a missing
    # number or time is an empty bag.
    bags: Mapping[str, tuple[Tensor, Tensor]]
    has_all_ids: bool = False  # True if no id is -1, so that reading a table needs no mask
    # True if ids are 0 to B - 1, as in the corpus that the vocabularies come from.
    in_order: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_known(self) -> Tensor:
        """bool [B], True if the vocabularies have the entity's id or one of its features."""
        known = self.ids >= 0
        for _, offsets in self.bags.values():
            known = known | (offsets[1:] > offsets[:-1])
        return known

    def bag(self, name: str, missing_row: int | None) -> tuple[Tensor, Tensor]:
        """Return the ragged rows of a feature, with `missing_row` (unless None) in empty bags."""
        indices, offsets = self.bags[name]
        if missing_row is None:
            return indices, offsets
        empty = offsets[1:] == offsets[:-1]
        first = torch.cat([indices, indices.new_zeros(1)])[offsets[:-1]]
        rows = torch.where(empty, missing_row, first)
        return rows, torch.arange(len(rows) + 1, device=rows.device)

    def take(self, rows: Tensor) -> EntityInputs:
        bags = {name: take_ragged(*bag, rows) for name, bag in self.bags.items()}
        ids = rows if self.in_order else self.ids[rows]
        return EntityInputs(ids, bags, self.has_all_ids)

    def to(self, device: torch.device) -> EntityInputs:
        bags = {n: (i.to(device), o.to(device)) for n, (i, o) in self.bags.items()}
        return replace(self, ids=self.ids.to(device), bags=bags)


def table_name(vocabulary: str) -> str:
    """Return the name of a vocabulary's table; names of modules and parameters have no dots."""
    return vocabulary.replace(".", "/")


@dataclass(frozen=True)
class Schema:
    """The vocabularies of an encoder, and which of them each input uses.

    Args:
        vocabularies: by name.
        inputs: for each side, input name ("id" or a feature) to vocabulary name.
    """

    vocabularies: Mapping[str, Vocabulary]
    inputs: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, corpus: Corpus, *, features: bool) -> Schema:
        """Return the schema of a corpus, with or without its features."""
        vocabularies: dict[str, Vocabulary] = {}
        inputs: dict[str, dict[str, str]] = {}
        for name, side in corpus.sides.items():
            id_name = "id" if corpus.shared_ids else f"{name}.id"
            vocabularies[id_name] = side.vocabulary
            inputs[name] = {"id": id_name}
            for feature in side.features if features else ():
                vocabularies[f"feature.{feature}"] = _vocabulary_of(corpus, feature)
                inputs[name][feature] = f"feature.{feature}"
        tables = [table_name(name) for name in vocabularies]
        if repeated := {name for name in tables if tables.count(name) > 1}:
            names = sorted(name for name in vocabularies if table_name(name) in repeated)
            features_ = [name.removeprefix("feature.") for name in names]
            raise DataError(
                f"The features {' and '.join(features_)} would share one table, because their "
                "names differ only in '.' and '/'; rename one."
            )
        return cls(vocabularies, inputs)

    def ids(self, side: str) -> Vocabulary:
        return self.vocabularies[self.inputs[side]["id"]]

    def read(self, side: str, entities: Side, folder: Path | None = None) -> EntityInputs:
        """Translate entities of any corpus, in order, to bags without unknown keys; `folder` maps
        the rows of the schema's own ids from a file there."""
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
            is_known = indices >= 0
            bags[feature] = (indices[is_known], offsets_of(is_known)[column.offsets])
        if entities.vocabulary is self.ids(side):
            table = None if folder is None else mapped_zeros((len(entities),), folder, torch.int64)
            ids = torch.arange(len(entities), out=table)
            return EntityInputs(ids, bags, has_all_ids=True, in_order=True)
        ids = self.ids(side).rows(entities.vocabulary.keys)
        # Check this once per corpus: checking a batch would synchronize with its device.
        in_order = torch.equal(ids, torch.arange(len(ids)))
        has_all = in_order or bool((ids >= 0).all())
        return EntityInputs(ids, bags, has_all, in_order)


def refuse_other_types(feature: str, trained: Vocabulary, found: Vocabulary) -> None:
    """Raises: DataError: a feature is a number or a time in one vocabulary but not in the other."""
    kinds = [trained.keys.type, found.keys.type]
    if kinds[0] != kinds[1] and any(is_measure(kind) for kind in kinds):
        raise DataError(
            f"The feature {feature!r} is a {type_name(kinds[1])} here, but the encoder was trained "
            f"with a {type_name(kinds[0])}. One invalid cell turns a column into a category: "
            "correct the column, or set upgrade.start = 'fresh'."
        )


def _vocabulary_of(corpus: Corpus, feature: str) -> Vocabulary:
    """Return a feature's vocabulary: its keys, or for numbers and times equally full buckets."""
    columns = [s.features[feature] for s in corpus.sides.values() if feature in s.features]
    vocabulary = columns[0].vocabulary
    if not is_measure(vocabulary.keys.type):
        return vocabulary
    distinct = positions(vocabulary.keys)
    values = np.concatenate([distinct[column.indices.numpy()] for column in columns])
    missing = any(bool((c.offsets[1:] == c.offsets[:-1]).any()) for c in columns)
    return Vocabulary(bucket_starts(values, vocabulary.keys.type, missing=missing))


# Embed this many entities, or read this many rows of a table, at once.
ROWS = 65_536


def embedding_table(
    size: int, dim: int, scale: float, generator: torch.Generator, folder: Path | None = None
) -> nn.Embedding:
    """Return a table [size, dim] of N(0, scale²) rows with sparse gradients, mapped from a file in
    `folder`; None keeps it in memory."""
    if folder is not None:
        weight = mapped_zeros((max(size, 1), dim), folder)
        draw_normal(weight, scale, generator)
        return nn.Embedding(len(weight), dim, sparse=True, _weight=weight)
    table = nn.Embedding(max(size, 1), dim, sparse=True)
    nn.init.normal_(table.weight, std=scale, generator=generator)
    return table


def look_up(table: nn.Embedding, ids: Tensor, *, has_all: bool = False) -> Tensor:
    """Return the rows [B, dim] of ids [B]; zeros for the id -1. `has_all` promises that no id is
    -1, which saves a pass over the rows and over their gradient."""
    rows: Tensor = table(ids if has_all else ids.clamp(min=0))
    return rows if has_all else rows * (ids >= 0).unsqueeze(-1)


# The smallest norm to divide by, so that rows of zeros stay zero.
LEAST_NORM = 1e-12


def unit_rows(rows: Tensor) -> Tensor:
    """Return rows [N, D] divided by their norms; rows of zeros stay zero.

    Like torch's `normalize`, but faster: softmax training spends much of its time here."""
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
    """A corpus translated for an encoder."""

    inputs: Mapping[str, EntityInputs]  # for each side, the inputs of all N entities
    # The interactions, see `adjacency`; None for encoders that do not use them.
    graph: Tensor | None = None

    def size(self, side: str) -> int:
        """Return the number of entities of a side."""
        return len(self.inputs[side])

    def ids(self, side: str) -> Tensor:
        """Return rows of the encoder's id vocabulary, int64 [N], -1 for an unknown id."""
        return self.inputs[side].ids

    def to(self, device: torch.device) -> Scene:
        inputs = {side: entities.to(device) for side, entities in self.inputs.items()}
        return Scene(inputs, None if self.graph is None else self.graph.to(device))


class Embeddings(ABC):
    """The embeddings of a scene with the current parameters of its encoder."""

    @abstractmethod
    def rows(self, side: str, ids: Tensor) -> Tensor:
        """Return the vectors [B, D] of rows [B] of a side; differentiable."""

    def of_pairs(self, query: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the query vectors [B, D] of B pairs of the scene, and the same vectors computed
        without each pair's own candidate; None if query vectors do not use candidates."""
        return self.rows("query", query), None

    @abstractmethod
    def blocks(self, side: str, batch_size: int = ROWS) -> Iterator[Tensor]:
        """Iterate over all vectors of a side in blocks [b, D], without gradient."""

    def whole(self, side: str) -> Tensor | None:
        """Return all vectors of a side, [N, D], differentiable; None if they are not computed."""
        return None


class Encoder(nn.Module, ABC):
    """Maps queries and candidates into one space of `dim` dimensions; scores are inner products.

    Args:
        schema: its vocabularies; unknown keys contribute nothing.
        dim: D.
        normalize: True scales rows to unit norm; a zero row stays zero.
    """

    kind: str
    # The type of matrix products in layers during training. Parameters, optimisers, output
    # embeddings, Gramians and evaluation are always float32.
    layer_dtype: torch.dtype = torch.float32
    # True if both sides' vectors come from one table, without layers.
    one_table = False
    # Maps tables, and the embeddings of all entities, from files there; None keeps them in memory.
    tables_folder: Path | None = None

    def __init__(self, schema: Schema, dim: int, normalize: bool = False) -> None:
        super().__init__()
        self.schema = schema
        self.dim = dim
        self.normalize = normalize

    @abstractmethod
    def forward(self, scene: Scene) -> Embeddings:
        """Return the embeddings of a scene; do the computations that its entities share once."""

    @abstractmethod
    def known(self, side: str, scene: Scene) -> Tensor:
        """Return bool [N], True for entities that the encoder has learned something about."""

    def keyed(self) -> dict[str, str]:
        """Return parameter name to vocabulary name, for parameters with a row for each key."""
        return {}

    def start_from(self, other: Encoder) -> None:
        """Copy the parameters of another encoder. Rows of keys that it lacks stay unchanged; a
        bucket gets the row of the other encoder's bucket that contains its lower bound.

        Raises: ShapeError: it has another architecture. DataError: a feature has another type.
        """
        if self.dim != other.dim:
            raise ShapeError(
                f"The encoder has {self.dim} dims, and the one to start from {other.dim}; set "
                f"model.dim = {other.dim}, or upgrade.start = 'fresh'."
            )
        state, other_state = self.state_dict(), other.state_dict()
        tables = self.keyed()
        if state.keys() != other_state.keys() or tables != other.keyed():
            raise ShapeError(
                f"A {self.kind} encoder cannot start from one with other parameters; set "
                "upgrade.start = 'fresh'."
            )
        for name, value in state.items():
            rows, is_table = other_state[name], name in tables
            if rows.shape[is_table:] != value.shape[is_table:]:
                raise ShapeError(
                    f"{name} is {list(value.shape)} here and {list(rows.shape)} in the "
                    "encoder to start from; use the same dims and layers, or upgrade.start = "
                    "'fresh'."
                )
            if not is_table:
                value.copy_(rows)
                continue
            keys, other_keys = (e.schema.vocabularies[tables[name]] for e in (self, other))
            refuse_other_types(tables[name].removeprefix("feature."), other_keys, keys)
            sources = other_keys.rows(keys.keys)
            for found in torch.split(torch.nonzero(sources >= 0).flatten(), ROWS):
                value[found.to(value.device)] = rows[sources[found].to(rows.device)].to(value)

    def feature_tables(self) -> list[nn.Parameter]:
        """Return the tables whose rows are shared by many entities."""
        return []

    def read(self, corpus: Corpus) -> Scene:
        """Return the scene of a corpus, in its row order, on the CPU."""
        sides, folder = corpus.sides.items(), self.tables_folder
        return Scene({side: self.schema.read(side, of, folder) for side, of in sides})

    def embed_all(self, what: Corpus | Scene) -> dict[str, Tensor]:
        """Return all embeddings by side, [N, D], in evaluation mode and without gradient: of a
        corpus on the CPU, of a scene on its device."""
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
        # A user's module may have no parameters, such as a table of frozen vectors.
        first = next(chain(self.parameters(), self.buffers()), None)
        return torch.device("cpu") if first is None else first.device

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Enter evaluation mode without gradient; restore the mode on exit."""
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train(training)

    def mixed_precision(self) -> torch.autocast:
        """Return a context in which layers compute in `layer_dtype` during training."""
        mixed = self.training and self.layer_dtype != torch.float32
        return torch.autocast(self.device.type, self.layer_dtype if mixed else None, enabled=mixed)

    def normalized(self, rows: Tensor) -> Tensor:
        """Return the rows, scaled to unit norm if `normalize` is set."""
        return unit_rows(rows) if self.normalize else rows


class OnDemand(Embeddings):
    """Embeddings that are computed when they are read, from a scene on the encoder's device."""

    def __init__(self, encoder: Encoder, scene: Scene) -> None:
        self.encoder = encoder
        self.scene = scene

    def blocks(self, side: str, batch_size: int = ROWS) -> Iterator[Tensor]:
        size = self.scene.size(side)
        for start in range(0, size, batch_size):
            stop = min(start + batch_size, size)
            with self.encoder.evaluating():
                block = self.rows(side, torch.arange(start, stop, device=self.encoder.device))
            yield block


class RowEncoder(Encoder):
    """An encoder that embeds each entity independently, from its id and features."""

    def embed(self, side: str, inputs: EntityInputs) -> Tensor:
        """Return the vectors [B, D] of B inputs of a side; differentiable."""
        with self.mixed_precision():
            rows = self._embed(side, inputs)
        return self.normalized(rows.to(torch.promote_types(rows.dtype, torch.float32)))

    @abstractmethod
    def _embed(self, side: str, inputs: EntityInputs) -> Tensor:
        """Embed the inputs, without normalisation."""

    def forward(self, scene: Scene) -> Embeddings:
        return _ByRow(self, scene)

    def known(self, side: str, scene: Scene) -> Tensor:
        return scene.inputs[side].is_known

    def encode(self, side: str, entities: Side) -> Tensor:
        """Return the embeddings [N, D] of one side of a corpus, in row order, on the CPU."""
        scene = Scene({side: self.schema.read(side, entities)}).to(self.device)
        blocks = (block.cpu() for block in self(scene).blocks(side))
        return join_blocks(blocks, len(entities), self.dim)


class _ByRow(OnDemand):
    """The embeddings of entities, each from its own inputs."""

    encoder: RowEncoder

    def rows(self, side: str, ids: Tensor) -> Tensor:
        return self.encoder.embed(side, self.scene.inputs[side].take(ids))


class Factorization(RowEncoder):
    """u_a and v_b are rows of two tables; an unknown id has the zero vector.

    Args:
        scale: standard deviation of the initial rows.
        folder: maps the tables from files there; None keeps them in memory.
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
        """Scale all rows to norm 1, which does not change normalised embeddings; zero rows stay."""
        for table in (self.query, self.candidate):
            table.weight.copy_(nn.functional.normalize(table.weight, dim=1))

    def keyed(self) -> dict[str, str]:
        return {f"{side}.weight": self.schema.inputs[side]["id"] for side in SIDES}

    def known(self, side: str, scene: Scene) -> Tensor:
        return scene.inputs[side].ids >= 0


class TwoTower(RowEncoder):
    """x + f(x): x is the sum of an entity's input embeddings, f has hidden layers with ReLU.

    Training starts from a factorization: feature tables and the last layer of f are zero. The
    contributions of features and hidden layers then grow in steps small enough for a moving average
    of Gramians to follow.

    Without `residual` it is f(x), with random initial tables and layers: the tower of [G1] §4 and
    [G2] §4.1, with `concatenate` and two hidden layers.

    Inputs that share a vocabulary share a table. A bag is embedded as the mean of its keys' rows,
    an empty bag and an unknown id as zero, so features alone embed an unseen id. A number or a time
    is embedded as the row of its bucket; missing ones have a separate row.

    Artefacts record the keyword arguments by name, so they stay separate arguments.

    Args:
        input_dim: width of x; `dim` by default. If it differs, x is projected to `dim` by a learned
            matrix, initially orthogonal and the same on both sides.
        hidden: widths of the hidden layers; without any, the embedding is x.
        residual: True adds x to f(x).
        concatenate: True concatenates the input embeddings instead of adding them; needs
            `residual` false.
        scale: standard deviation of the initial id tables, or of all tables without `residual`.
        normalize: True scales embeddings to unit norm.
        folder: maps the tables from files there; None keeps them in memory.
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
            # The same matrix for both sides, so that it preserves inner products.
            initial = nn.init.orthogonal_(torch.empty(dim, width), generator=generator)
            for side in SIDES:
                self.skip[side] = nn.Linear(width, dim, bias=False)
                self.skip[side].weight = nn.Parameter(initial.clone())
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
        embedded: list[Tensor] = []
        for name, vocabulary in self.schema.inputs[side].items():
            table = self.tables[table_name(vocabulary)]
            assert isinstance(table, nn.Embedding)
            if name == "id":
                embedded.append(look_up(table, inputs.ids, has_all=inputs.has_all_ids))
                continue
            indices, offsets = inputs.bag(name, self.schema.vocabularies[vocabulary].row_of_missing)
            embedded.append(
                functional.embedding_bag(
                    indices, table.weight, offsets[:-1], mode="mean", sparse=True
                )
            )
        if self.concatenate:
            return torch.cat(embedded, dim=-1)
        return sum(embedded[1:], start=embedded[0])


def _layers(
    width: int, hidden: Sequence[int], dim: int, generator: torch.Generator, *, zero: bool
) -> nn.Sequential:
    """Return linear layers [width] → hidden → [dim] with ReLU between; `zero` zeroes the last."""
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
    """Build a new encoder of a kind.

    Args:
        options: the class's keyword arguments, as JSON; artefacts record them.
        folder: maps tables from files there, for a kind that `maps_tables`.
    Raises: RecipeError: the kind is unknown, or differs from its class's `kind`.
    """
    if kind not in ENCODERS:
        raise RecipeError(f"The encoder {kind!r} is none of {', '.join(ENCODERS)}.")
    encoder_class = ENCODERS[kind].encoder_class()
    if encoder_class.kind != kind:
        raise RecipeError(
            f"{encoder_class.__name__}.kind is {encoder_class.kind!r}, but ENCODERS lists it as "
            f"{kind!r}, so a version could not be loaded again. Set kind = {kind!r} in the class."
        )
    build: Callable[..., Encoder] = encoder_class
    mapped = {} if folder is None else {"folder": folder}
    return build(schema, **options, **mapped, generator=generator)


def restore_encoder(
    kind: str,
    options: Mapping[str, Any],
    inputs: Mapping[str, Mapping[str, str]],
    state: Mapping[str, Tensor],
    vocabularies: Mapping[str, Vocabulary],
    what: str,
) -> Encoder:
    """Rebuild a published encoder from the content of its artefact, in evaluation mode.

    Args:
        what: the encoder's owner, such as "version 1", for error messages.
    Raises: LineageError: the kind is unknown in this process. IntegrityError: the content of the
        artefact does not fit together.
    """
    if kind not in ENCODERS:
        raise LineageError(
            f"The encoder of {what} is of the kind {kind!r}, but only {', '.join(ENCODERS)} are "
            "known; add its settings to evergram.encoders.kinds.ENCODERS first. Its embeddings can "
            "be read without it."
        )
    encoder = build_encoder(kind, options, Schema(vocabularies, inputs), torch.Generator())
    try:
        encoder.load_state_dict(state)
    except RuntimeError as error:
        raise IntegrityError(f"The encoder of {what} does not fit its manifest: {error}") from error
    return encoder.eval()
