"""Tell apart vectors of two models: by known vectors, by maps from another model's vectors, or by
their geometry alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.closed_forms import SHORTEST
from evergram.errors import DataError
from evergram.stores.store import ReadableStore, places_among
from evergram.vector_files.open_embeddings import Block, EmbeddingFile

# The search for a second model: principal components of source and target, starts, and rounds per
# start. It is found if the first decile of |e₁ − e₂| / (e₁ + e₂), from a row's errors by two maps,
# exceeds APART times the median. This ratio was at most 0.31 in 384 simulated pairs of models, and
# 0.4 to 0.8 in files with vectors of two models.
NEW_DIMS, OLD_DIMS, STARTS, ROUNDS, APART = 16, 64, 3, 50, 0.4


def second_model(source: Tensor, target: Tensor) -> Tensor | None:
    """Return a mask [N] of the rows of `target` from the rarer of two models; None if all are from
    one. Half of the rows fits two linear maps from `source`, the other half tests them. Starts come
    from the residuals r of a single map: ⟨rᵢ, rⱼ⟩⟨xᵢ, xⱼ⟩ has a positive mean for rows of one
    model, and a negative mean for rows of different models."""
    x, y = _components(source, NEW_DIMS), _components(target, OLD_DIMS)
    x = torch.cat([x, x.square().sum(1).mean().sqrt().expand(len(x), 1)], dim=1)
    half = len(x) // 2
    residual = _errors(x, y, [torch.arange(half)])[0][:half]
    kernel = (residual @ residual.T) * (x[:half] @ x[:half].T)

    def errors(first: Tensor) -> Tensor:
        groups = [rows.nonzero().flatten() for rows in (first, ~first)]
        return torch.stack([e.square().sum(1) for e in _errors(x, y, groups)])

    starts = torch.linalg.eigh(kernel)[1][:, -STARTS:].T > 0
    tried = [_alternate(first, errors, 2 * x.shape[1]) for first in starts]
    found = [costs for costs in tried if costs is not None]
    if not found:
        return None
    one, two = min(found, key=lambda e: float(e[:, :half].amin(0).sum()))
    apart = ((one - two).abs() / (one + two).clamp_min(1e-30))[half:]
    few, middle = apart.quantile(apart.new_tensor([0.1, 0.5])).tolist()
    first = one < two
    return (
        (first if first[half:].double().mean() <= 0.5 else ~first) if few > APART * middle else None
    )


def _alternate(
    first: Tensor, costs: Callable[[Tensor], Tensor], least: float, rounds: int = ROUNDS
) -> Tensor | None:
    """Refit two groups until they are stable, from a first guess, bool [n]. Return each row's cost
    in each group, [2, ≥ n]; None if nearly all rows join one group."""
    found = None
    for _ in range(rounds):
        if min(int(first.sum()), int((~first).sum())) < least:
            return None
        found = costs(first)
        before, first = first, found[0, : len(first)] < found[1, : len(first)]
        if int((before != first).sum()) <= 0.005 * len(first):
            break
    return found


def _components(vectors: Tensor, most: int) -> Tensor:
    """Return the first principal components of vectors [n, D], float64 [n, ≤ most]."""
    centred = vectors.double() - vectors.double().mean(0)
    components: Tensor = torch.linalg.eigh(centred.T @ centred)[1]
    return centred @ components[:, -most:]


def _errors(x: Tensor, y: Tensor, groups: Sequence[Tensor]) -> list[Tensor]:
    """For each group of rows, fit a ridge regression from x to y, and return its residuals on all
    rows."""
    maps = []
    for rows in groups:
        square = x[rows].T @ x[rows]
        ridge = 0.01 * square.trace() / len(square) * torch.eye(len(square)).to(x)
        maps.append(torch.linalg.solve(square + ridge, x[rows].T @ y[rows]))
    return [y - x @ map_ for map_ in maps]


# Sampled rows; rows and dims for the search of groups; rows per group whose covariances are
# compared; neighbours per row.
SAMPLE, SEARCHED, DIMS, COMPARED, NEAREST = 20_000, 4_000, 256, 1_500, 5
# Minimum numbers of distinct rows, and of rows in a group.
LEAST_ROWS, LEAST_GROUP = 500, 40
# Limits of `evidence`, then of its strength: "unclear" from UNCLEAR; the search stops above ENOUGH.
GAP, MEANS, ALIGNED, RELIABLE, UNCLEAR, ENOUGH = 0.48, 3.0, 0.03, 0.05, 0.8, 1.1
# Minimum cosine of a vector with its known copy, which may be float16 or int8; and a model's
# minimum share of the rows.
SAME, LEAST_SHARE = 0.98, 0.01
Odds = Callable[[Tensor], Tensor]


def _normal(rows: Tensor) -> Odds:
    """Fit a normal distribution to rows [n, D], and return its log density up to a constant. The
    covariance is shrunk towards a sphere as in Ledoit and Wolf (2004), by at least 2 %."""
    mean, (count, dim) = rows.mean(0), rows.shape
    centred = rows - mean
    covariance, one = centred.T @ centred / count, torch.eye(dim)
    sphere = covariance.trace() / dim * one
    noise = (centred.square().sum(1).square().mean() - covariance.square().sum()) / count
    weight = noise / (covariance - sphere).square().sum().clamp_min(1e-30)
    mixed = torch.lerp(covariance, sphere, weight.clamp(0.02, 1)) + 1e-12 * one
    factor = torch.linalg.cholesky(mixed.double())
    whiten = torch.linalg.solve_triangular(factor, one.double(), upper=False).float().T
    log_det = float(factor.diagonal().log().sum())
    return lambda more: -0.5 * ((more - mean) @ whiten).square().sum(1) - log_det


def _crossed(rows: Tensor, first: Tensor) -> Tensor:
    """Return each row's cost in two groups, [2, n], fitted to the other half of the rows."""
    costs, odd = torch.full((2, len(rows)), 1e30), torch.arange(len(rows)) % 2 == 1
    for half in (odd, ~odd):
        for i, group in enumerate((first, ~first)):
            if (count := int((~half & group).sum())) >= LEAST_GROUP // 4:
                costs[i, half] = -_normal(rows[~half & group])(rows[half]) - np.log(count)
    return costs


