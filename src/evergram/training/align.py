"""The way from one file of vectors back to another, fitted in closed form from one pass."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.alignment import history_metric
from evergram.compatibility.certificate import StepError, certify
from evergram.compatibility.closed_form import ClosedForm, fit_closed_form, pairs_needed
from evergram.compatibility.second_moments import SecondMoments
from evergram.data.corpus import Vocabulary
from evergram.errors import DataError, LineageError
from evergram.evaluation.compatibility import as_dim, overlap
from evergram.lineage.lineage import Artefact, Lineage
from evergram.stores.embedding_files import EmbeddingFile, open_embeddings
from evergram.stores.pairing import Pairing
from evergram.stores.reading_ahead import ahead
from evergram.training.checkpoint import CANARIES, id_hash
from evergram.training.progress import Progress

QUIET = Progress(quiet=True)
# The one side of a lineage that is made of files.
SIDE = "object"
# What the neighbours are looked up for, and among.
QUERIES, CATALOGUE = 1000, 20_000
# Fewer held-out pairs than this say nothing.
LEAST_HELD_OUT = 20
# Of the pairs that are not held out, the share on which the ridge is chosen.
CHOOSING = 0.1
# Two vectors are the same if they differ by no more than this share of their length.
SAME = 1e-5


@dataclass(frozen=True)
class Settings:
    """How to align.

    Args:
        transform: linear, affine, orthogonal or low_rank.
        rank: of low_rank.
        scaled: whether an orthogonal map may stretch.
        held_out: share of the common objects, by a hash of their ids, that is measured on and never
            fitted to.
        seed: draws the catalogue in which neighbours are looked up.
    """

    transform: str = "linear"
    rank: int = 32
    scaled: bool = False
    held_out: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Groups:
    """Rows of a pairing, each bool [N]: `seen` is fitted to, on `chosen` the ridge is chosen (and
    they are then fitted to), `held` is measured on."""

    seen: Tensor
    chosen: Tensor
    held: Tensor


@dataclass(frozen=True)
class Sample:
    """Vectors that are kept in memory: rows of the pairing and both vectors of each."""

    rows: Tensor
    old: Tensor
    new: Tensor

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Old and new vectors of some of the rows."""
        place = torch.searchsorted(self.rows, rows)
        return self.old[place], self.new[place]


def align(
    old: EmbeddingFile | int,
    new: EmbeddingFile,
    lineage: Lineage,
    settings: Settings = Settings(),
    *,
    progress: Progress = QUIET,
) -> dict[str, Any]:
    """Publish `new` as the next version of `lineage`, with its way back to `old`.

    A lineage without versions gets `old` as version 0 first. One that has versions must have the
    vectors of `old` as its newest; then the loss is the multi-step one where the chain is affine.

    Args:
        old: a file, or the number of the newest version, whose stored vectors are then read.
    Returns: JSON of what the mapping keeps on held-out objects, as docs/align.md says.
    Raises: DataError: the files have too few objects in common, or cannot be used. LineageError:
        the lineage is not one of files, or its newest vectors are others.
    """
    first = not lineage.versions
    before = _past_file(old, lineage)
    if not first and not isinstance(old, int):
        _check_same(before, lineage)
    pairing = Pairing(before, new)
    hashes = _hashes(pairing.ids)
    groups = _groups(hashes, settings.held_out)
    _refuse_few(groups, before.dim, new.dim, settings)
    queries, catalogue = _sampled_rows(hashes, groups.held, settings.seed)
    version = 0 if first else lineage.newest
    kept = _canary_rows(pairing.ids, hashes, groups.held, None if first else lineage, version)
    moments, sample = _pass(pairing, groups, torch.cat([queries, catalogue, kept]), progress)
    metric = None if first else _metric(lineage)
    options = {"rank": settings.rank, "scaled": settings.scaled}
    fitted = fit_closed_form(
        settings.transform, moments["seen"], moments["chosen"], metric, **options
    )
    fitted.transform.requires_grad_(False).eval()
    whole = SecondMoments(before.dim, new.dim)
    for part in moments.values():
        whole.merge(part)
    ideal = fit_closed_form(settings.transform, whole, None, metric, **options)
    held = moments["held"]
    report = {
        "pairs": {
            "common": len(pairing),
            "only_old": pairing.only_old,
            "only_new": pairing.only_new,
            "common_share": len(pairing) / min(before.rows, new.rows),
            "fitted": int((groups.seen | groups.chosen).sum()),
            "held_out": held.count,
            "needed": _needed(settings, before.dim, new.dim),
        },
        "dims": {"old": before.dim, "new": new.dim},
        "transform": {"kind": settings.transform, **_said(settings), "ridge": fitted.ridge},
        "neighbours": {"queries": len(queries), "catalogue": len(catalogue)},
        "held_out": _readings(fitted, ideal, held, sample, queries, catalogue),
    }
    error = StepError(held.sigma(*_published(fitted)), held.count, held.power)
    old_kept, new_kept = sample.take(kept)
    ids = pairing.ids.take(pa.array(kept.numpy())).cast(pa.string())
    recipe = {"align": {**asdict(settings), "old": str(before.path), "new": str(new.path)}}
    if first:
        lineage.publish(
            Artefact(
                dim=before.dim,
                embeddings={SIDE: lambda: before.blocks()},
                transform=None,
                metrics={"version": 0, "dim": before.dim, "metrics": {"model": {}}},
                recipe=recipe,
                canaries={SIDE: (ids, old_kept)},
            )
        )
    number = lineage.newest + 1
    chain = lineage.chain.extended(fitted.transform)
    errors = {**lineage.errors, number: error}
    certificates = {j: certify(chain, errors, number, j) for j in range(number)}
    report["certificate"] = {str(j): asdict(c) for j, c in certificates.items() if c is not None}
    facts = {"version": number, "dim": new.dim, "metrics": {"model": {}}, "alignment": report}
    lineage.publish(
        Artefact(
            dim=new.dim,
            embeddings={SIDE: lambda: new.blocks()},
            transform=fitted.transform,
            metrics=facts,
            recipe=recipe,
            canaries={SIDE: (ids, new_kept)},
            error=error,
        )
    )
    return facts


