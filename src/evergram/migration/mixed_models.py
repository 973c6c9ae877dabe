"""Tell apart vectors of several models: by their geometry, by known vectors, or by maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, hypot, isfinite, log, nan, sqrt
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

# The search for two maps: principal components of source and target, starts, and rounds per start.
# There are two if the first decile of |e₁ − e₂| / (e₁ + e₂), from a row's errors by both, exceeds
# APART times the median. This ratio was at most 0.31 in 384 simulated pairs of models, and 0.4 to
# 0.8 in files with vectors of two models.
NEW_DIMS, OLD_DIMS, STARTS, ROUNDS, APART = 16, 64, 3, 50, 0.4
# Rows that are read, and those whose geometry is compared: 1 % of these are enough for a shape.
SAMPLE, SEARCHED = 20_000, 8_000
MOST_DIMS = 256  # longer vectors are projected, as shapes take cells · dims² numbers
FEATURES = 64  # principal components for densities, whose covariances are shrunk
NEIGHBOURS = 10  # of a row, to find denser ones: cells of about fifty rows
NEAREST = 2  # of these give directions; farther ones show topics
BLOCKS = 4  # of rows, left out in turn: ten rows each of the smallest group
# Fewer distinct rows are no sample, and in fewer rows of a group noise hides the shape.
LEAST_ROWS, LEAST_GROUP = 500, 40
# Minimum of D / D' − 1, if directions fill D' of D dims alike: 1.4 to 2.9 in three text encoders,
# and 0.1 to 0.5 for noise around topics, whose directions lead to their centres.
LEAST_SHAPE = 0.6
PADDING = 8  # trailing zeros of a padded vector: by chance there are at most one or two
# Standard errors of alignments: of models that were trained apart, beyond chance (up to 0.02 in
# pairs of text encoders), and of the lowest splits of two samples of one encoder (up to 0.1).
UNRELATED, SPREAD = 0.02, 0.1
SURE = 0.95  # the verdict is "several" from this confidence
ONE = {"confidence": 0.0}  # the evidence where no split is low
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

    found = list[Tensor]()
    for group in torch.linalg.eigh(kernel)[1][:, -STARTS:].T > 0:
        for _ in range(ROUNDS):
            if min(int(group.sum()), int((~group).sum())) < 2 * x.shape[1]:
                break
            costs = errors(group)
            before, group = group, costs[0, :half] < costs[1, :half]
            if int((before != group).sum()) <= 0.005 * half:
                found.append(costs)
                break
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


class Split(NamedTuple):
    """A mask [n] of at most half of the rows, and their alignment with the others, with its
    standard error by the jackknife over blocks of rows."""

    group: Tensor
    alignment: float
    error: float


def _nearest(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and the numbers of each unit row's nearest other rows, [n, count]."""
    found = []
    for start in range(0, len(rows), 1000):
        cosines = rows[start : start + 1000] @ rows.T
        cosines.diagonal(start).fill_(-2)
        found.append(cosines.topk(count))
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])


def _cells(rows: Tensor) -> Tensor:
    """Number the cells of unit rows, [n]: each row belongs to the cell of its nearest neighbour in
    a denser place. Neighbours are nearly always of one model. Source: Vedaldi and Soatto (2008)."""
    (cosines, near), own = _nearest(rows, NEIGHBOURS), torch.arange(len(rows))
    density = cosines.mean(1)
    denser = density[near] > density[:, None]
    up = torch.where(denser.any(1), near[own, denser.int().argmax(1)], own)
    while not torch.equal(up, up[up]):
        up = up[up]
    cells: Tensor = torch.unique(up, return_inverse=True)[1]
    return cells


def directions(rows: Tensor) -> Tensor:
    """Return unit directions, orthogonal to the row, from unit rows [n, D] to the `NEAREST` rows
    among the even or among the odd ones, [n, NEAREST, D]."""
    found = rows.new_empty(len(rows), NEAREST, rows.shape[1])
    for half in (0, 1):
        some = rows[half::2]
        away, some = some[_nearest(some, NEAREST)[1]] - some[:, None], some[:, None]
        found[half::2] = normalize(away - (away * some).sum(2, keepdim=True) * some, dim=2)
    return found


