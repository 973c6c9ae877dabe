"""The kinds of encoders, with the settings of each; recipes' `[model]` is made of them.

Importing this does not import torch.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, model_validator

from evergram.kinds import KindSettings, PerVersion, Positive, Rate, table_of

if TYPE_CHECKING:
    from evergram.encoders.encoder import Encoder


class EncoderSettings(KindSettings):
    """Settings of an encoder, what training must provide for it, and how it is made."""

    # False for an encoder that is passed in from Python: the recipe then does not set its size.
    made_by_recipe: ClassVar[bool] = True
    # True if it reads features besides ids.
    reads_features: ClassVar[bool] = True
    # True if it embeds entities by the interactions of a corpus.
    needs_graph: ClassVar[bool] = False
    # True if each step is a pass over all interactions, and has the embeddings of all entities.
    passes_over_graph: ClassVar[bool] = False
    # The rates of [training] that its parameters have: `table_rate` (an `nn.Embedding` of ids),
    # `feature_rate` (`Encoder.feature_tables`), `layer_rate` (all else).
    rates: ClassVar[tuple[str, ...]] = ("table_rate", "feature_rate", "layer_rate")
    # True if a step embeds a batch through layers, whose products may be in bfloat16.
    mixes_precision: ClassVar[bool] = False
    # True if its class takes `folder`, from whose files its tables are then mapped.
    maps_tables: ClassVar[bool] = False
    # True if its tables can start from vectors that are made of the pairs.
    takes_start: ClassVar[bool] = False
    # The keys that are lists with one entry for each version, as `dim` is.
    per_version: ClassVar[tuple[str, ...]] = ()
    # The keys besides `dim` that set its size; errors about memory name them.
    size_keys: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def encoder_class(cls) -> type[Encoder]:
        """Return the class, which is built by (schema, **options, generator=…)."""

    def options(self, version: int) -> dict[str, Any]:
        """Return the keywords of `encoder_class()` for a version, as JSON for artefacts.

        `dim`, `scale` and `normalize` are not among them.
        """
        values = self.model_dump()
        return {name: self._at(name, version) for name in values}

    def table_rows(self, queries: int, candidates: int, *, shared: bool) -> int:
        """Return the rows of all tables of ids, for so many entities.

        Args:
            shared: whether both sides share their ids.
        """
        return queries + candidates

    def layer_numbers(self, dim: int, version: int) -> int:
        """Return a lower bound of the number of parameters of the layers, without tables."""
        return 0

    def _at(self, name: str, version: int) -> Any:
        """Return the value of a key for a version."""
        value = getattr(self, name)
        return at_version(value, version) if name in self.per_version else value


def at_version(values: list[int], version: int) -> int:
    """Return a version's entry of a list with one for each; the last one serves all later ones."""
    return values[min(version, len(values) - 1)]


class IdTableSettings(EncoderSettings):
    """Tables of ids with one row for each id, or with `hash_rows` rows that ids share by a hash,
    which `hash_seed` changes.
    """

    maps_tables = True
    hash_rows: Annotated[Positive, Field(lt=2**31)] | None = None
    hash_seed: Annotated[int, Field(ge=0, lt=2**31)] = 0

    def options(self, version: int) -> dict[str, Any]:
        options = super().options(version)
        if self.hash_rows is None:  # as published versions have it that know of no hash
            del options["hash_rows"], options["hash_seed"]
        return options

    def table_rows(self, queries: int, candidates: int, *, shared: bool) -> int:
        if self.hash_rows is None:
            return queries + candidates
        return self.hash_rows * (1 if shared else 2)


class FactorizationSettings(IdTableSettings):
    """A free vector for each entity."""

    kind = "factorization"
    reads_features = False
    takes_start = True
    rates: ClassVar[tuple[str, ...]] = ("table_rate",)

    @classmethod
    def encoder_class(cls) -> type[Encoder]:
        from evergram.encoders.factorization import Factorization

        return Factorization