def _past_file(old: EmbeddingFile | int, lineage: Lineage) -> EmbeddingFile:
    if not isinstance(old, int):
        return old
    if not lineage.versions or old != lineage.newest:
        has = f"its newest is {lineage.newest}" if lineage.versions else "it has none yet"
        raise LineageError(
            f"The vectors of version {old} are not stored in {lineage.path} ({has}); give the "
            "newest version's number, or the file of its vectors."
        )
    return open_embeddings(_stored(lineage))


def _stored(lineage: Lineage) -> Path:
    """The file of the newest version's vectors."""
    sides = list(lineage.manifest(lineage.newest).embeddings)
    if sides != [SIDE]:
        raise LineageError(
            f"{lineage.path} has the sides {' and '.join(sides)}, of a model that was trained; "
            "a file of vectors can follow another file only. Choose another folder."
        )
    return lineage.stored(SIDE)


def _check_same(old: EmbeddingFile, lineage: Lineage) -> None:
    """Raises: LineageError: the newest version's vectors are not those of `old`."""
    stored = open_embeddings(_stored(lineage))
    what = f"{old.path} is not what version {lineage.newest} of {lineage.path} is"
    advice = f"give {lineage.newest} in its place to go on from the stored vectors"
    if stored.dim != old.dim:
        raise LineageError(f"{what}: its dim is {old.dim}, not {stored.dim}; {advice}.")
    pairing = Pairing(stored, old)
    start = 0
    for ours, theirs in ahead(pairing.blocks()):
        far = (ours - theirs).norm(dim=1) > SAME * ours.norm(dim=1)
        if bool(far.any()):
            id_ = pairing.ids[start + int(far.nonzero()[0])].as_py()
            raise LineageError(f"{what}: the vector of id {id_!r} is another; {advice}.")
        start += len(ours)


def _hashes(ids: pa.Array, size: int = 1 << 20) -> Tensor:
    """`id_hash` of many ids, a part at a time: Python's strings are large."""
    parts = range(0, len(ids), size)
    return torch.cat([id_hash(Vocabulary(ids.slice(start, size))) for start in parts])


def _groups(hashes: Tensor, share: float) -> Groups:
    """By the hash of the id alone: the same objects in every version, on every machine."""
    held = hashes < share * 2**32
    chosen = ~held & (hashes < (share + (1 - share) * CHOOSING) * 2**32)
    return Groups(~held & ~chosen, chosen, held)


def _needed(settings: Settings, old_dim: int, new_dim: int) -> int:
    return pairs_needed(settings.transform, old_dim, new_dim, settings.rank)


def _said(settings: Settings) -> dict[str, Any]:
    """The options that the kind of transform takes."""
    return {
        "low_rank": {"rank": settings.rank},
        "orthogonal": {"scaled": settings.scaled},
    }.get(settings.transform, {})


def _refuse_few(groups: Groups, old_dim: int, new_dim: int, settings: Settings) -> None:
    """Raises: DataError: too few pairs to fit, or to measure on; with what could be done."""
    held, fitted = int(groups.held.sum()), int((~groups.held).sum())
    needed = _needed(settings, old_dim, new_dim)
    if fitted < needed:
        ranks = [
            r
            for r in range(1, min(old_dim, new_dim))
            if pairs_needed("low_rank", old_dim, new_dim, r) <= fitted
        ]
        turn = pairs_needed("orthogonal", old_dim, new_dim)
        advice = [f"--transform low_rank --rank {ranks[-1]}"] if ranks else []
        advice += ["--transform orthogonal"] if turn <= fitted else []
        instead = f", or use {' or '.join(advice)}" if advice else ""
        raise DataError(
            f"{fitted} common objects are there to fit to ({held} more are held out), and a "
            f"{settings.transform} transform from {new_dim} to {old_dim} dims needs {needed}; "
            f"give files with more objects in common{instead}."
        )
    if held < LEAST_HELD_OUT or not bool(groups.chosen.any()):
        raise DataError(
            f"Only {held} of {held + fitted} common objects are held out to measure on, and "
            f"{LEAST_HELD_OUT} are needed; raise --held-out."
        )


