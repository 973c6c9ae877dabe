"""The way from one file of vectors back to another, fitted in closed form from one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.alignment import history_metric
from evergram.compatibility.certificate import StepError, certify
from evergram.compatibility.closed_form import KINDS, ClosedForm, fit_closed_form, pairs_needed
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import DataError, LineageError
from evergram.evaluation.mapping import Pairs, mapping_readings
from evergram.lineage.artefact import Artefact, Block
from evergram.lineage.lineage import Lineage
from evergram.stores.embedding_files import EmbeddingFile, open_embeddings
from evergram.stores.pairing import Pairing
from evergram.stores.reading_ahead import ahead
from evergram.training.pair_groups import (
    Groups,
    canary_rows,
    id_hashes,
    pair_groups,
    refuse_few,
    sampled_rows,
)
from evergram.training.probes import refuse_broken, with_probes
from evergram.training.progress import Progress

QUIET = Progress(quiet=True)
# The one side of a lineage that is made of files.
SIDE = "object"
# Of low_rank, where nothing is said.
RANK = 32
# Two vectors are the same if they differ by no more than this share of their length.
SAME = 1e-5


@dataclass(frozen=True)
class Settings:
    """How to align.

    Args:
        transform: linear, affine, orthogonal or low_rank.
        rank: of low_rank, and of it alone; 32 where it is absent.
        scaled: whether an orthogonal map, and it alone, may stretch.
        held_out: share of the common objects, by a hash of their ids, that is measured on and never
            fitted to.
        seed: draws the catalogue in which neighbours are looked up.
    """

    transform: str = "linear"
    rank: int | None = None
    scaled: bool = False
    held_out: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.transform not in KINDS:
            raise DataError(
                f"The transform {self.transform!r} cannot be fitted to files; "
                f"{', '.join(KINDS)} can."
            )
        if not 0 < self.held_out < 1:
            raise DataError(f"held_out is {self.held_out}; it is a share between 0 and 1.")
        if self.rank is not None and self.rank < 1:
            raise DataError(f"rank is {self.rank}; it is at least 1.")
        if self.rank is not None and self.transform != "low_rank":
            raise DataError(
                f"rank is of the transform low_rank, not of {self.transform}; leave it out."
            )
        if self.scaled and self.transform != "orthogonal":
            raise DataError(
                f"scaled is of the transform orthogonal, not of {self.transform}; leave it out."
            )


@dataclass(frozen=True)
class Sample:
    """Vectors that are kept in memory: rows of the pairing and both vectors of each."""

    rows: Tensor
    old: Tensor
    new: Tensor

    def take(self, rows: Tensor) -> Pairs:
        """Old and new vectors of some of the rows."""
        place = torch.searchsorted(self.rows, rows)
        return Pairs(self.old[place], self.new[place])


def align(
    old: EmbeddingFile | int,
    new: EmbeddingFile,
    lineage: Lineage,
    settings: Settings = Settings(),
    *,
    promote: bool = True,
    progress: Progress = QUIET,
    strict_probes: bool = False,
) -> dict[str, Any]:
    """Publish `new` as the next version of `lineage`, with its way back to `old`.

    A lineage without versions gets `old` as version 0 first. One that has versions must have the
    vectors of `old` as its newest; then the loss is the multi-step one where the chain is affine.

    Args:
        old: a file, or the number of the newest version, whose stored vectors are then read.
        promote: as for `Lineage.publish`.
        strict_probes: publish only if no consumer's probe is past its limit.
    Returns: JSON of what the mapping keeps on held-out objects, as docs/align.md says.
    Raises: DataError: the files have too few objects in common, or cannot be used. LineageError:
        the lineage is not one of files, or its newest vectors are others; or a file carries the
        fingerprint of another version. DegradationError: a probe is past its limit; nothing is
        then published.
    """
    first = not lineage.versions
    _refuse_known(new, lineage)
    before = _past_file(old, lineage)
    if not first and not isinstance(old, int):
        _check_same(before, lineage)
    pairing = Pairing(before, new)
    rank = min(settings.rank or RANK, before.dim, new.dim)
    hashes = id_hashes(pairing.ids)
    groups = pair_groups(hashes, settings.held_out)
    refuse_few(groups, before.dim, new.dim, settings.transform, rank)
    queries, catalogue = sampled_rows(hashes, groups.held, settings.seed)
    past = None if first else lineage.canaries(lineage.newest).get(SIDE, (None,))[0]
    kept = canary_rows(pairing.ids, hashes, groups.held, past)
    moments, sample = _pass(pairing, groups, torch.cat([queries, catalogue, kept]), progress)
    metric = None if first else _metric(lineage)

    def fit(some: SecondMoments, choosing: SecondMoments | None) -> ClosedForm:
        kind, scaled = settings.transform, settings.scaled
        return fit_closed_form(kind, some, choosing, metric, rank=rank, scaled=scaled)

    fitted = fit(moments["seen"], moments["chosen"])
    fitted.transform.requires_grad_(False).eval()
    whole = SecondMoments(before.dim, new.dim)
    for part in moments.values():
        whole.merge(part)
    ideal = fit(whole, None)
    held = moments["held"]
    report = {
        "pairs": {
            "common": len(pairing),
            "only_old": pairing.only_old,
            "only_new": pairing.only_new,
            "common_share": len(pairing) / min(before.rows, new.rows),
            "fitted": int((groups.seen | groups.chosen).sum()),
            "held_out": held.count,
            "needed": pairs_needed(settings.transform, before.dim, new.dim, rank),
        },
        "dims": {"old": before.dim, "new": new.dim},
        "transform": {
            "kind": fitted.transform.kind,
            **fitted.transform.options,
            "ridge": fitted.ridge,
        },
        "neighbours": {"queries": len(queries), "catalogue": len(catalogue)},
        "held_out": mapping_readings(
            {"transformed": _published(fitted), "in_sample": _published(ideal)},
            held,
            sample.take(queries),
            sample.take(catalogue),
        ),
    }
    error = StepError(held.sigma(*_published(fitted)), held.count, held.power)
    canaries = sample.take(kept)
    ids = pairing.ids.take(pa.array(kept.numpy())).cast(pa.string())
    used = asdict(settings) | ({"rank": rank} if settings.transform == "low_rank" else {})
    recipe = {"align": {**used, "old": str(before.path), "new": str(new.path)}}
    if first:
        lineage.publish(first_version(before, (ids, canaries.old), recipe))
    number = lineage.following
    chain = lineage.chain.extended(fitted.transform)
    errors = {**lineage.errors, number: error}
    certificates = {j: certify(chain, errors, number, j) for j in lineage.readable}
    report["certificate"] = {str(j): asdict(c) for j, c in certificates.items() if c is not None}
    facts = {"version": number, "dim": new.dim, "metrics": {"model": {}}, "alignment": report}
    artefact = Artefact(
        dim=new.dim,
        embeddings={SIDE: lambda: new.blocks()},
        transform=fitted.transform,
        metrics=facts,
        recipe=recipe,
        canaries={SIDE: (ids, canaries.new)},
        error=error,
    )
    artefact, readings = with_probes(artefact, lineage)
    if strict_probes:
        refuse_broken(readings)
    lineage.publish(artefact, promote=promote)
    return dict(artefact.metrics)


def first_version(file: EmbeddingFile, canaries: Block, recipe: Mapping[str, Any]) -> Artefact:
    """Version 0 of a lineage of files."""
    return Artefact(
        dim=file.dim,
        embeddings={SIDE: lambda: file.blocks()},
        transform=None,
        metrics={"version": 0, "dim": file.dim, "metrics": {"model": {}}},
        recipe=recipe,
        canaries={SIDE: canaries},
    )


def _refuse_known(new: EmbeddingFile, lineage: Lineage) -> None:
    """Raises: LineageError: the new vectors say that they are of a version there is already."""
    known = None if new.fingerprint is None else lineage.version_of(new.fingerprint)
    if known is not None:
        raise LineageError(
            f"{new.path} holds vectors of version {known} of {lineage}, as its fingerprint "
            "says, and cannot be a new version; give the new model's vectors."
        )


def _past_file(old: EmbeddingFile | int, lineage: Lineage) -> EmbeddingFile:
    if not isinstance(old, int):
        return old
    if not lineage.versions or old != lineage.newest:
        has = f"its newest is {lineage.newest}" if lineage.versions else "it has none yet"
        raise LineageError(
            f"The vectors of version {old} are not stored in {lineage} ({has}); give the "
            "newest version's number, or the file of its vectors."
        )
    return open_embeddings(_stored(lineage))


def _stored(lineage: Lineage) -> Path:
    """The file of the newest version's vectors."""
    sides = list(lineage.manifest(lineage.newest).embeddings)
    if sides != [SIDE]:
        raise LineageError(
            f"{lineage} has the sides {' and '.join(sides)}, of a model that was trained; "
            "a file of vectors can follow another file only. Choose another folder."
        )
    return lineage.stored(SIDE)


def _check_same(old: EmbeddingFile, lineage: Lineage) -> None:
    """Raises: LineageError: the newest version's vectors are not those of `old`."""
    lineage.refuse_other(old.fingerprint, lineage.newest, str(old.path))
    stored = open_embeddings(_stored(lineage))
    what = f"{old.path} is not what version {lineage.newest} of {lineage} is"
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


def _metric(lineage: Lineage) -> Tensor | None:
    """S of the versions that are there; None where it is I, or a step is not affine."""
    chain = lineage.history
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
    found = fitted.transform.requires_grad_(False).affine()
    assert found is not None
    return found