def evidence(rows: Tensor, odds: Tensor) -> dict[str, float]:
    """Return the evidence that two groups of unit rows [n, D], with log odds [n] of the first, are
    two models with randomly rotated spaces, and not two topics of one model.

    Returns: `gap`, the first decile of |log odds| over its median, the smaller of both groups:
        between topics, some rows could belong to either. `means`, √D times the cosine of the
        groups' means: standard normal for two models. `covariances` and `neighbours`, the
        correlation of the groups' traceless covariances, of rows and of differences between
        neighbours: for two models the mean is 0 and the variance 2 / ((D − 1)(D + 2)), hence
        `limit`. `reliable`, the lowest such correlation between halves of one group, low for a mere
        cluster. `strength`, the margin of the weakest criterion, at most 2; 1 is needed.
    """
    far, gap, dim, groups = odds.abs(), _gap(odds), rows.shape[1], []
    for group in (odds > 0, odds <= 0):
        groups.append(rows[group & (far >= far[group].median())][:COMPARED])
    figures, reliable = [], 1.0
    for shape in (_shape, _local_shape):
        halves = [[shape(group[::2]), shape(group[1::2])] for group in groups]
        own = [float((a * b).sum()) for a, b in halves]
        norms = [float(a.norm() * b.norm()) for a, b in halves]
        reliable = min(reliable, *(o / max(n, 1e-30) for o, n in zip(own, norms, strict=True)))
        across = sum(float((a * b).sum()) for a in halves[0] for b in halves[1]) / 4
        figures.append(across / (own[0] * own[1]) ** 0.5 if min(own) > 0 else 0.0)
    limit = MEANS * (2 / (max(dim - 1, 1) * (dim + 2))) ** 0.5 + ALIGNED
    means = float(torch.cosine_similarity(groups[0].mean(0), groups[1].mean(0), dim=0)) * dim**0.5
    pairs = ((means, MEANS), (figures[0], limit), (figures[1], limit))
    strength = min(gap / GAP, *(most / max(abs(v), most / 2) for v, most in pairs))
    return {
        **{"gap": gap, "means": means, "covariances": figures[0], "neighbours": figures[1]},
        **{"limit": limit, "reliable": reliable},
        "strength": strength if reliable >= RELIABLE else 0.0,
    }


