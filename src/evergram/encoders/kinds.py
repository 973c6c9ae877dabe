"""The kinds of encoders and their settings, the [model] table of recipes.

Importing this module does not import torch.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from evergram.kinds import (
    Kinds,
    KindSettings,
    Needs,
    PerVersion,
    Positive,
    Trait,
    imported,
    traits_where,
)

if TYPE_CHECKING:
    from evergram.encoders.encoder import Encoder


class EncoderSettings(KindSettings):
    """Settings of an encoder, its demands on training, and its class."""

    # The import path of the encoder class.
    built: ClassVar[str]
    # False for an encoder passed in from Python, whose size the recipe does not set.
    made_by_recipe: ClassVar[bool] = True
    # True if it reads features besides ids.
    reads_features: ClassVar[bool] = True
    # True if each step passes over all interactions and embeds all entities.
    passes_over_graph: ClassVar[bool] = False
    # The learning rates of [training] that its parameters use: `table_rate` (`nn.Embedding`s of
    # ids), `feature_rate` (`Encoder.feature_tables`), `layer_rate` (everything else).
    rates: ClassVar[tuple[str, ...]] = ("table_rate", "feature_rate", "layer_rate")
    # True if a step passes a batch through layers, whose products may be in bfloat16.
    mixes_precision: ClassVar[bool] = False
    # True if its class takes `folder` to map its tables from files.
    maps_tables: ClassVar[bool] = False
    # The keys that are lists with one entry per version, like `dim`.
    per_version: ClassVar[tuple[str, ...]] = ()

    # D; a list has one entry per version, and the last one applies to all later versions.
    dim: Annotated[PerVersion, Needs(Trait.SIZED)] = Field(default=[64])
    # Scale rows to unit norm.
    normalize: bool = False

    @property
    def start_scale(self) -> float:
        """The standard deviation of initial tables."""
        return 0.1

    @classmethod
    def encoder_class(cls) -> type[Encoder]:
        """Return the encoder's class; call it with (schema, **options, generator=…)."""
        encoder: type[Encoder] = imported(cls.built)
        return encoder

    def options(self, version: int) -> dict[str, Any]:
        """Return keyword arguments of `encoder_class()` for a version, as JSON for artefacts.

        `dim`, `scale` and `normalize` may be left out.
        """
        own = type(self).model_fields.keys() - EncoderSettings.model_fields.keys()
        return {name: self._at(name, version) for name in type(self).model_fields if name in own}

    def dim_of(self, version: int) -> int:
        """Return D of a version."""
        return at_version(self.dim, version)

    def as_of(self, version: int) -> Self:
        """Return settings that have the values of `version` for every version."""
        lists = {name: getattr(self, name) for name in ("dim", *self.per_version)}
        return self.model_copy(
            update={name: [at_version(values, version)] for name, values in lists.items()}
        )

    @property
    def traits(self) -> frozenset[Trait]:
        return traits_where(
            {
                Trait.SIZED: self.made_by_recipe,
                Trait.UNIT_ROWS: self.normalize,
                Trait.FREE_NORMS: not self.normalize,
                Trait.ID_TABLES: "table_rate" in self.rates,
                Trait.FEATURE_TABLES: "feature_rate" in self.rates,
                Trait.LAYERS: "layer_rate" in self.rates,
                Trait.BATCH_PRODUCTS: self.mixes_precision,
                Trait.MAPPABLE: self.maps_tables,
            }
        )

    def table_rows(self, queries: int, candidates: int) -> int:
        """Return the number of rows of all id tables, given the numbers of entities."""
        return queries + candidates

    def layer_numbers(self, dim: int, version: int) -> int:
        """Return a lower bound of the number of parameters in layers, without tables."""
        return 0

    def _at(self, name: str, version: int) -> Any:
        """Return the value of a key for a version."""
        value = getattr(self, name)
        return at_version(value, version) if name in self.per_version else value


def at_version(values: list[int], version: int) -> int:
    """Return the entry of a version; the last one applies to all later versions."""
    return values[min(version, len(values) - 1)]


