"""Make the parts of a run from a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn

from evergram.data.corpus import Corpus, Vocabulary, to_tensor
from evergram.data.sampling import EntitySampler, ExampleSampler, PairDraws, measure
from evergram.data.tables import read_keyed
from evergram.encoders.encoder import Encoder
from evergram.encoders.factory import build_encoder
from evergram.encoders.features import SIDES, Schema
from evergram.encoders.module_encoder import ModuleEncoder
from evergram.errors import DataError, RecipeError
from evergram.gramian.estimator import GramianEstimator
from evergram.gramian.kinds import EstimatorSettings
from evergram.tasks.objective import Objective
from evergram.training.memory import refuse_too_large
from evergram.training.optimizers.row_adagrad import RowAdagrad
from evergram.training.priors.factors import prior_constant
from evergram.training.recipe import ModelRecipe, Recipe, TaskRecipe
from evergram.training.recipe.automatic import batch_size_of, rate_of, strengths_of
from evergram.training.step import Joint, Step


def encoder_options(model: ModelRecipe, version: int) -> dict[str, Any]:
    """Return the keywords that `build_encoder` takes for a version, as JSON."""
    options: dict[str, Any] = {"dim": model.dim_of(version), "scale": model.scale}
    if model.normalize:
        options["normalize"] = True
    return options | model.chosen.options(version)


def build_measures(recipe: TaskRecipe, corpus: Corpus, side: str) -> Tensor:
    """Return the R measures of a side, float64 [N, R].

    Raises: DataError: a file of weights cannot be used.
    """
    wanted = recipe.query_measure if side == "query" else recipe.candidate_measure
    entities = corpus.queries if side == "query" else corpus.candidates
    counts = corpus.counts(side)
    columns = [
        _weights_of(Path(item), entities.vocabulary)
        if isinstance(item, str)
        else measure(counts, item)
        for item in wanted
    ]
    return torch.stack(columns, dim=1)


def build_sampler(recipe: Recipe, corpus: Corpus, seed: int) -> ExampleSampler:
    """Return the sampler of each epoch's pairs.

    Raises: DataError: a column that the recipe needs is absent.
    """
    task = recipe.task
    penalty = strengths_of(recipe, corpus).penalty
    measures = {side: build_measures(task, corpus, side) for side in SIDES}
    return ExampleSampler(
        corpus,
        PairDraws(task.chosen.pair_target, task.drawn, task.chosen.wants_negatives),
        batch_size=batch_size_of(recipe, corpus),
        seed=seed,
        measures=measures,
        pair_weight=_sparse(task.sparse, penalty, corpus, measures),
    )


def build_independent(
    recipe: Recipe, corpus: Corpus, sampler: ExampleSampler, seed: int
) -> dict[str, EntitySampler]:
    """Return, for each side, the sampler of the entities that estimators learn from."""
    return {
        side: EntitySampler(
            corpus.counts(side),
            sampler.measures[side],
            kind=recipe.gramian.sampler,
            batch_size=recipe.gramian.batch_size or sampler.batch_size,
            seed=2 * seed + 1 + i,
        )
        for i, side in enumerate(SIDES)
    }


def build_estimators(
    settings: EstimatorSettings,
    dim: int,
    measures: Mapping[str, Tensor],
    factors: Mapping[str, Tensor],
    folder: Path | None = None,
) -> dict[str, list[GramianEstimator]]:
    """Return an estimator for each side and measure, on the CPU.

    Args:
        dim: D.
        measures: of each side, [N, R].
        factors: of each side, [N, K].
        folder: where state that is too large for memory goes; None keeps it in memory.
    """
    return {
        side: [
            settings.build(
                dim,
                measures[side][:, r],
                factors[side],
                None if folder is None else folder / f"cache-{side}-{r}.bin",
            )
            for r in range(measures[side].shape[1])
        ]
        for side in SIDES
    }


def build_optimizers(
    recipe: Recipe, encoder: Encoder, owned: list[nn.Parameter], rate: float | None
) -> list[torch.optim.Optimizer]:
    """Return row-wise Adagrad for tables, and Adam for layers and for `owned`.

    Args:
        owned: other parameters that are trained together with the encoder, by `rate`.
    """
    features = encoder.feature_tables()
    shared = {id(p) for p in features}
    tables: list[nn.Parameter] = []
    for module in encoder.modules():
        # A user's dense tables, such as a text tower's tokens, are layers.
        if isinstance(module, nn.Embedding) and (module.sparse or encoder.kind != "module"):
            tables += [p for p in module.parameters() if id(p) not in shared]
    ids = shared | {id(p) for p in tables}
    layers = [p for p in encoder.parameters() if id(p) not in ids and p.requires_grad]
    rates = recipe.training
    optimizers: list[torch.optim.Optimizer] = []
    if tables:
        optimizers.append(RowAdagrad(tables, rate_of(recipe)))
    if features:
        optimizers.append(RowAdagrad(features, rates.feature_rate))
    groups: list[dict[str, Any]] = []
    if layers:
        groups.append({"params": layers, "lr": rates.layer_rate})
    if owned:
        groups.append({"params": owned, "lr": rate or rates.layer_rate})
    if groups:
        optimizers.append(torch.optim.Adam(groups))
    return optimizers


def prepare(
    recipe: Recipe,
    corpus: Corpus,
    version: int,
    device: torch.device,
    *,
    joint: Joint | None = None,
    past: Mapping[str, Tensor] | None = None,
    folder: Path | None = None,
    own: ModuleEncoder | None = None,
) -> tuple[Step, ExampleSampler, dict[str, EntitySampler] | None]:
    """Return a run's step, the sampler of its pairs, and those of entities drawn apart, if any.

    Args:
        own: the encoder to train in the place of the recipe's; a copy of it is trained.
    Raises: DataError. RecipeError: also if no memory holds it.
    """
    refuse_too_large(recipe, corpus, version, own)
    # Each version has a start and an order of its own: with the last one's it would be nearly
    # compatible by accident, and the next recipe would not be.
    seed = recipe.seed + 1_000_003 * version
    generator = torch.Generator().manual_seed(seed)
    if own is None:
        schema = Schema.of(corpus, features=recipe.model.chosen.reads_features)
        options = encoder_options(recipe.model, version)
        encoder = build_encoder(recipe.model.kind, options, schema, generator).to(device)
    else:
        encoder = own.copied().to(device)
    sampler = build_sampler(recipe, corpus, seed)
    task = recipe.task.chosen.build(corpus)
    prior = recipe.prior.chosen.build(corpus, past, recipe.seed)
    strengths = strengths_of(recipe, corpus)
    objective = Objective(
        task,
        strengths.penalty,
        strengths.l2,
        {"query": recipe.task.query_orthogonal, "candidate": recipe.task.candidate_orthogonal},
        prior_constant(prior, sampler.measures, strengths.penalty),
        strengths.l2_measure,
    ).to(device)
    factors = {
        s: torch.cat([f, torch.ones(len(f), 1)], dim=1) if task.wants_means else f
        for s, f in prior.items()
    }
    estimators: dict[str, list[GramianEstimator]] = {side: [] for side in SIDES}
    if objective.wants_moments:
        settings = recipe.gramian.chosen
        made = build_estimators(settings, encoder.dim, sampler.measures, factors, folder)
        estimators = {side: [e.to(device) for e in each] for side, each in made.items()}
    owned = [] if joint is None else [p for p in joint.parameters() if p.requires_grad]
    rate = None if joint is None else joint.rate
    independent = recipe.gramian.batch == "independent" and objective.wants_moments
    step = Step(
        encoder,
        encoder.read(corpus).to(device),
        objective,
        estimators,
        sampler.measures,
        {side: columns.to(device) for side, columns in factors.items()},
        prior["query"].shape[1],
        build_optimizers(recipe, encoder, owned, rate),
        joint,
        independent,
        recipe.training.precondition,
    )
    draws = build_independent(recipe, corpus, sampler, seed) if independent else None
    return step, sampler, draws


def pick_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is CUDA if there is one.

    Raises: RecipeError: no device has that name, or there is no CUDA.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise RecipeError(f"--device {name} is none of auto, cpu, cuda.")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise RecipeError("--device cuda was asked for and this machine has none; use auto or cpu.")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and available) else "cpu")


def _sparse(
    sparse: str, penalty: Sequence[float], corpus: Corpus, measures: Mapping[str, Tensor]
) -> Tensor | None:
    """Return weights w of observed pairs in (1/n) Σ w (s − π)², float64 [n]; None without."""
    if sparse == "none":
        return None
    if sparse == "weight":
        return corpus.column("weight").double()
    # Take the penalty of a pair off again, once however often the pair was observed.
    query, candidate = corpus.column("query"), corpus.column("candidate")
    _, place, times = torch.unique(
        query * len(corpus.candidates) + candidate, return_inverse=True, return_counts=True
    )
    total = torch.zeros(len(corpus), dtype=torch.float64)
    for r, strength in enumerate(penalty):
        total += strength * measures["query"][query, r] * measures["candidate"][candidate, r]
    weight: Tensor = -total * len(corpus) / times[place]
    return weight


def _weights_of(path: Path, vocabulary: Vocabulary) -> Tensor:
    """Return the measure of a file with columns `id` and `weight`, float64 [N]; an id that it lacks
    weighs 0. Raises: DataError: the file cannot be used."""
    ids, column = read_keyed(path, "weight")
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f"{path} column 'weight' is {kind}; it must be a number.")
    value = to_tensor(column.cast(pa.float64()))
    bad = ~(torch.isfinite(value) & (value >= 0))
    if bool(bad.any()):
        row = int(torch.nonzero(bad)[0])
        raise DataError(
            f"{path} row {row + 1}: weight is {float(value[row])}; it must be 0 or a positive "
            "finite number."
        )
    rows = Vocabulary(ids).rows(vocabulary.keys)
    weight = torch.where(rows >= 0, value[rows.clamp(min=0)], 0.0)
    if float(weight.sum()) == 0:
        raise DataError(f"{path} gives no weight to any entity of the corpus.")
    return weight / weight.sum()