def _gap(odds: Tensor) -> float:
    sides = (odds[odds > 0].abs(), odds[odds <= 0].abs())
    return min(float(side.quantile(0.1) / side.median().clamp_min(1e-30)) for side in sides)


def _parted(costs: Tensor) -> Tensor:
    """Return log odds [n] from costs [2, n], shifted so that 0 lies in the widest gap: a wide
    distribution fitted to few rows attracts outliers of the other group."""
    odds = costs[1] - costs[0]
    low, high = odds[odds <= 0].median(), odds[odds > 0].median()
    parts = torch.linspace(float(low) / 2, float(high) / 2, 21).tolist()
    best: float = max(parts, key=lambda part: _gap(odds - part))
    return odds - best


def _shape(rows: Tensor) -> Tensor:
    """Return the covariance of rows [n, D] without its trace."""
    covariance = (rows - rows.mean(0)).T @ (rows - rows.mean(0)) / len(rows)
    return covariance - covariance.trace() / len(covariance) * torch.eye(len(covariance))


def _local_shape(rows: Tensor) -> Tensor:
    """Return `_shape` of the differences between nearest neighbours, which hardly depends on
    topics."""
    nearest = (rows @ rows.T).fill_diagonal_(-2).topk(min(NEAREST, len(rows) - 1)).indices
    return _shape((rows[:, None] - rows[nearest]).flatten(0, 1))