class FactorizationSettings(EncoderSettings):
    """A free vector for each entity."""

    kind: Literal["factorization"] = "factorization"
    built = "evergram.encoders.encoder.Factorization"
    reads_features = False
    maps_tables = True
    rates: ClassVar[tuple[str, ...]] = ("table_rate",)
    # The initial tables: Gaussian rows, or vectors computed from the pairs, see `smooth_start`.
    start: Literal["random", "smooth"] = "random"

    def options(self, version: int) -> dict[str, Any]:
        return {k: v for k, v in super().options(version).items() if k != "start"}

    @property
    def traits(self) -> frozenset[Trait]:
        start = traits_where({Trait.MADE_START: self.start != "random"})
        return super().traits | {Trait.FREE_VECTORS} | start


class TwoTowerSettings(EncoderSettings):
    """Ids and features through layers.

    `input_dim` is the width of each input embedding, by default `dim`; `hidden` are the widths of
    the hidden layers.
    """

    kind: Literal["two_tower"] = "two_tower"
    built = "evergram.encoders.encoder.TwoTower"
    mixes_precision = True
    maps_tables = True
    input_dim: Positive | None = None
    hidden: list[Positive] = Field(default=[64])

    def layer_numbers(self, dim: int, version: int) -> int:
        sizes = [self.input_dim or dim, *self.hidden, dim] if self.hidden else []
        return 2 * sum(a * b for a, b in pairwise(sizes))


class GraphSageSettings(EncoderSettings):
    """Each layer combines a node with the mean of its neighbours.

    `input_dim` is the width of initial vectors and between layers, by default `dim`; `ids` adds id
    vectors to candidates that have features.
    """

    kind: Literal["graphsage"] = "graphsage"
    built = "evergram.encoders.graph_encoders.GraphSage"
    passes_over_graph = True
    rates: ClassVar[tuple[str, ...]] = ("layer_rate",)
    per_version: ClassVar[tuple[str, ...]] = ("layers",)
    input_dim: Positive | None = None
    ids: bool = False
    layers: PerVersion = Field(default=[2])

    def options(self, version: int) -> dict[str, Any]:
        return {
            "layers": at_version(self.layers, version),
            "width": self.input_dim,
            "ids": self.ids,
        }

    def layer_numbers(self, dim: int, version: int) -> int:
        inner, layers = self.input_dim or dim, at_version(self.layers, version)
        return 2 * inner * ((layers - 1) * inner + dim)


class LightGCNSettings(EncoderSettings):
    """Free vectors, smoothed `layers` times over the graph."""

    kind: Literal["lightgcn"] = "lightgcn"
    built = "evergram.encoders.graph_encoders.LightGCN"
    passes_over_graph = True
    rates: ClassVar[tuple[str, ...]] = ("layer_rate",)
    per_version: ClassVar[tuple[str, ...]] = ("layers",)
    layers: PerVersion = Field(default=[2])


class MeanOfCandidatesSettings(EncoderSettings):
    """A free vector for each candidate; a query is the mean of the candidates that it met."""

    kind: Literal["mean_of_candidates"] = "mean_of_candidates"
    built = "evergram.encoders.mean_of_candidates.MeanOfCandidates"
    reads_features = False
    rates: ClassVar[tuple[str, ...]] = ("table_rate",)

    def table_rows(self, queries: int, candidates: int) -> int:
        return candidates


class ModuleSettings(EncoderSettings):
    """The user's own modules, passed in from Python as `EncoderModules`."""

    kind: Literal["module"] = "module"
    built = "evergram.encoders.module_encoder.ModuleEncoder"
    made_by_recipe = False
    mixes_precision = True
    reads_features = False
    rates: ClassVar[tuple[str, ...]] = ("table_rate", "layer_rate")


ENCODERS: Kinds[EncoderSettings] = Kinds(
    "model",
    (
        FactorizationSettings,
        TwoTowerSettings,
        GraphSageSettings,
        LightGCNSettings,
        MeanOfCandidatesSettings,
        ModuleSettings,
    ),
)
