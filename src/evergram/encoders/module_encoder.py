"""`EncoderModules`, the user's own modules with functions that look up their inputs, and
`ModuleEncoder`, the encoder made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.encoder import ROWS, SIDES, Embeddings, Encoder, OnDemand, Scene, Schema
from evergram.encoders.encoder_inputs import ID, columns_of, refuse_other_ids
from evergram.errors import DataError, ShapeError
from evergram.ids import refuse_missing
from evergram.mapped_tensors import join_blocks

# Returns a module's input for B ids: a tensor, or a tuple or dict of tensors.
Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class EncoderModules:
    """Your own query module and candidate module, to train instead of a built-in encoder.

    A module is called as `module(inputs)`, `module(*inputs)` for a tuple, or `module(**inputs)` for
    a dict. It returns float [B, D], with the same D on both sides. Training copies the modules and
    never changes them. Adam trains dense parameters at `training.layer_rate`, row-wise Adagrad
    trains tables `nn.Embedding(…, sparse=True)` at `training.table_rate`, and parameters without
    `requires_grad` stay fixed.

    Args:
        query, candidate: the modules; may be the same module.
        query_inputs, candidate_inputs: functions from a list of B ids (int or str, as in the
            corpus) to the input of a module, always the same for the same id.
        new_ids: True if they accept ids that the version was not trained on; if False, such ids
            get the zero vector.
        batch_size: number of entities in a forward pass without gradient.

    >>> import torch
    >>> from torch import nn
    >>> from evergram import EncoderModules
    >>> table = nn.Embedding(100, 8)
    >>> modules = EncoderModules(table, table, torch.tensor, torch.tensor)
    >>> modules
    EncoderModules(query=Embedding, candidate=Embedding)
    """

    query: nn.Module
    candidate: nn.Module
    query_inputs: Collate
    candidate_inputs: Collate
    new_ids: bool = False
    batch_size: int = 256

    def __repr__(self) -> str:
        query, candidate = type(self.query).__name__, type(self.candidate).__name__
        return f"EncoderModules(query={query}, candidate={candidate})"

    def copied(self) -> EncoderModules:
        """Return a copy with copied modules; modules that share parameters still share them."""
        query, candidate = deepcopy((self.query, self.candidate))
        return replace(self, query=query, candidate=candidate)


def outputs_of(modules: EncoderModules, side: str, ids: list[Any]) -> Tensor:
    """Return a module's output [B, D] for B ids. Raises: ShapeError: it has another shape."""
    module: nn.Module = getattr(modules, side)
    collate: Collate = getattr(modules, f"{side}_inputs")
    parameter = next(module.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    inputs = _moved(collate(ids), device)
    if isinstance(inputs, dict):
        rows = module(**inputs)
    elif isinstance(inputs, tuple):
        rows = module(*inputs)
    else:
        rows = module(inputs)
    if isinstance(rows, Tensor) and rows.ndim == 2 and len(rows) == len(ids):
        if rows.is_floating_point():
            return rows.float()
        shape = f"{rows.dtype} {list(rows.shape)}"
    else:
        shape = f"{list(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
    raise ShapeError(
        f"The {side} module returned {shape} for {len(ids)} ids; it must return a float tensor "
        f"[{len(ids)}, D]."
    )


def _moved(inputs: Any, device: torch.device) -> Any:
    """Move tensors, in tuples, lists and dicts, to a device."""
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {name: _moved(value, device) for name, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_moved(value, device) for value in inputs)
    if isinstance(inputs, list):
        return [_moved(value, device) for value in inputs]
    return inputs


@dataclass(frozen=True)
class IdScene(Scene):
    """A corpus's ids: by side, `keys` in row order, and `usable`, bool [N], True if accepted."""

    keys: Mapping[str, pa.Array] = field(default_factory=dict)
    usable: Mapping[str, Tensor] = field(default_factory=dict)
    schema: Schema = field(default_factory=lambda: Schema({}, {}))

    def size(self, side: str) -> int:
        return len(self.keys[side])

    def ids(self, side: str) -> Tensor:
        return self.schema.ids(side).rows(self.keys[side])

    def to(self, device: torch.device) -> IdScene:
        return self


class ModuleEncoder(Encoder):
    """The encoder of a user's query module and candidate module.

    Args:
        modules: used without copying; pass `modules.copied()` to train a copy.
        schema: the training ids.
        dim: D of both modules.
        normalize: True scales rows to unit norm.
    """

    kind = "module"

    def __init__(
        self, modules: EncoderModules, schema: Schema, dim: int, normalize: bool = False
    ) -> None:
        super().__init__(schema, dim, normalize)
        self.encoder_modules = modules
        self.query: nn.Module = modules.query
        self.candidate: nn.Module = modules.candidate

    @classmethod
    def of(
        cls, modules: EncoderModules, corpus: Corpus, *, normalize: bool = False
    ) -> ModuleEncoder:
        """Return the encoder for a corpus's ids; embeds one entity of each side to find D.

        Raises: ShapeError: a module does not return [B, D], or the two D differ.
        """
        dims = {}
        for side, entities in corpus.sides.items():
            module = getattr(modules, side)
            training = module.training
            module.eval()
            with torch.no_grad():
                rows = outputs_of(modules, side, entities.vocabulary.keys[:1].to_pylist())
            module.train(training)
            dims[side] = rows.shape[1]
        if dims["query"] != dims["candidate"]:
            raise ShapeError(
                f"The query module returns {dims['query']} dimensions and the candidate module "
                f"{dims['candidate']}; both must return [B, D] with the same D."
            )
        schema = Schema.of(corpus, features=False)
        return cls(modules, schema, dims["query"], normalize)

    def copied(self) -> ModuleEncoder:
        """Return a copy with copied modules."""
        modules = self.encoder_modules.copied()
        return ModuleEncoder(modules, self.schema, self.dim, self.normalize)

    @property
    def options(self) -> dict[str, Any]:
        """The settings that an artefact records with its tensors and ids."""
        return {"dim": self.dim, **({"normalize": True} if self.normalize else {})}

    def read(self, corpus: Corpus) -> IdScene:
        return self._scene({side: of.vocabulary.keys for side, of in corpus.sides.items()})

    def forward(self, scene: Scene) -> Embeddings:
        assert isinstance(scene, IdScene)
        return _OfIds(self, scene)

    def known(self, side: str, scene: Scene) -> Tensor:
        assert isinstance(scene, IdScene)
        return scene.usable[side]

    def embed(self, side: str, ids: list[Any]) -> Tensor:
        """Return the vectors [B, D] of B usable ids; differentiable."""
        with self.mixed_precision():
            rows = outputs_of(self.encoder_modules, side, ids)
        return self.normalized(rows)

    def encode(
        self,
        ids: Any,
        side: str = "candidate",
        *,
        batch_size: int | None = None,
        convert_to_numpy: bool = True,
    ) -> NDArray[np.float32] | Tensor:
        """Return the embeddings [N, D] of N ids, in evaluation mode and without gradient.

        Args:
            ids: a list, an array, a table whose only column is "id", or a `Corpus`, for all ids of
                a side. Ids that the modules do not accept get zeros.
            batch_size: number of ids in a forward pass; `EncoderModules.batch_size` by default.
        Raises: DataError: the side is neither "query" nor "candidate", ids have another type than
            in training, an id is missing, or there are other columns.
        """
        if side not in SIDES:
            raise DataError(f"The side {side!r} is unknown; give 'query' or 'candidate'.")
        size = self.encoder_modules.batch_size if batch_size is None else batch_size
        if size < 1:
            raise DataError(f"batch_size is {size}; it must be at least 1.")
        if isinstance(ids, Corpus):
            keys = ids.sides[side].vocabulary.keys
        else:
            columns = columns_of(ids)
            if set(columns) != {ID}:
                what = next((f"{n!r} was given" for n in columns if n != ID), "no id was given")
                raise DataError(
                    f"An encoder of your own modules reads only ids, but {what}; give a list of "
                    "ids, and let query_inputs and candidate_inputs look up their features."
                )
            keys = columns[ID]
            refuse_other_ids(keys, side, self.schema)
            refuse_missing(keys, "Id")
        blocks = self(self._scene({side: keys})).blocks(side, size)
        vectors = join_blocks((block.cpu() for block in blocks), len(keys), self.dim)
        return vectors.numpy() if convert_to_numpy else vectors

    def tensors(self) -> dict[str, Tensor]:
        """Return the distinct tensors of the modules; a shared one has its first name. Raises:
        DataError: a module's state contains something other than tensors."""
        distinct: dict[int, str] = {}
        tensors: dict[str, Tensor] = {}
        for name, value in self.state_dict(keep_vars=True).items():
            if not isinstance(value, Tensor):
                raise DataError(
                    f"{name} in the encoder's state is a {type(value).__name__}; only tensors can "
                    "be published, so remove get_extra_state from the module."
                )
            if distinct.setdefault(id(value), name) == name:
                tensors[name] = value.detach()
        return tensors

    def _scene(self, keys: Mapping[str, pa.Array]) -> IdScene:
        usable = {}
        for side, ids in keys.items():
            if self.encoder_modules.new_ids:
                usable[side] = torch.ones(len(ids), dtype=torch.bool)
            else:
                usable[side] = self.schema.ids(side).rows(ids) >= 0
        return IdScene({}, None, keys, usable, self.schema)


class _OfIds(OnDemand):
    """The embeddings of a scene's ids."""

    encoder: ModuleEncoder
    scene: IdScene

    def rows(self, side: str, ids: Tensor) -> Tensor:
        # Embed repeated entities of a batch only once.
        distinct, inverse = torch.unique(ids, return_inverse=True)
        distinct = distinct.cpu()
        usable = self.scene.usable[side][distinct]
        keys = self.scene.keys[side].take(pa.array(distinct[usable].numpy())).to_pylist()
        if bool(usable.all()):
            return self.encoder.embed(side, keys)[inverse]
        rows = torch.zeros(len(distinct), self.encoder.dim, device=self.encoder.device)
        if keys:
            rows[usable.to(rows.device)] = self.encoder.embed(side, keys)
        return rows[inverse]

    def blocks(self, side: str, batch_size: int = ROWS) -> Iterator[Tensor]:
        return super().blocks(side, min(batch_size, self.encoder.encoder_modules.batch_size))


def restore_module_encoder(
    modules: EncoderModules,
    options: Mapping[str, Any],
    schema: Schema,
    tensors: Mapping[str, Tensor],
    version: str,
) -> ModuleEncoder:
    """Return a published encoder in evaluation mode, in copies of the modules.

    Args:
        version: the encoder's version, such as "version 1", for error messages.
    Raises: ShapeError: the modules have other tensors.
    """
    encoder = ModuleEncoder(modules.copied(), schema, **options).cpu()
    current = encoder.tensors()
    given, published = ({n: (v.shape, v.dtype) for n, v in e.items()} for e in (current, tensors))
    if given != published:
        differing = sorted(n for n in given | published if given.get(n) != published.get(n))
        raise ShapeError(
            f"These are not the modules of {version}: tensors differ in name, shape or type "
            f"({', '.join(differing[:3])}{' …' if len(differing) > 3 else ''}). Give the modules "
            "that it was trained with."
        )
    with torch.no_grad():
        for name, value in tensors.items():
            current[name].copy_(value)
    return encoder.eval()


def check_vectors(
    encoder: ModuleEncoder, side: str, ids: pa.Array, published: Tensor, version: str
) -> None:
    """Check that an encoder reproduces the published vectors of these ids.

    Args:
        ids: n ids of its schema, as strings.
        published: [n, D].
    Raises: DataError: the vectors differ by 1 % or more.
    """
    vocabulary = encoder.schema.ids(side)
    rows = Vocabulary(vocabulary.keys.cast(pa.string())).rows(ids)
    rows, published = rows[rows >= 0], published[rows >= 0]
    if not len(rows):
        return
    keys = vocabulary.keys.take(pa.array(rows.numpy()))
    vectors = torch.from_numpy(encoder.encode(keys, side))
    error = float((vectors - published).norm() / published.norm().clamp(min=1e-12))
    if not error < 0.01:
        raise DataError(
            f"With these modules, the {side} vectors of {version} differ by {error:.0%} from the "
            "published ones; give the same modules and input functions as in training."
        )