def _starts(rows: Tensor, centred: Tensor, lengths: Tensor) -> Iterator[Tensor]:
    """Yield first guesses of a group, bool [n]: by similarity to the mean, which differs between
    encoders; by a row's energy in the main directions; by lengths; and by the directions in which
    ⟨xᵢ, xⱼ⟩² varies most."""
    mean = rows @ rows.mean(0)
    main = torch.linalg.eigh(centred.T @ centred)[1][:, -max(1, centred.shape[1] // 4) :]
    energy = (centred @ main).square().sum(1) / centred.square().sum(1).clamp_min(1e-30)
    few = centred[:1000]  # enough for directions
    kernel = (few @ few.T).square()
    kernel -= kernel.mean(0) + kernel.mean(1, keepdim=True) - kernel.mean()
    turns = torch.linalg.eigh(kernel.double())[1][:, -2:].float()
    squares = (centred @ few.T).square() @ (turns - turns.mean(0))
    for share in (0.03, 0.1):
        for figure in (mean, energy):
            yield figure < figure.quantile(share)
    for figure in (squares[:, 1], mean, squares[:, 0], energy, lengths):
        yield figure > figure.mean()
        yield figure > figure.quantile(0.9)
        yield figure < figure.quantile(0.1)


def by_geometry(vectors: Tensor) -> tuple[dict[str, float] | None, Tensor]:
    """Search for two models in at least `LEAST_ROWS` distinct vectors [n, D]. Return the strongest
    `evidence`, None if no groups were found; and log odds [n], positive for the rarer group."""
    rows = torch.nn.functional.normalize(vectors, dim=1)
    reduced = (rows - rows.mean(0)) @ _basis(rows)
    some, few = rows[:SEARCHED], reduced[:SEARCHED]
    best: tuple[dict[str, float], Tensor] | None = None
    for first in _starts(some, few, vectors[:SEARCHED].norm(dim=1).log()):
        costs = _alternate(first, lambda f: _crossed(few, f), LEAST_GROUP, 20)
        count = 0 if costs is None else int((costs[0] < costs[1]).sum())
        if costs is None or not LEAST_GROUP <= count <= len(few) - LEAST_GROUP:
            continue
        odds = _parted(costs)
        shown = evidence(some, odds)
        if best is None or shown["strength"] > best[0]["strength"]:
            best = shown, odds
        if shown["strength"] > ENOUGH:
            break
    if best is None:
        return None, torch.zeros(len(rows))
    shown, odds = best
    if len(rows) > len(some):
        costs = _crossed(reduced, _discriminant(some, odds > 0)(rows) > 0)
        odds = _parted(costs)
        shown = evidence(rows, odds)
    return shown, odds if (odds > 0).double().mean() <= 0.5 else -odds


def _basis(rows: Tensor) -> Tensor:
    """Return at most `DIMS` principal directions of rows [n, D], as columns [D, d]."""
    centred = (rows - rows.mean(0)).double()
    components: Tensor = torch.linalg.eigh(centred.T @ centred)[1]
    return components[:, -DIMS:].float()


def _discriminant(rows: Tensor, first: Tensor) -> Odds:
    """Return a function from vectors to log odds of the first group of unit rows [n, D]. For normal
    distributions, the variance of log odds is twice their mean; if it is larger, they are
    overconfident and are scaled down."""
    centre, basis, prior = rows.mean(0), _basis(rows), torch.logit(first.float().mean())
    one, two = (_normal((rows[group] - centre) @ basis) for group in (first, ~first))

    def odds(more: Tensor) -> Tensor:
        turned = (torch.nn.functional.normalize(more, dim=1) - centre) @ basis
        return one(turned) - two(turned) + prior

    groups = [odds(rows[group]) for group in (first, ~first)]
    variance = torch.cat([group - group.mean() for group in groups]).square().mean()
    sure = ((groups[0].mean() - groups[1].mean()) / variance.clamp_min(1e-30)).clamp(1e-6, 1)
    return lambda more: odds(more) * sure


class VectorSource(NamedTuple):
    """N ids and vectors [N, D] that can be read repeatedly, with a name for messages."""

    name: str
    rows: int
    blocks: Callable[[], Iterable[Block]]


def source_of_store(store: ReadableStore) -> VectorSource:
    """Return the rows of a store's most frequent version. Raises: DataError: it is empty."""
    counts = store.count()
    if not counts:
        raise DataError(f"{store.address} holds no rows; fill it, or name another column.")
    version = max(counts, key=counts.__getitem__)

    def blocks() -> Iterator[Block]:
        for rows in store.scan(version):
            yield rows.ids, torch.from_numpy(np.array(rows.vectors))

    return VectorSource(f"{store.address} (version {version})", counts[version], blocks)


@dataclass(frozen=True)
class Diagnosis:
    """The report of `diagnose_vectors`, and a function that maps ids and vectors [n, D] to the
    probability of model 1, [n]."""

    report: dict[str, Any]
    chance: Callable[[pa.Array, Tensor], Tensor]

    def models(self, source: VectorSource) -> Iterator[pa.Table]:
        """Yield tables of id, model (0 or 1) and the probability of model 1; both are null for zero
        vectors."""
        for ids, vectors in source.blocks():
            chance = self.chance(ids, vectors.float()).numpy().astype(np.float32)
            zeros = (vectors.norm(dim=1) < SHORTEST).numpy()
            figures = {"model": (chance > 0.5).astype(np.int8), "probability": chance}
            columns = {name: pa.array(v, mask=zeros) for name, v in figures.items()}
            yield pa.table({"id": ids, **columns})


def diagnose_vectors(
    source: VectorSource,
    known: EmbeddingFile | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Diagnosis:
    """Tell whether vectors come from one model or two, by a sample of at most `SAMPLE` rows.

    Args:
        known: vectors of some of the ids, held in memory. If they equal some rows, these are of
            their model, 0. Otherwise they are of another model, and rows of two models follow two
            maps from them (`second_model`).
    Returns: `report` has `source`, `rows`, `dim`, `sampled`, `zeros` and `repeated` (sampled rows
        left out), `compared` (rows with a known vector), `verdict` ("one", "two" or "unclear"),
        `by` ("known vectors", "maps" or "geometry"), `shares` of both models (model 0 is the known
        one, or has more rows) and `evidence`.
    Raises: DataError: fewer than `LEAST_ROWS` rows are distinct, or have a known vector.
    """
    ids, vectors = _sample(source, progress)
    long = vectors.norm(dim=1) >= SHORTEST
    _, first = np.unique(vectors[long].numpy(), axis=0, return_index=True)
    rows = long.nonzero().flatten()[torch.from_numpy(np.sort(first))]
    report: dict[str, Any] = {
        **{"source": source.name, "rows": source.rows, "dim": vectors.shape[1]},
        **{"sampled": len(ids), "zeros": int((~long).sum())},
        **{"repeated": int(long.sum()) - len(rows), "compared": 0, "evidence": None},
    }
    ids, vectors = ids.take(pa.array(rows.numpy())), vectors[rows]
    if len(rows) < LEAST_ROWS:
        found = f"{source.name} has {len(rows)} different vectors that are not zeros"
        raise DataError(f"{found}; at least {LEAST_ROWS} are needed to tell models apart.")
    if known is not None:
        return _by_known(report, ids, vectors, known)
    shown, odds = by_geometry(vectors)
    strength = 0.0 if shown is None else shown["strength"]
    verdict = "two" if strength >= 1 else "unclear" if strength >= UNCLEAR else "one"
    foreign = odds > 0 if strength >= UNCLEAR else torch.zeros(len(odds), dtype=torch.bool)
    report |= {"verdict": verdict, "by": "geometry", "evidence": shown}
    chance = _chance(report, vectors, foreign)
    return Diagnosis(report, lambda _, more: chance(more))


def _chance(report: dict[str, Any], vectors: Tensor, foreign: Tensor) -> Odds:
    """Add the shares of two groups to the report, and return a function from vectors to the
    probability of the second."""
    share = float(foreign.double().mean())
    report["shares"] = [1 - share, share]
    if min(int(foreign.sum()), int((~foreign).sum())) < LEAST_GROUP:
        return lambda more: torch.full((len(more),), float(share > 0.5))
    odds = _discriminant(torch.nn.functional.normalize(vectors, dim=1), foreign)
    return lambda more: odds(more).sigmoid()


def _sample(source: VectorSource, progress: Callable[[int, int], None]) -> tuple[pa.Array, Tensor]:
    """Return ids and vectors of at most `SAMPLE` random rows, in random order."""
    draw, keys, parts, start = np.random.default_rng(0), [], [], 0
    chosen = np.sort(draw.permutation(source.rows)[:SAMPLE])
    for ids, vectors in source.blocks():
        inside = chosen[(chosen >= start) & (chosen < start + len(ids))] - start
        keys.append(ids.take(pa.array(inside)))
        parts.append(vectors[torch.from_numpy(inside)].float())
        start += len(ids)
        progress(min(start, source.rows), source.rows)
    order = draw.permutation(sum(map(len, parts)))
    return pa.concat_arrays(keys).take(pa.array(order)), torch.cat(parts)[torch.from_numpy(order)]


def _by_known(
    report: dict[str, Any], ids: pa.Array, vectors: Tensor, known: EmbeddingFile
) -> Diagnosis:
    """Tell models apart by known vectors, and rows without one by distributions fitted to these."""
    known_ids = known.ids()
    known_vectors = torch.cat([block.float() for _, block in known.blocks()])

    def pairs(of: pa.Array) -> tuple[Tensor, Tensor]:
        """Return a mask [n] of the known ids, and their known vectors."""
        keys, others = (
            (of, known_ids)
            if of.type == known_ids.type
            else (of.cast(pa.string()), known_ids.cast(pa.string()))
        )
        here, at = places_among(keys, others)
        return torch.from_numpy(here.copy()), known_vectors[torch.from_numpy(at.astype(np.int64))]

    def equal(some: Tensor, others: Tensor) -> Tensor:
        return torch.cosine_similarity(some, others, dim=1) >= SAME

    here, others = pairs(ids)
    some = vectors[here]
    if len(some) < LEAST_ROWS:
        raise DataError(
            f"{len(some)} sampled rows of {report['source']} have a vector in {known.path}, and at "
            f"least {LEAST_ROWS} are needed; give the known vectors of more of its ids."
        )
    same_dims = some.shape[1] == others.shape[1]
    by_distance = same_dims and float(equal(some, others).double().mean()) >= LEAST_SHARE
    rows = ~equal(some, others) if by_distance else second_model(others, some)
    foreign = torch.zeros(len(some), dtype=torch.bool) if rows is None else rows
    several = float(foreign.double().mean()) >= LEAST_SHARE
    report |= {"compared": len(some), "by": "known vectors" if by_distance else "maps"}
    report["verdict"] = "two" if several else "one"
    spread = _chance(report, some, foreign)

    def chance(of: pa.Array, more: Tensor) -> Tensor:
        found = spread(more)
        if by_distance:
            here, others = pairs(of)
            found[here] = (~equal(more[here], others)).float()
        return found

    return Diagnosis(report, chance)
