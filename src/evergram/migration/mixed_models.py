"""Tell apart vectors of several models: by their geometry, by known vectors, or by maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import erfc, exp, hypot, inf, log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from evergram.compatibility.closed_forms import SHORTEST
from evergram.errors import DataError
from evergram.stores.store import ReadableStore, places_among
from evergram.vector_files.open_embeddings import Block, EmbeddingFile

# The search for a second model: principal components of source and target, starts, and rounds per
# start. It is found if the first decile of |e₁ − e₂| / (e₁ + e₂), from a row's errors by two maps,
# exceeds APART times the median. This ratio was at most 0.31 in 384 simulated pairs of models, and
# 0.4 to 0.8 in files with vectors of two models.
NEW_DIMS, OLD_DIMS, STARTS, ROUNDS, APART = 16, 64, 3, 50, 0.4
# Sampled rows, and those in which groups are searched; principal components, and the most dims
# that are compared; rows per group that are compared, in blocks, and neighbours.
SAMPLE, SEARCHED, FEATURES, MOST_DIMS = 20_000, 8_000, 64, 512
COMPARED, BLOCKS, NEAREST, COMPONENTS = 1_600, 4, 2, 8
# Minimum numbers of distinct rows, and of rows in a group; trailing zeros of a padded vector.
LEAST_ROWS, LEAST_GROUP, PADDING = 500, 40, 8
# The most that a verdict "several" may have as its chance of a false alarm, and the least
# confidence. Standard errors of alignments: of models that were trained apart, beyond chance; the
# least inside one model; the most of a split that counts. The most links between two models, as a
# share of those of the rarer.
LEVEL, SURE, UNRELATED, SPREAD, UNCLEAR, MIXED = 0.05, 0.9, 0.02, 0.05, 0.25, 0.1
# Minimum cosine of a vector with its known copy, which may be float16 or int8; and a model's
# minimum share of the rows.
SAME, LEAST_SHARE = 0.98, 0.01


def second_model(source: Tensor, target: Tensor) -> Tensor | None:
    """Return a mask [N] of the rows of `target` from the rarer of two models; None if all are from
    one. Half of the rows fits two linear maps from `source`, the other half tests them. Starts come
    from the residuals r of a single map: ⟨rᵢ, rⱼ⟩⟨xᵢ, xⱼ⟩ has a positive mean for rows of one
    model, and a negative mean for rows of different models."""
    x, y = (
        (vectors.double() - vectors.double().mean(0)) @ _basis(vectors, dims)
        for vectors, dims in ((source, NEW_DIMS), (target, OLD_DIMS))
    )
    x = torch.cat([x, x.square().sum(1).mean().sqrt().expand(len(x), 1)], dim=1)
    half = len(x) // 2
    residual = _residuals(x, y, torch.arange(half))[:half]
    kernel = (residual @ residual.T) * (x[:half] @ x[:half].T)

    def errors(group: Tensor) -> Tensor:
        rows = (group.nonzero().flatten(), (~group).nonzero().flatten())
        return torch.stack([_residuals(x, y, some).square().sum(1) for some in rows])

    starts = torch.linalg.eigh(kernel)[1][:, -STARTS:].T > 0
    tried = [_alternate(group, errors, 2 * x.shape[1], ROUNDS) for group in starts]
    found = [costs for costs in tried if costs is not None]
    if not found:
        return None
    one, two = min(found, key=lambda e: float(e[:, :half].amin(0).sum()))
    apart = ((one - two).abs() / (one + two).clamp_min(1e-30))[half:]
    few, middle = apart.quantile(apart.new_tensor([0.1, 0.5])).tolist()
    first = one < two
    rarer = first if first[half:].double().mean() <= 0.5 else ~first
    return rarer if few > APART * middle else None


def _residuals(x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    """Fit a ridge regression from x to y in some rows; return its residuals in all rows."""
    square = x[rows].T @ x[rows]
    ridge = 0.01 * square.trace() / len(square) * torch.eye(len(square)).to(x)
    map_: Tensor = torch.linalg.solve(square + ridge, x[rows].T @ y[rows])
    return y - x @ map_


def _alternate(
    group: Tensor, costs: Callable[[Tensor], Tensor], least: int, rounds: int
) -> Tensor | None:
    """Refit a group, bool [n], and the other rows until they are stable. Return each row's costs in
    both, [2, ≥ n]; None if one of them loses nearly all its rows."""
    found = None
    for _ in range(rounds):
        if min(int(group.sum()), int((~group).sum())) < least:
            return None
        found = costs(group)
        before, group = group, found[0, : len(group)] < found[1, : len(group)]
        if int((before != group).sum()) <= 0.005 * len(group):
            break
    return found


def _basis(vectors: Tensor, most: int) -> Tensor:
    """Return the first principal directions of vectors [n, D], float64 columns [D, ≤ most]."""
    centred = vectors.double() - vectors.double().mean(0)
    directions: Tensor = torch.linalg.eigh(centred.T @ centred)[1]
    return directions[:, -most:]


def _normal(rows: Tensor) -> Callable[[Tensor], Tensor]:
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


def _crossed(rows: Tensor, labels: Tensor) -> Tensor:
    """Return each row's cost in each group, [k, N], for rows [N, D]: minus the log density fitted
    to the other half of the rows, of which the first n have labels."""
    costs, odd = torch.full((int(labels.max()) + 1, len(rows)), 1e30), torch.arange(len(rows)) % 2
    for half in (0, 1):
        for i, cost in enumerate(costs):
            fitted = rows[: len(labels)][(odd[: len(labels)] != half) & (labels == i)]
            if len(fitted) >= LEAST_GROUP // 4:
                cost[odd == half] = -_normal(fitted)(rows[odd == half]) - log(len(fitted))
    return costs


def _reduction(rows: Tensor, dims: int) -> Callable[[Tensor], Tensor]:
    """Return a function from unit vectors [n, D] to their principal components in `rows` and the
    length of the rest, [n, ≤ dims + 1]."""
    centre, basis = rows.mean(0), _basis(rows, dims).float()

    def reduced(more: Tensor) -> Tensor:
        scores = (more - centre) @ basis
        rest = (more - centre).square().sum(1) - scores.square().sum(1)
        return torch.cat([scores, rest.clamp_min(0).sqrt()[:, None]], dim=1)

    return reduced


def alignment(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the correlation of the local shapes of two groups of unit rows [n, D], [m, D], and its
    standard error by the jackknife over blocks of rows.

    A shape is the covariance of the directions from rows to their nearest neighbours, without its
    trace: it hardly depends on the topics of the rows. Norms are products of different blocks, and
    so without the noise of few rows. Groups without a shape are aligned by 0 ± 1.
    """
    blocks = [b for rows in (one, other) for b in rows[:COMPARED].tensor_split(BLOCKS)]
    shapes = torch.stack([_local_shape(block).flatten() for block in blocks])
    products, number = (shapes @ shapes.T).double().numpy(), np.arange(2 * BLOCKS)

    def correlation(left_out: int) -> float:
        first, second = (number[(number < BLOCKS) == side] for side in (True, False))
        first, second = first[first != left_out], second[second != left_out]
        own = (products[np.ix_(group, group)] for group in (first, second))
        norms = [(p.sum() - p.trace()) / (len(p) * (len(p) - 1)) for p in own]
        across = float(products[np.ix_(first, second)].mean())
        return across / sqrt(norms[0] * norms[1]) if min(norms) > 0 else inf

    found = [correlation(left_out) for left_out in range(-1, 2 * BLOCKS)]
    if inf in found:
        return 0.0, 1.0
    variance = np.var(found[1 : BLOCKS + 1]) + np.var(found[BLOCKS + 1 :])
    return found[0], sqrt((BLOCKS - 1) * variance)