def _products(rows: Tensor, ways: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return the inner products of the shapes of groups, float64 [count, count].

    A shape is the sum of tt' − (1 − rr') / (D − 1) over the rows r of a group and their directions
    t. It hardly depends on the topic, and is 0 for isotropic rows. The first factor is of the even
    rows, the second of the odd ones, so that their noise is independent.
    """
    dim, shapes = rows.shape[1], list[Tensor]()
    for half in (0, 1):
        shape = rows.new_empty(count, dim * dim)
        for group in range(count):
            some = (labels[half::2] == group).nonzero().flatten() * 2 + half
            r, t = rows[some], ways[some].flatten(0, 1)
            isotropic = (len(some) * torch.eye(dim) - r.T @ r) / (dim - 1)
            shape[group] = (t.T @ t / NEAREST - isotropic).flatten()
        shapes.append(shape)
    return (shapes[0] @ shapes[1].T).double()


def measured(rows: Tensor, ways: Tensor, group: Tensor) -> Split | None:
    """Return the split of unit rows [n, D] with their directions into a group and the others, with
    the correlation of their shapes; None if they have none."""
    labels = torch.arange(len(rows)) // 2 % BLOCKS * 2 + group
    by_block = _products(rows, ways, labels, 2 * BLOCKS).numpy().reshape([BLOCKS, 2] * 2)

    def correlation(some: list[int]) -> float:
        (one, across), (back, other) = by_block[some][:, :, some].sum((0, 2)).tolist()
        return float(across + back) / 2 / sqrt(one * other) if min(one, other) > 0 else nan

    every = list(range(BLOCKS))
    # Rows that are each other's nearest, in different blocks, at most double the variance.
    left = [correlation(every[:out] + every[out + 1 :]) for out in every]
    split = Split(group, correlation(every), float(np.std(left)) * sqrt(2 * (BLOCKS - 1)))
    sizes = np.bincount(group.numpy().astype(np.int64), minlength=2) / 2
    norms = (rows.shape[1] - 1) * by_block.sum((0, 2)).diagonal() / sizes**2
    return split if isfinite(split.alignment + split.error) and norms.max() >= LEAST_SHAPE else None


def _lowest_split(rows: Tensor) -> Split | None:
    """Return the split of unit rows [n, D] that is least aligned; None for fewer than LEAST_ROWS.
    Cells join the group to whose shape theirs is nearer, from each cell against all others."""
    if len(rows) < LEAST_ROWS:
        return None
    ways, cells = directions(rows), _cells(rows)
    count = int(cells.max()) + 1
    products = _products(rows, ways, cells, count)
    products, groups = products + products.T, torch.eye(count).bool()
    for _ in range(ROUNDS):
        sides = torch.stack([groups, ~groups]).double()
        sums = sides @ products
        cosines = sums / (sums * sides).sum(2, keepdim=True).clamp_min(1e-30).sqrt()
        before, groups = groups, cosines[0] > cosines[1]
        if torch.equal(before, groups):
            break
    masks = groups[:, cells]
    masks = torch.unique(masks ^ (masks.sum(1, keepdim=True) * 2 > len(rows)), dim=0)
    splits = [measured(rows, ways, mask) for mask in masks if int(mask.sum()) >= LEAST_GROUP]
    return min(filter(None, splits), key=lambda s: s.alignment + 2 * s.error, default=None)


def evidence(split: Split, inside: Split, dim: int) -> dict[str, float]:
    """Compare the lowest split of all rows with the lowest one inside a group.

    If two models were trained apart, the second space is randomly rotated: the alignment has mean 0
    and variance 2 / ((D − 1)(D + 2)), to which UNRELATED² is added. If all rows are of one model,
    the mean is the alignment inside, and SPREAD² is added.

    Returns: `alignment` and `error` of the split; the alignment `inside`; `confidence`, the
        probability of several models if they are as likely as one.
    """
    one = hypot(SPREAD, split.error, inside.error)
    several = hypot(UNRELATED, split.error, sqrt(2 / max((dim - 1) * (dim + 2), 1)))
    low, far = (split.alignment - inside.alignment) / one, split.alignment / several
    log_odds = log(one / several) - 0.5 * far**2 + 0.5 * low**2
    return {
        "alignment": split.alignment,
        "error": split.error,
        "inside": inside.alignment,
        "confidence": 1 / (1 + exp(-min(max(log_odds, -500), 500))) if low < 0 else 0.0,
    }


def _divided(
    rows: Tensor, split: Split | None, others: Sequence[Split | None] = ()
) -> tuple[list[Tensor], dict[str, float]]:
    """Return the row numbers of each model, and the evidence of the lowest split of the rows, which
    is also compared with others, of one model."""
    every = [torch.arange(len(rows))]
    if split is None or split.alignment > 3 * hypot(UNRELATED, split.error):
        return every, ONE  # what is inside does not matter
    parts = [group.nonzero().flatten() for group in (split.group, ~split.group)]
    inside = [_lowest_split(rows[part]) for part in parts]
    others = (*inside, *others)
    seen = [evidence(split, other, rows.shape[1]) for other in others if other is not None]
    shown = max(seen, key=lambda found: found["confidence"], default=ONE)
    if shown["confidence"] < SURE:
        return every, shown
    divided = [_divided(rows[p], own, others)[0] for p, own in zip(parts, inside, strict=True)]
    return [p[g] for p, groups in zip(parts, divided, strict=True) for g in groups], shown


def by_geometry(vectors: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Search for models in distinct float32 vectors [n, D], in random order, none of zeros.

    Rows that end in the same number of zeros, at least PADDING, are of a shorter model. Others
    are divided by `evidence`: first all rows, then each group.

    Returns: labels [n] of the models, most frequent first, and the strongest evidence.
    Raises: DataError: most numbers are 0.
    """
    dim = vectors.shape[1]
    lengths = ((vectors != 0) * torch.arange(1, dim + 1)).amax(1)
    if float((vectors != 0).sum() / lengths.sum()) < 0.5:
        raise DataError(
            "More than half of the numbers of the vectors are 0, and geometry does not tell apart "
            "the models of sparse vectors; give known vectors of some ids."
        )
    lengths[lengths > dim - PADDING] = dim
    rows = normalize(vectors, dim=1)
    if dim > MOST_DIMS:
        some = torch.randn(dim, MOST_DIMS, generator=torch.Generator().manual_seed(0))
        rows = normalize(rows @ torch.linalg.qr(some)[0], dim=1)
    models, shown = list[Tensor](), ONE
    values, counts = np.unique(lengths.numpy(), return_counts=True)
    for value in (values := values[counts >= LEAST_GROUP]):
        part = (lengths == int(value)).nonzero().flatten()
        divided, found = _divided(rows[part], _lowest_split(rows[part]))
        models += [part[model] for model in divided]
        shown = max(found, shown, key=lambda each: each["confidence"])
    labels = torch.zeros(len(rows), dtype=torch.long)
    for number, model in enumerate(sorted(models, key=len, reverse=True)):
        labels[model] = number
    return labels, shown if len(values) < 2 else {"confidence": 1.0}


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
    centre, basis = rows.mean(0), _basis(rows, FEATURES).float()

    def reduced(more: Tensor) -> Tensor:
        """Return principal components, and the length of the rest, [n, ≤ FEATURES + 1]."""
        scores = (more - centre) @ basis
        rest = (more - centre).square().sum(1) - scores.square().sum(1)
        return torch.cat([scores, rest.clamp_min(0).sqrt()[:, None]], dim=1)

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
        return ((r.ids, torch.from_numpy(np.array(r.vectors))) for r in store.scan(version))

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
    vectors = vectors[:SEARCHED]
    labels, shown = by_geometry(vectors)
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
