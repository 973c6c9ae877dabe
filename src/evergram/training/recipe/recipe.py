"""A recipe: everything a run is made of, in one TOML file, checked strictly."""

from __future__ import annotations

import logging
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from evergram.compatibility.transform_kinds import TransformKind
from evergram.data.loaders import LoaderKind
from evergram.data.rolling_window import RollingWindow
from evergram.errors import RecipeError
from evergram.lineage.disk.names import RULE, is_name
from evergram.training.recipe.methods import METHODS
from evergram.training.recipe.used_keys import unused
from evergram.training.recipe.values import (
    copied,
    overridden,
    override_keys,
    resolve_paths,
    written_keys,
)
from evergram.validation import sentence_of

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _is_metric(value: str) -> str:
    if not re.fullmatch(r"(recall|ndcg|map)@[1-9]\d{0,5}", value):
        raise ValueError(
            "it must be recall@K, ndcg@K or map@K with K from 1 to 999999, such as 'recall@20'"
        )
    return value


Metric = Annotated[str, AfterValidator(_is_metric)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataRecipe(_Strict):
    """Where the corpus comes from. Paths are relative to the recipe's folder, or begin with
    `$EVERGRAM_DATA/`, the folder of data sets."""

    kind: LoaderKind
    path: str | None = None
    # amazon: where the metadata is, if not beside the reviews.
    metadata: str | None = None
    # mediawiki: what the dumps' names start with.
    prefix: str | None = None
    # table: more files, and the file's own names of its columns.
    test: str | None = None
    query_features: str | None = None
    candidate_features: str | None = None
    columns: dict[Literal["query", "candidate", "value", "time", "weight"], str] = {}
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
        return self


class SplitRecipe(_Strict):
    """What is held out; see `evergram.data.split`."""

    kind: Literal["random", "time", "given"] = "random"
    # random: the share held out. given: the share of training that selects epochs.
    share: Share = 0.1
    # time: version n has seen versions[n] of all interactions, in order of time.
    versions: Annotated[list[Share], Field(min_length=1)] = [0.8, 0.9]
    # time: where the last interval ends; as far again as the one before it where it is absent.
    end: Annotated[float, Field(gt=0, le=1)] | None = None
    # time: every version sees all but the last "5 %", or "7 days", instead of `versions`.
    last: str | None = None
    selection: Literal["strict", "paper"] = "strict"
    # What the hash of held-out pairs starts from; a lineage keeps that of its version 0.
    salt: Annotated[str, Field(min_length=1, max_length=200)] | None = None

    @model_validator(mode="after")
    def _ascending(self) -> SplitRecipe:
        if sorted(set(self.versions)) != self.versions:
            raise ValueError("split.versions must be one or more ascending shares")
        if self.end is not None and self.end <= self.versions[-1]:
            raise ValueError(
                f"split.end is {self.end} and the last of split.versions {self.versions[-1]}; "
                "nothing would be left to test"
            )
        if self.last is not None:
            RollingWindow.parse(self.last)
            # By value, as the recipe that a lineage stores has every key.
            if self.end is not None or self.versions != [0.8, 0.9]:
                raise ValueError(
                    "split.last and split.versions (or split.end) exclude each other: either "
                    "every version sees all but the last part, or each has a share of its own"
                )
        return self

    @property
    def ends(self) -> list[float]:
        """Where each interval of time begins, and where the last one ends."""
        last = self.versions[-1]
        if self.end is not None:
            end = self.end
        elif len(self.versions) > 1:
            end = min(1.0, 2 * last - self.versions[-2])
        else:
            end = 1.0
        return [*self.versions, end]


class ModelRecipe(_Strict):
    """The encoder. `dim` and `layers` may be lists, one entry a version; the last holds for all
    later."""

    kind: Literal["factorization", "two_tower", "graphsage", "lightgcn"] = "factorization"
    dim: Annotated[list[Positive], Field(min_length=1), BeforeValidator(_listed)] = [64]
    scale: Rate = 0.1
    # Rows of unit norm.
    normalize: bool = False
    # two_tower and graphsage: width of the inputs, and of graphsage between layers.
    input_dim: Positive | None = None  # `dim` where it is absent
    # two_tower only.
    hidden: list[Positive] = [64]
    # graphsage: rows of candidates' ids beside those of their features.
    ids: bool = False
    # graphsage and lightgcn: how many; one entry a version, as `dim`.
    layers: Annotated[list[Positive], Field(min_length=1), BeforeValidator(_listed)] = [2]

    def dim_of(self, version: int) -> int:
        return self.dim[min(version, len(self.dim) - 1)]

    def layers_of(self, version: int) -> int:
        return self.layers[min(version, len(self.layers) - 1)]

    def as_of(self, version: int) -> ModelRecipe:
        """The same model at every version, that of `version`."""
        return self.model_copy(
            update={"dim": [self.dim_of(version)], "layers": [self.layers_of(version)]}
        )


# One measure of a side, or a list of them: a power γ, or a file of weights.
Measures = Annotated[list[float | str], Field(min_length=1), BeforeValidator(_listed)]


class TaskRecipe(_Strict):
    """The objective: a loss on observed pairs, and λ times the penalty on all pairs."""

    kind: Literal["pointwise", "bpr", "softmax", "second_order"] = "pointwise"
    # pointwise only: the loss, and what an observed pair should score.
    loss: Literal["squared", "logistic"] = "squared"
    target: Literal["one", "value"] = "one"
    # softmax and second_order: scores are divided by it.
    temperature: Rate = 1.0
    # second_order: take off the squared mean (False is RG²).
    centred: bool = True
    # How pairs are drawn: all in turn, or a query first. BPR's is "queries".
    positives: Literal["examples", "queries"] | None = None
    # λ, one a measure; "auto" scales with the data, see `evergram.training.recipe.automatic`.
    penalty: (
        Annotated[list[Weight], Field(min_length=1), BeforeValidator(_listed)] | Literal["auto"]
    ) = "auto"
    # Squared norms: of every example's, or under the penalty's (first) measure.
    l2: Weight | Literal["auto"] = "auto"
    # "penalty" for an automatic l2, "examples" for a given one, where it is absent.
    l2_measure: Literal["examples", "penalty"] | None = None
    # p_a ∝ count_a^measure: 0 is uniform, 1 is the measure of examples; or a file of weights.
    query_measure: Measures = [0.0]
    candidate_measure: Measures = [0.0]
    # The sparse part of the penalty's weights: observed pairs taken out, or a column `weight`.
    sparse: Literal["none", "exclude", "weight"] = "none"
    # Global orthogonal regularisation of a side.
    query_orthogonal: Weight = 0.0
    candidate_orthogonal: Weight = 0.0

    @model_validator(mode="after")
    def _one_each(self) -> TaskRecipe:
        lengths = {len(self.query_measure), len(self.candidate_measure)}
        if self.penalty == "auto" and max(lengths) > 1:
            raise ValueError(
                "task.penalty = 'auto' is one λ for one measure; give a list of numbers, one for "
                "each entry of task.query_measure and task.candidate_measure"
            )
        if len({*lengths, 1 if self.penalty == "auto" else len(self.penalty)}) > 1:
            raise ValueError(
                "task.penalty, task.query_measure and task.candidate_measure must be as long as "
                "one another, one entry a measure"
            )
        for side in ("query", "candidate"):
            for power in getattr(self, f"{side}_measure"):
                if isinstance(power, float) and not 0 <= power < math.inf:
                    raise ValueError(f"task.{side}_measure is {power}; a power must be 0 or more")
        return self

    @property
    def drawn(self) -> str:
        """How pairs are drawn."""
        return self.positives or ("queries" if self.kind == "bpr" else "examples")


class PriorRecipe(_Strict):
    """What the penalty pulls unobserved scores towards: ⟨q_a, r_b⟩, low-rank."""

    kind: Literal["zero", "constant", "files", "svd", "version"] = "zero"
    # constant: the score.
    value: float = 0.0
    # files: embeddings, columns `id` and `vector`, of both sides.
    query: str | None = None
    candidate: str | None = None
    # svd: rank of the truncated decomposition of the observed matrix.
    rank: Positive = 32

    @model_validator(mode="after")
    def _needs_files(self) -> PriorRecipe:
        if self.kind == "files" and (self.query is None or self.candidate is None):
            raise ValueError("prior.kind = 'files' needs prior.query and prior.candidate")
        return self


class GramianRecipe(_Strict):
    """How the Gramians are estimated."""

    kind: Literal["exact", "sampled", "sagram", "sogram", "storm"] = "sogram"
    # sogram, storm: α, or "auto"; step t has α t^-decay.
    rate: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = "auto"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    # sagram: β; and MiB of cache above which it is kept on disk.
    beta: Annotated[Literal["1/n", "1"], BeforeValidator(str)] = "1/n"
    memory: Weight = 4096.0
    # sampled: as a matrix, as pairs, or whichever is cheaper.
    form: Literal["auto", "gramian", "pairs"] = "auto"
    # What is folded in: the batch before, or entities drawn apart, by `sampler`.
    batch: Literal["previous", "independent"] = "previous"
    sampler: Literal["uniform", "sqrt", "linear"] = "linear"
    batch_size: Positive | None = None


class TrainingRecipe(_Strict):
    """The loop. `table_rate` is Adagrad's on tables of ids and `feature_rate` on those of features,
    whose rows many entities share; `layer_rate` is Adam's on the rest."""

    # At most; training ends when so many evaluations in a row were no better (0: never).
    epochs: Positive = 100
    patience: Annotated[int, Field(ge=0)] = 10
    # At last train on all that is not test, for as many steps as selection found best; "auto" does
    # where split.kind is "given", for published figures are of such models.
    refit: bool | Literal["auto"] = "auto"
    # Pairs a step; "auto" makes about 32 steps an epoch of small data.
    batch_size: Positive | Literal["auto"] = "auto"
    table_rate: Rate = 0.1
    feature_rate: Rate = 0.005
    layer_rate: Rate = 2e-4
    # ρ of the inverse Gramians that gradients are multiplied by; 0 leaves them as they are.
    precondition: Weight = 0.1
    # Epochs between evaluations, and the metric that keeps the best.
    evaluate_every: Positive = 1
    metric: Metric = "recall@20"
    # Seconds of training (evaluation not counted) after which the last epoch ends.
    budget: Rate | None = None
    # The papers' metric while training goes on: MAP@10 on training and validation, every so many
    # minutes, against this many candidates.
    watch_minutes: Rate | None = None
    watch_candidates: Positive = 50_000
    # A value of `metric`: how long it took to reach it is reported.
    reach: Rate | None = None


CLOSED = ("linear", "affine", "orthogonal", "low_rank")


class UpgradeRecipe(_Strict):
    """How the next version comes to be, and its way back. [BC] §3, Table 1.

    `method` names four settings at once; each of them that is given beside it wins.
    """

    method: str | None = None
    # The transform is trained together with the model, afterwards, or not at all.
    fit: Literal["joint", "posthoc", "none"] = "joint"
    transform: TransformKind = "linear"
    # Errors are counted at all past versions (BC-Aligner) or at the one before alone.
    steps: Literal["multi", "single"] = "multi"
    # The model is new, goes on from the version before, or is the version before.
    start: Literal["fresh", "previous", "frozen"] = "fresh"
    # λ, on mean ‖δ‖² ("norm") or in the unit of [BC]'s code ("paper").
    weight: Weight = 16.0
    unit: Literal["norm", "paper"] = "paper"
    transform_rate: Rate = 3e-3
    # joint: a step aligns its batch's objects, or some drawn uniformly among all that are known;
    # at most so many of each side.
    objects: Literal["batch", "uniform"] = "batch"
    rows: Positive = 512
    # The transform is Adam's, or in the end replaced by the closed form on all objects.
    solver: Literal["gradient", "closed"] = "gradient"
    # low_rank, lambda_orthogonal and residual_mlp only.
    rank: Positive = 32
    orthogonality: Weight = 0.1
    transform_hidden: Positive = 128
    # posthoc by gradient: passes over the objects.
    fit_epochs: Positive = 100
    # Share of known objects that alignment never sees; its error is measured on them.
    held_out: Share = 0.05
    # Also train the same model without alignment, to say what compatibility cost.
    alone: bool = True
    # joint: the best epoch is looked for after this many.
    select_after: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, values: Any) -> Any:
        name = values.get("method") if isinstance(values, dict) else None
        if not isinstance(name, str):  # none, or of the wrong type, which the field says itself
            return values
        if name not in METHODS:
            raise ValueError(f"upgrade.method is {name!r}; it must be one of {', '.join(METHODS)}")
        return {**METHODS[name], **values}

    @model_validator(mode="after")
    def _closed_where_there_is_one(self) -> UpgradeRecipe:
        if self.solver == "closed" and self.fit != "none" and self.transform not in CLOSED:
            raise ValueError(
                f"upgrade.transform = {self.transform!r} has no closed form, {', '.join(CLOSED)} "
                "have one; set upgrade.solver = 'gradient'"
            )
        return self

    @property
    def transform_options(self) -> dict[str, Any]:
        """What `build_transform` takes beside the dims."""
        own: dict[str, dict[str, Any]] = {
            "low_rank": {"rank": self.rank},
            "lambda_orthogonal": {"strength": self.orthogonality},
            "residual_mlp": {"hidden": self.transform_hidden},
        }
        return own.get(self.transform, {})


