"""A recipe: everything a run is made of, in one TOML file, checked strictly."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from evergram.errors import RecipeError

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


_TABLE_ONLY = ("test", "query_features", "candidate_features", "columns", "shared_ids")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataRecipe(_Strict):
    """Where the corpus comes from. Paths are relative to the recipe's folder."""

    kind: Literal["movielens", "table", "synthetic"]
    path: str | None = None
    # table: more files, and the file's own names of its columns.
    test: str | None = None
    query_features: str | None = None
    candidate_features: str | None = None
    columns: dict[Literal["query", "candidate", "value", "time"], str] = {}
    shared_ids: bool = False
    # synthetic: the size of the planted corpus.
    queries: Positive = 2000
    candidates: Positive = 1000
    interactions: Positive = 60_000
    drift: Weight = 0.3
    # Keep interactions whose value is at least this (all where it is absent).
    minimum_value: float | None = None

    @model_validator(mode="after")
    def _needs_a_path(self) -> DataRecipe:
        if self.kind != "synthetic" and self.path is None:
            raise ValueError(f"data.kind = {self.kind!r} needs data.path")
        for key in _TABLE_ONLY if self.kind != "table" else ():
            if getattr(self, key):
                raise ValueError(f"data.{key} is for data.kind = 'table' only")
        return self


class SplitRecipe(_Strict):
    """What is held out; see `evergram.data.split`."""

    kind: Literal["random", "time", "given"] = "random"
    # random: the share held out. given: the share of training that selects epochs.
    share: Share = 0.1
    # time: version n has seen versions[n] of all interactions, in order of time.
    versions: list[Share] = [0.8, 0.9]
    selection: Literal["strict", "paper"] = "strict"

    @model_validator(mode="after")
    def _ascending(self) -> SplitRecipe:
        if not self.versions or sorted(set(self.versions)) != self.versions:
            raise ValueError("split.versions must be one or more ascending shares")
        return self


class ModelRecipe(_Strict):
    """The encoder. `dim` may be a list, one entry a version; the last holds for all later."""

    kind: Literal["factorization", "two_tower"] = "factorization"
    dim: Annotated[list[Positive], Field(min_length=1), BeforeValidator(_listed)] = [64]
    scale: Rate = 0.1
    # two_tower only.
    input_dim: Positive = 64
    hidden: list[Positive] = [128]

    def dim_of(self, version: int) -> int:
        return self.dim[min(version, len(self.dim) - 1)]


class TaskRecipe(_Strict):
    """The objective: squared error on observed pairs, and λ times the penalty on all pairs."""

    target: Literal["one", "value"] = "one"
    penalty: Weight = 10.0
    l2: Weight = 0.0
    # p_a ∝ count_a^measure: 0 is uniform, 1 is the measure of examples.
    query_measure: Weight = 0.0
    candidate_measure: Weight = 0.0


class GramianRecipe(_Strict):
    """How the Gramians are estimated. `rate` is SOGram's α."""

    kind: Literal["exact", "sogram"] = "sogram"
    rate: Annotated[float, Field(gt=0, le=1)] = 0.05


class TrainingRecipe(_Strict):
    """The loop. `table_rate` is Adagrad's on embedding tables, `layer_rate` Adam's on the rest."""

    epochs: Positive = 15
    batch_size: Positive = 4096
    table_rate: Rate = 0.05
    layer_rate: Rate = 1e-3
    # Epochs between evaluations, and the metric that keeps the best.
    evaluate_every: Positive = 1
    metric: Annotated[str, Field(pattern=r"^(recall|ndcg|map)@[1-9]\d*$")] = "recall@20"
    # Seconds of training (evaluation not counted) after which the last epoch ends.
    budget: Rate | None = None


class UpgradeRecipe(_Strict):
    """Joint training with the backward transform. [BC] Eq. (3)."""

    # λ, on mean ‖δ‖² ("norm") or in the unit of [BC]'s code ("paper").
    weight: Weight = 16.0
    unit: Literal["norm", "paper"] = "paper"
    # Multi-step loss over all past versions (BC-Aligner) or single-step.
    steps: Literal["multi", "single"] = "multi"
    transform_rate: Rate = 3e-3
    # Share of known objects that alignment never sees; its error is measured on them.
    held_out: Share = 0.05
    # Also train the same model without alignment, to say what compatibility cost.
    alone: bool = True


class Recipe(_Strict):
    """One TOML file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "embeddings"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    metrics: list[Annotated[str, Field(pattern=r"^(recall|ndcg|map)@[1-9]\d*$")]] = [
        "recall@20",
        "ndcg@20",
        "map@10",
    ]
    data: DataRecipe
    split: SplitRecipe = SplitRecipe()
    model: ModelRecipe = ModelRecipe()
    task: TaskRecipe = TaskRecipe()
    gramian: GramianRecipe = GramianRecipe()
    training: TrainingRecipe = TrainingRecipe()
    upgrade: UpgradeRecipe = UpgradeRecipe()

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        if (self.split.kind == "given") != (self.data.test is not None):
            raise ValueError("split.kind = 'given' and data.test need each other")
        return self

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
        """Read a TOML file, then set each `key.path=value` of `overrides` (values are TOML).

        Raises: RecipeError: the file is missing or is not TOML, or a key or value is not allowed.
        """
        path = Path(path)
        try:
            values = tomllib.loads(path.read_text())
        except FileNotFoundError:
            raise RecipeError(f"There is no recipe {path}; give the path of a TOML file.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"The recipe {path} cannot be read: {error}.") from error
        except tomllib.TOMLDecodeError as error:
            raise RecipeError(f"The recipe {path} is not TOML: {error}.") from error
        return cls.of(values, overrides, folder=path.parent, source=str(path))

    @classmethod
    def of(
        cls,
        values: dict[str, Any],
        overrides: Sequence[str] = (),
        *,
        folder: Path | None = None,
        source: str = "The recipe",
    ) -> Recipe:
        """From nested dicts. `folder` is what the paths in them are relative to; a path in an
        override is relative to where the process stands."""
        values = {k: dict(v) if isinstance(v, dict) else v for k, v in values.items()}
        if folder is not None:
            _resolve(values, folder)
        for override in overrides:
            _set(values, override)
        if overrides:
            _resolve(values, Path.cwd())
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise RecipeError(f"{source}: {_sentence(error)}") from None


def _resolve(values: dict[str, Any], folder: Path) -> None:
    """Make the data's relative paths absolute, from `folder`."""
    data = values.get("data")
    for key in ("path", "test", "query_features", "candidate_features"):
        if isinstance(data, dict) and isinstance(data.get(key), str):
            data[key] = str((folder / data[key]).resolve())


def _set(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise RecipeError(f"--set {override!r} is not of the form key.path=value.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    table = values
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise RecipeError(f"--set {override!r}: {name} is a value, not a table.")
    table[names[-1]] = value


def _sentence(error: ValidationError) -> str:
    """The first problem, by the key a person wrote."""
    problem = error.errors()[0]
    names = [part for part in problem["loc"] if isinstance(part, str)]
    key = ".".join(names)
    if problem["type"] == "extra_forbidden":
        model = Recipe
        for name in names[:-1]:
            model = model.model_fields[name].annotation  # type: ignore[assignment]
        allowed = ", ".join(model.model_fields)
        return f"the key {key} is unknown; allowed here are: {allowed}."
    if problem["type"] == "missing":
        return f"the key {key} is missing."
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if problem["type"] == "value_error":
        return f"{message}."
    return f"{key} is {problem['input']!r}; it {message}."