def _local_shape(rows: Tensor) -> Tensor:
    nearest = (rows @ rows.T).fill_diagonal_(-2).topk(min(NEAREST, len(rows) - 1)).indices
    ways = normalize((rows[:, None] - rows[nearest]).flatten(0, 1), dim=1)
    return ways.T @ ways / len(ways) - torch.eye(rows.shape[1]) / rows.shape[1]


NONE = {"false_alarm": 1.0, "confidence": 0.0}


class Partition(NamedTuple):
    """A mask [n] of at most half of the rows; links between these and the others, as a share of
    theirs; and their alignment with the others, with its error."""

    rarer: Tensor
    mixed: float
    alignment: float
    error: float


def _starts(rows: Tensor, features: Tensor, near: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Yield first guesses of a group, bool [n], and how often to refit it: components of the graph
    of nearest rows [n, m], which are nearly always of one model; and the highest or lowest rows by
    similarity to the mean, density, and the first principal components."""
    linked, before = torch.arange(len(rows)), torch.zeros(0)  # by the lowest row of a component
    while not torch.equal(linked, before):
        before, pushed = linked, linked[:, None].expand(near.shape).flatten()
        linked = linked.scatter_reduce(0, near.flatten(), pushed, "amin")
        linked = torch.minimum(linked, before[near].amin(1))
        linked = linked[linked]
    for component in torch.bincount(linked).argsort(descending=True)[:COMPONENTS]:
        yield linked == component, 1
    figures = (rows @ rows.mean(0), _normal(features)(features), *features.T[-7:-1])
    for figure in figures:
        for share in (0.02, 0.1, 0.5, 0.9, 0.98):
            yield figure < figure.quantile(share), 20


def _splits(rows: Tensor) -> list[Partition]:
    """Return different splits of unit rows [n, D] into two groups. A row joins its neighbours if
    they agree; the half of each group that is farther from the other is compared."""
    if len(rows) < LEAST_ROWS:
        return []
    features, found = _reduction(rows, FEATURES)(rows), list[Partition]()
    some, few = rows[:SEARCHED], features[:SEARCHED]
    near = torch.cat([(b @ some.T).topk(NEAREST + 1).indices for b in torch.split(some, 1000)])
    for start, rounds in _starts(some, few, near):
        costs = _alternate(start, lambda group: _crossed(few, (~group).long()), LEAST_GROUP, rounds)
        if costs is None:
            continue
        if len(rows) > len(few):
            costs = _crossed(features, costs.argmin(0))
        first = costs[0] < costs[1]
        first[: len(few)] = first[near].float().mean(1) > 0.5
        rarer = first if first.double().mean() <= 0.5 else ~first
        count, here = int(rarer.sum()), rarer[: len(few)]
        mixed = float((here[near] != here[:, None]).sum() / (NEAREST * here.sum()))
        new = all(int((rarer ^ split.rarer).sum()) > 0.1 * count for split in found)
        if new and count >= LEAST_GROUP:
            far = (costs[0] - costs[1]).abs()
            groups = [group & (far >= far[group].median()) for group in (rarer, ~rarer)]
            found.append(Partition(rarer, mixed, *alignment(*(rows[group] for group in groups))))
    return found


def evidence(
    split: Partition, inside: Sequence[Partition], tried: int, dim: int
) -> dict[str, float]:
    """Compare the split of all rows that has the lowest alignment, of `tried`, with splits inside
    one of its groups.

    If two models were trained apart, the second space is randomly rotated: the alignment has mean 0
    and variance 2 / ((D − 1)(D + 2)), to which UNRELATED² is added. If all rows are of one model,
    its groups are aligned like those inside a group, whose median and median deviation (which a
    few rows of another model hardly change) give a normal distribution.

    Returns: `alignment` and `error` of the split; the mean `inside` a group and its `spread`;
        `false_alarm`, the probability that the lowest of `tried` splits of one model is this low,
        by Bonferroni; `confidence`, the probability of several models if
        they are as likely as one.
    """
    values = np.array([s.alignment for s in inside if s.error < UNCLEAR])
    if len(values) < 2:
        return NONE | {"alignment": split.alignment, "error": split.error}
    mean = float(np.median(values))
    spread = max(1.4826 * float(np.median(abs(values - mean))), SPREAD)
    one = hypot(spread * sqrt(1 + pi / 2 / len(values)), split.error)
    several = hypot(UNRELATED, split.error, sqrt(2 / max((dim - 1) * (dim + 2), 1)))
    low, far = (split.alignment - mean) / one, split.alignment / several
    log_odds = log(one / several) - 0.5 * far**2 + 0.5 * low**2 - log(tried)
    return {
        "alignment": split.alignment,
        "error": split.error,
        "inside": mean,
        "spread": spread,
        "false_alarm": min(1.0, 0.5 * tried * erfc(-low / sqrt(2))),
        "confidence": 1 / (1 + exp(-min(max(log_odds, -500), 500))) if low < 0 else 0.0,
    }


def _divided(
    rows: Tensor, splits: Sequence[Partition], others: Sequence[Partition] = ()
) -> tuple[list[Tensor], dict[str, float]]:
    """Return the row numbers of each model, and the evidence of the first split of the rows, which
    is also compared with others, of one model."""
    apart = [split for split in splits if split.mixed <= MIXED]
    if not apart:
        return [torch.arange(len(rows))], NONE
    best = min(apart, key=lambda s: max(s.alignment, 0) + 2 * s.error + s.mixed)
    if best.alignment > 3 * hypot(UNRELATED, best.error):  # what is inside does not matter
        return [torch.arange(len(rows))], NONE | {"alignment": best.alignment, "error": best.error}
    parts = [group.nonzero().flatten() for group in (best.rarer, ~best.rarer)]
    inside = [_splits(rows[part]) for part in parts]
    seen = [(evidence(best, s, len(apart), rows.shape[1]), s) for s in (*inside, others)]
    shown, others = max(seen, key=lambda pair: pair[0]["confidence"])
    if shown["false_alarm"] > LEVEL or shown["confidence"] < SURE:
        return [torch.arange(len(rows))], shown
    groups = [
        part[group]
        for part, each in zip(parts, inside, strict=True)
        for group in _divided(rows[part], each, others)[0]
    ]
    return groups, shown


def _merged(rows: Tensor, groups: Sequence[Tensor], least: float) -> list[Tensor]:
    """Join groups that are aligned: parts of one model that were split off one after the other."""
    merged: list[Tensor] = []
    for group in sorted(groups, key=len, reverse=True):
        found = [alignment(rows[group], rows[other])[0] > least for other in merged]
        if any(found):
            merged[found.index(True)] = torch.cat([merged[found.index(True)], group])
        else:
            merged.append(group)
    return merged


def by_geometry(vectors: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Search for models in distinct float32 vectors [n, D], in random order, none of zeros.

    Rows that end in the same number of zeros, at least PADDING, are of a shorter model. Others
    are divided by `evidence`: first all rows, then each group.

    Returns: labels [n] of the models, and the strongest evidence; if most numbers are 0, geometry
        says nothing: there is one label and no evidence.
    """
    dim = vectors.shape[1]
    lengths = ((vectors != 0) * torch.arange(1, dim + 1)).amax(1)
    if float((vectors != 0).sum() / lengths.sum()) < 0.5:
        return torch.zeros(len(vectors), dtype=torch.long), {}
    lengths[lengths > dim - PADDING] = dim
    rows = normalize(vectors, dim=1)
    if dim > MOST_DIMS:
        some = torch.randn(dim, MOST_DIMS, generator=torch.Generator().manual_seed(0))
        rows = normalize(rows @ torch.linalg.qr(some)[0], dim=1)
    labels, groups, shown = torch.zeros(len(rows), dtype=torch.long), 0, list[dict[str, float]]()
    values, counts = np.unique(lengths.numpy(), return_counts=True)
    for value in (values := values[counts >= LEAST_GROUP]):
        part = (lengths == int(value)).nonzero().flatten()
        models, found = _divided(rows[part], _splits(rows[part]))
        shown.append(found if len(values) == 1 else {"false_alarm": 0.0, "confidence": 1.0})
        for model in _merged(rows[part], models, found.get("inside", 0) / 2):
            labels[part[model]] = groups
            groups += 1
    most_first = torch.bincount(labels).argsort(descending=True)
    return most_first.argsort()[labels], max(shown, key=lambda e: e["confidence"], default=NONE)


def _judged(report: dict[str, Any], vectors: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """Add the verdict and shares of groups [n] to the report; return a function from vectors to
    the probability of each. For normal distributions, the variance of log odds is twice their mean;
    if it is larger, they are overconfident and are scaled down."""
    counts = torch.bincount(labels)
    report["verdict"] = "several" if len(counts) > 1 else "one"
    report["shares"] = (counts / len(labels)).tolist()
    if len(counts) == 1:
        return lambda more: torch.ones(len(more), 1)
    rows = normalize(vectors, dim=1)
    reduced = _reduction(rows, FEATURES)
    fits = [_normal(reduced(rows[labels == group])) for group in range(len(counts))]

    def log_odds(more: Tensor) -> Tensor:
        features = reduced(normalize(more, dim=1))
        return torch.stack([fit(features) for fit in fits], dim=1) + counts.log()

    best = log_odds(rows).topk(2).values
    margins = best[:, 0] - best[:, 1]
    sure = (2 * margins.mean() / margins.var().clamp_min(1e-30)).clamp(1e-6, 1)
    return lambda more: (sure * log_odds(more)).softmax(1)


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
class MixtureReport:
    """Whether vectors come from one model or several, and which vector from which.

    Args:
        report: JSON, see `diagnose_vectors`.
        chances: maps ids and vectors [n, D] to the probability of each model, [n, k].
    """

    report: dict[str, Any]
    chances: Callable[[pa.Array, Tensor], Tensor]

    def models(self, source: VectorSource) -> Iterator[pa.Table]:
        """Yield tables of id, model (from 0) and its probability; both are null for zero
        vectors."""
        for ids, vectors in source.blocks():
            chance, model = self.chances(ids, vectors.float()).max(1)
            zeros = (vectors.norm(dim=1) < SHORTEST).numpy()
            figures = {"model": model.numpy().astype(np.int16), "probability": chance.numpy()}
            columns = {name: pa.array(v, mask=zeros) for name, v in figures.items()}
            yield pa.table({"id": ids, **columns})


def diagnose_vectors(
    source: VectorSource,
    known: EmbeddingFile | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> MixtureReport:
    """Tell whether vectors come from one model or several, by a sample of at most `SAMPLE` rows.

    Args:
        known: vectors of some of the ids, held in memory. If they equal some rows, these are of
            their model, 0. Otherwise they are of another model, and rows of two models follow two
            maps from them (`second_model`).
    Returns: `report` has `source`, `rows`, `dim`, `sampled`, `zeros` and `repeated` (sampled rows
        left out), `compared` (rows with a known vector), `verdict` ("one" or "several"), `by`
        ("known vectors", "maps" or "geometry"), `shares` of the models (model 0 is the known one,
        or has most rows), `confidence` (the probability of several models; null for maps) and
        `evidence`.
    Raises: DataError: fewer than `LEAST_ROWS` rows are distinct, or have a known vector; or most
        numbers are 0, without known vectors.
    """
    ids, vectors = _sample(source, progress)
    long = (vectors.norm(dim=1) >= SHORTEST).nonzero().flatten()
    _, first = np.unique(vectors[long].numpy(), axis=0, return_index=True)
    rows, zeros = long[torch.from_numpy(np.sort(first))], len(ids) - len(long)
    report: dict[str, Any] = {
        "source": source.name,
        "rows": source.rows,
        "dim": vectors.shape[1],
        "sampled": len(ids),
        "zeros": zeros,
        "repeated": len(long) - len(rows),
        "compared": 0,
        "evidence": None,
    }
    ids, vectors = ids.take(pa.array(rows.numpy())), vectors[rows]
    if len(rows) < LEAST_ROWS:
        found = f"{source.name} has {len(rows)} different vectors that are not zeros"
        raise DataError(f"{found}; at least {LEAST_ROWS} are needed to tell models apart.")
    if known is not None:
        return _by_known(report, ids, vectors, known)
    labels, shown = by_geometry(vectors)
    if not shown:
        raise DataError(
            f"More than half of the numbers of {source.name} are 0, and geometry does not tell "
            "apart the models of sparse vectors; give known vectors of some ids."
        )
    report |= {"by": "geometry", "confidence": shown["confidence"], "evidence": shown}
    chances = _judged(report, vectors, labels)
    return MixtureReport(report, lambda _, more: chances(more))


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
) -> MixtureReport:
    """Tell models apart by known vectors, and rows without one by densities fitted to these."""
    known_ids = known.ids().cast(pa.string())
    known_vectors = torch.cat([block.float() for _, block in known.blocks()])

    def pairs(of: pa.Array) -> tuple[Tensor, Tensor]:
        """Return a mask [n] of the known ids, and their known vectors."""
        here, at = places_among(of.cast(pa.string()), known_ids)
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
    several = rows is not None and float(rows.double().mean()) >= LEAST_SHARE
    labels = rows.long() if rows is not None and several else torch.zeros(len(some)).long()
    report |= {"compared": len(some), "by": "known vectors" if by_distance else "maps"}
    report["confidence"] = float(several) if by_distance else None
    spread = _judged(report, some, labels)

    def chances(of: pa.Array, more: Tensor) -> Tensor:
        found = spread(more)
        if by_distance:
            here, others = pairs(of)
            found = pad(found, (0, 2 - found.shape[1]))
            found[here] = torch.eye(2)[(~equal(more[here], others)).long()]
        return found

    return MixtureReport(report, chances)