def _sampled_rows(hashes: Tensor, held: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Held-out rows to look up, and rows of others, held out or not, to look among."""
    order = torch.argsort(hashes, stable=True)
    queries = order[held[order]][:QUERIES]
    drawn = torch.randperm(len(hashes), generator=torch.Generator().manual_seed(seed))
    return queries, drawn[~torch.isin(drawn, queries)][:CATALOGUE]


def _canary_rows(
    ids: pa.Array, hashes: Tensor, held: Tensor, lineage: Lineage | None, version: int
) -> Tensor:
    """Held-out rows whose vectors are kept for ever: past canaries first, then by hash."""
    order = torch.argsort(hashes, stable=True)
    order = order[held[order]]
    if lineage is not None:
        past = lineage.canaries(version).get(SIDE)
        if past is not None:
            rows = Vocabulary(ids.cast(pa.string())).rows(past[0])
            rows = rows[rows >= 0]
            rows = rows[held[rows]]
            order = torch.cat([rows, order[~torch.isin(order, rows)]])
    return order[:CANARIES]


def _metric(lineage: Lineage) -> Tensor | None:
    """S of the versions that are there; None where it is I, or a step is not affine."""
    chain = lineage.chain
    if not chain.newest or not chain.is_affine(chain.newest, 0):
        return None
    steps = [chain.matrix(n, n - 1) for n in range(1, chain.newest + 1)]
    return history_metric(steps, chain.dim(0))


def _pass(
    pairing: Pairing, groups: Groups, rows: Tensor, progress: Progress
) -> tuple[dict[str, SecondMoments], Sample]:
    """The one pass over both files: moments by group, and the vectors of some rows."""
    masks = {"seen": groups.seen, "chosen": groups.chosen, "held": groups.held}
    wanted = torch.zeros(len(pairing), dtype=torch.bool)
    wanted[rows] = True
    moments: dict[str, SecondMoments] = {}
    kept: list[tuple[Tensor, Tensor]] = []
    start = 0
    with progress.task("pairs", len(pairing)) as bar:
        for old, new in ahead(pairing.blocks()):
            part = slice(start, start + len(old))
            for name, mask in masks.items():
                found = moments.setdefault(name, SecondMoments(old.shape[1], new.shape[1]))
                found.add(old[mask[part]], new[mask[part]])
            kept.append((old[wanted[part]].float(), new[wanted[part]].float()))
            start += len(old)
            bar.advance(len(old), len(old))
    both = (torch.cat(side) for side in zip(*kept, strict=True))
    return moments, Sample(wanted.nonzero().squeeze(1), *both)


def _published(fitted: ClosedForm) -> tuple[Tensor, Tensor | None]:
    """The affine map of the transform itself, in its float32."""
    found = fitted.transform.affine()
    assert found is not None
    return found


def _readings(
    fitted: ClosedForm,
    ideal: ClosedForm,
    held: SecondMoments,
    sample: Sample,
    queries: Tensor,
    catalogue: Tensor,
) -> dict[str, dict[str, float]]:
    """What held-out objects keep, by who reads them."""
    nothing = torch.eye(held.old_dim, held.new_dim), None
    maps = {
        "transformed": _published(fitted),
        "as_is": nothing,
        "in_sample": _published(ideal),
    }
    (query, query_new), (candidate, candidate_new) = sample.take(queries), sample.take(catalogue)
    found = {}
    for name, (weight, offset) in maps.items():
        read, among = (
            as_dim(v, held.old_dim) if name == "as_is" else _mapped(v, weight, offset)
            for v in (query_new, candidate_new)
        )
        one, two, three, four = (
            torch.nn.functional.normalize(v, dim=1) for v in (read, among, query, candidate)
        )
        found[name] = {
            "cosine": float((one * three).sum(1).mean()),
            "relative_error": (held.error(weight, offset) / held.power) ** 0.5
            if held.power
            else float("nan"),
            "overlap@10": overlap(one, two, three, four),
            "overlap@10_own_queries": overlap(three, two, three, four),
        }
    return found


def _mapped(vectors: Tensor, weight: Tensor, offset: Tensor | None) -> Tensor:
    mapped = vectors @ weight.T
    return mapped if offset is None else mapped + offset