class TwoTowerSettings(IdTableSettings):
    """Ids and features through layers.

    `input_dim` is the width of each input embedding, by default `dim`; `hidden` are the widths of
    the hidden layers. `residual` adds the sum of the input embeddings to the layers' output;
    without it they may be concatenated instead of summed.
    """

    kind = "two_tower"
    mixes_precision = True
    size_keys: ClassVar[tuple[str, ...]] = ("input_dim", "hidden")
    input_dim: Positive | None = None
    hidden: list[Positive] = Field(default=[64])
    residual: bool = True
    concatenate: bool = False

    @model_validator(mode="after")
    def _concatenated_through_layers(self) -> TwoTowerSettings:
        if self.concatenate and self.residual:
            raise ValueError(
                "model.concatenate = true makes the layers' input as wide as all input embeddings "
                "together, and model.residual = true adds it to their output; set model.residual "
                "= false"
            )
        return self

    @classmethod
    def encoder_class(cls) -> type[Encoder]:
        from evergram.encoders.two_tower import TwoTower

        return TwoTower

    def layer_numbers(self, dim: int, version: int) -> int:
        layers = self.hidden or not self.residual
        sizes = [self.input_dim or dim, *self.hidden, dim] if layers else []
        return 2 * sum(a * b for a, b in pairwise(sizes))


class GraphSageSettings(EncoderSettings):
    """A node combined with the mean of its neighbours, `layers` times.

    `input_dim` is the width of the first vectors and between layers, by default `dim`; `ids` adds
    rows of their ids to candidates that have features. `shared_scale` is the deviation at the start
    of the vector that all queries share, by default `scale`; `repeats` makes an edge of each
    interaction, not of each pair.
    """

    kind = "graphsage"
    needs_graph = True
    passes_over_graph = True
    rates: ClassVar[tuple[str, ...]] = ("layer_rate",)
    per_version: ClassVar[tuple[str, ...]] = ("layers",)
    size_keys: ClassVar[tuple[str, ...]] = ("input_dim", "layers")
    input_dim: Positive | None = None
    ids: bool = False
    shared_scale: Rate | None = None
    repeats: bool = False
    layers: PerVersion = Field(default=[2])

    @classmethod
    def encoder_class(cls) -> type[Encoder]:
        from evergram.encoders.graph.graphsage import GraphSage

        return GraphSage

    def options(self, version: int) -> dict[str, Any]:
        return {
            "layers": at_version(self.layers, version),
            "width": self.input_dim,
            "ids": self.ids,
            "shared_scale": self.shared_scale,
            "repeats": self.repeats,
        }

    def layer_numbers(self, dim: int, version: int) -> int:
        inner, layers = self.input_dim or dim, at_version(self.layers, version)
        return 2 * inner * ((layers - 1) * inner + dim)


class LightGCNSettings(EncoderSettings):
    """Free vectors, smoothed `layers` times over the graph."""

    kind = "lightgcn"
    needs_graph = True
    passes_over_graph = True
    rates: ClassVar[tuple[str, ...]] = ("layer_rate",)
    per_version: ClassVar[tuple[str, ...]] = ("layers",)
    layers: PerVersion = Field(default=[2])

    @classmethod
    def encoder_class(cls) -> type[Encoder]:
        from evergram.encoders.graph.lightgcn import LightGCN

        return LightGCN


class MeanOfCandidatesSettings(EncoderSettings):
    """A free vector for each candidate; a query is the mean of those that it met."""

    kind = "mean_of_candidates"
    reads_features = False
    needs_graph = True
    rates: ClassVar[tuple[str, ...]] = ("table_rate",)

    @classmethod
    def encoder_class(cls) -> type[Encoder]:
        from evergram.encoders.graph.mean_of_candidates import MeanOfCandidates

        return MeanOfCandidates

    def table_rows(self, queries: int, candidates: int, *, shared: bool) -> int:
        return candidates


class ModuleSettings(EncoderSettings):
    """The user's own modules, passed in from Python as `EncoderModules`."""

    kind = "module"
    made_by_recipe = False
    mixes_precision = True
    reads_features = False
    rates: ClassVar[tuple[str, ...]] = ("table_rate", "layer_rate")

    @classmethod
    def encoder_class(cls) -> type[Encoder]:
        from evergram.encoders.module_encoder import ModuleEncoder

        return ModuleEncoder


ENCODERS: dict[str, type[EncoderSettings]] = table_of(
    FactorizationSettings,
    TwoTowerSettings,
    GraphSageSettings,
    LightGCNSettings,
    MeanOfCandidatesSettings,
    ModuleSettings,
)