Ratio = Annotated[float, Field(ge=0, lt=1)]


class CompareRecipe(_Strict):
    """`evergram compare`: methods side by side, by the protocol of [BC] §4 and App. A."""

    methods: Annotated[list[str], Field(min_length=1)] = list(METHODS)
    # Each is a seed of the whole: M_0, methods, consumers. A number n: the recipe's and n - 1 more.
    seeds: (
        Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)] | Positive
    ) = 1
    # What `split.selection` is; that of the split where it is absent.
    protocol: Literal["strict", "paper"] | None = None
    # The sweep of λ, and whose.
    lambdas: list[Weight] = []
    lambda_methods: list[str] = ["joint-notrans", "joint-lin-sloss", "bc-aligner"]
    # Consumers: widths and dropouts to choose from, classifiers a task, epochs at most.
    hidden: Annotated[list[Positive], Field(min_length=1)] = [128, 256, 512, 1024]
    dropout: Annotated[list[Ratio], Field(min_length=1)] = [0.0, 0.25, 0.5]
    consumers: Positive = 10
    epochs: Positive = 100
    # At most so many examples of a set, drawn; all where it is absent.
    max_examples: Positive | None = None
    # Ratings that a candidate needs to be asked about.
    minimum_ratings: Positive = 10

    @model_validator(mode="after")
    def _known(self) -> CompareRecipe:
        for key in ("methods", "lambda_methods"):
            names = getattr(self, key)
            for name in names:
                if name not in METHODS:
                    allowed = ", ".join(METHODS)
                    raise ValueError(f"compare.{key} has {name!r}; a method is one of {allowed}")
            if len(set(names)) < len(names):
                raise ValueError(f"compare.{key} names a method twice")
        for name in self.lambda_methods if self.lambdas else ():
            if METHODS[name]["fit"] != "joint":
                raise ValueError(
                    f"compare.lambda_methods has {name!r}, which has no λ; name joint methods"
                )
        if isinstance(self.seeds, list) and len(set(self.seeds)) < len(self.seeds):
            raise ValueError("compare.seeds names a seed twice")
        return self


def _named(value: str) -> str:
    """Raises: ValueError: the lineage cannot be called so."""
    if not is_name(value):
        raise ValueError(f"name is {value!r}; {RULE}")
    return value


class Recipe(_Strict):
    """One TOML file.

    >>> from evergram import Recipe
    >>> recipe = Recipe.of({"data": {"kind": "synthetic"}, "model": {"dim": [32, 40]}})
    >>> recipe.model.dim_of(version=1)
    40
    >>> Recipe.load("recipes/synthetic.toml", ["training.epochs=5"]).training.epochs
    5
    """

    name: Annotated[str, AfterValidator(_named)] = "embeddings"
    seed: Seed = 0
    metrics: Annotated[list[Metric], Field(min_length=1)] = ["recall@20", "ndcg@20", "map@10"]
    data: DataRecipe
    split: SplitRecipe = SplitRecipe()
    model: ModelRecipe = ModelRecipe()
    task: TaskRecipe = TaskRecipe()
    prior: PriorRecipe = PriorRecipe()
    gramian: GramianRecipe = GramianRecipe()
    training: TrainingRecipe = TrainingRecipe()
    upgrade: UpgradeRecipe = UpgradeRecipe()
    compare: CompareRecipe = CompareRecipe()

    def __repr__(self) -> str:
        return f"Recipe({self.name!r}, {self.model.kind}, data {self.data.kind})"

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        if self.split.kind == "given" and self.data.test is None:
            raise ValueError("split.kind = 'given' needs data.test, the file of test pairs")
        if self.upgrade.select_after >= self.training.epochs:
            raise ValueError(
                f"upgrade.select_after is {self.upgrade.select_after} and training.epochs "
                f"{self.training.epochs}; no epoch would be left to select"
            )
        if self.training.refit is True and self.split.selection == "paper":
            raise ValueError(
                "training.refit = true trains on the pairs that chose the epoch, and with "
                "split.selection = 'paper' those are the test pairs; set split.selection = "
                "'strict' or leave training.refit at 'auto'"
            )
        task = self.task
        if (task.query_orthogonal or task.candidate_orthogonal) and not self.model.normalize:
            raise ValueError(
                "global orthogonal regularisation is of rows of unit norm; set model.normalize = "
                "true or leave task.query_orthogonal and task.candidate_orthogonal at 0"
            )
        return self

    @property
    def refits(self) -> bool:
        """Whether the published model is at last trained on all that is not test."""
        refit = self.training.refit
        return self.split.kind == "given" if refit == "auto" else refit

    @classmethod
    def load(
        cls, path: str | Path, overrides: Sequence[str] = (), *, comparing: bool = False
    ) -> Recipe:
        """Read a TOML file, then set each `key.path=value` of `overrides` (values are TOML).

        Args:
            comparing: as of `of`.
        Raises: RecipeError: the file is missing or is not TOML, a key or value is not allowed, or
            a key that was written changes nothing.
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
        return cls.of(values, overrides, folder=path.parent, source=str(path), comparing=comparing)

    @classmethod
    def of(
        cls,
        values: Mapping[str, Any],
        overrides: Sequence[str] = (),
        *,
        folder: Path | None = None,
        source: str = "The recipe",
        comparing: bool = False,
    ) -> Recipe:
        """From nested dicts, as a person writes them or as `model_dump` gives them.

        A key that was written and changes nothing is refused, see `used_keys`. One that an override
        has put out of use is left out, and a warning says so.

        Args:
            folder: what the paths in `values` are relative to; a path in an override is relative to
                where the process stands.
            source: what to call it in an error.
            comparing: whether [upgrade] is for all methods of [compare], too.
        Raises: RecipeError: as `load`.
        """
        tables = copied(values)
        if folder is not None:
            resolve_paths(tables, folder)
        chosen = overridden(tables, overrides)
        recipe = cls._checked(chosen, source)
        written, added = written_keys(tables, cls), override_keys(overrides)
        comparing = comparing or "compare" in tables
        idle = unused(recipe, written | added, comparing=comparing)
        displaced = set()
        if idle and added:
            displaced = idle.keys() - added - cls._idle_before(tables, written, comparing)
        for key in sorted(idle.keys() - displaced):
            raise RecipeError(f"{source}: {idle[key]}")
        if not displaced:
            return recipe
        logging.getLogger(__name__).warning(
            "%s: left out, as what was set in its place does not use it: %s.",
            source,
            ", ".join(sorted(displaced)),
        )
        for key in displaced:
            table, _, name = key.partition(".")
            del chosen[table][name]
        return cls._checked(chosen, source)

    @classmethod
    def stored(cls, values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
        """From what a lineage keeps, where every key is there whether or not it was ever written:
        only those of `overrides` must be used by something.

        Raises: RecipeError: as `load`.
        """
        recipe = cls._checked(overridden(copied(values), overrides), "The recipe")
        for sentence in unused(recipe, override_keys(overrides)).values():
            raise RecipeError(f"--set: {sentence}")
        return recipe

    @classmethod
    def _checked(cls, values: Mapping[str, Any], source: str) -> Recipe:
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise RecipeError(f"{source}: {sentence_of(error, cls)}") from None

    @classmethod
    def _idle_before(cls, values: Mapping[str, Any], keys: set[str], comparing: bool) -> set[str]:
        """Of `keys`, those that change nothing without any override either."""
        try:
            return set(unused(cls.model_validate(values), keys, comparing=comparing))
        except ValidationError:  # what it lacks is in the overrides
            return keys


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, by dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return found
