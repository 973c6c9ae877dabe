"""Align a file of vectors to an older one: a backward transform in closed form, from one pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.alignment_loss import history_metric
from evergram.compatibility.certificate import StepError, certify
from evergram.compatibility.chance import Chance, beside_chance
from evergram.compatibility.closed_form_fit import ClosedForm, fit_closed_form, pairs_needed
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import DataError
from evergram.evaluation.map_quality import chance_reading, mapping_readings
from evergram.lineage.artefact import Artefact, Block
from evergram.lineage.lineage import Lineage
from evergram.lineage.unseen_objects import canary_rows
from evergram.releasing.files.align_settings import AlignSettings
from evergram.releasing.files.alignment_gate import far_means, refuse_degenerate, refuse_error
from evergram.releasing.files.first_version import facts_of, first_version, text_encoder_of
from evergram.releasing.files.moments_pass import PairReading, read_pairs
from evergram.releasing.files.pair_split import (
    Groups,
    id_hashes,
    pair_groups,
    refuse_few,
    sampled_rows,
)
from evergram.releasing.files.past_file import SIDE, checked_past
from evergram.releasing.publish import publish, refuse_untried
from evergram.training.distributed.process_group import join_processes
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import EmbeddingFile
from evergram.vector_files.pairing import Pairing

QUIET = Progress(quiet=True)
log: logging.Logger = logging.getLogger(__name__)
DEFAULT = AlignSettings()
CPU = torch.device("cpu")


@dataclass(frozen=True)
class FileAlignment:
    """Two files, and the map from the new vectors to the old ones.

    Args:
        pairing: the objects that they have in common, and `groups` what these are for.
        small: whether they are few, and that was allowed.
        read: moments and a sample, from one pass over both files.
        fitted: to all pairs but the held-out ones; `ideal` to those too.
        chance: its error beside that of the same map on mixed-up objects.
        readings: its errors and shared neighbours on held-out objects, see `mapping_readings`.
        neighbours: the number of objects whose neighbours were looked up, and of the catalogue.
        canaries: rows whose vectors are kept for ever.
    """

    old: EmbeddingFile
    new: EmbeddingFile
    settings: AlignSettings
    pairing: Pairing
    groups: Groups
    small: bool
    read: PairReading
    fitted: ClosedForm
    chance: Chance
    readings: Mapping[str, Mapping[str, float]]
    neighbours: Mapping[str, int]
    canaries: Tensor

    @property
    def objects(self) -> int:
        """The different new vectors that are held out: copies of one text are one object."""
        return _different(self.read, self.groups)

    @property
    def error(self) -> StepError:
        """The transform's error on the held-out objects."""
        held = self.read.held
        return StepError(held.sigma(*_published(self.fitted)), self.objects, held.power)

    def overlap(self) -> dict[str, Any]:
        """Return how many objects were aligned and measured, as JSON; the keys are a trained
        version's."""
        held = int(self.groups.held.sum())
        return {
            "common": len(self.pairing),
            "fitted": len(self.pairing) - held,
            "held_out": held,
            "held_out_share": self.settings.held_out,
            "small": self.small,
        }

    def report(self) -> dict[str, Any]:
        """Return the counts of pairs, the transform and its errors, as JSON."""
        dims = self.old.dim, self.new.dim
        settings, overlap = self.settings, self.overlap()
        rank = settings.rank_of(*dims)
        return {
            "pairs": {
                "common": overlap["common"],
                "only_old": self.pairing.only_old,
                "only_new": self.pairing.only_new,
                "common_share": overlap["common"] / min(self.old.rows, self.new.rows),
                "fitted": overlap["fitted"],
                "held_out": overlap["held_out"],
                "needed": pairs_needed(settings.transform, *dims, rank),
                "by_row_number": not (self.old.has_ids or self.new.has_ids),
            },
            "dims": {"old": dims[0], "new": dims[1]},
            "transform": {
                "kind": self.fitted.transform.kind,
                **self.fitted.transform.options,
                "ridge": self.fitted.ridge,
            },
            "neighbours": dict(self.neighbours),
            "held_out": dict(self.readings),
            "chance": {
                "ratio": self.chance.ratio,
                "deviations": self.chance.deviations,
                "beaten": self.chance.is_beaten,
            },
        }


def align(
    old: EmbeddingFile | int,
    new: EmbeddingFile,
    lineage: Lineage,
    settings: AlignSettings = DEFAULT,
    *,
    max_error: float | None = None,
    promote: bool = True,
    progress: Progress = QUIET,
    strict_probes: bool = False,
    warn: Callable[[str], None] = log.warning,
) -> dict[str, Any]:
    """Publish `new` as the next version of `lineage`, with its backward transform to `old`.

    A lineage without versions gets `old` as version 0 first. One that has versions must have the
    vectors of `old` as its newest; then the loss is the multi-step one where the chain is affine.
    Of several processes the first calls it, and the others `take_part_in_alignment`.

    Args:
        old: a file, or the number of the newest version, whose stored vectors are then read.
        max_error: the most that the relative error on held-out objects may be. With or without
            it the map must be better than chance, which random vectors never are; infinite lifts
            both.
        promote, strict_probes, warn: as for `evergram.publish`.
    Returns: the version's metrics as JSON, see docs/align.md.
    Raises: DataError: the files have too few objects in common, one of them alone has ids, or they
        cannot be used. LineageError: the lineage is not one of files, or its newest vectors are
        others; or a file carries the fingerprint of another version. DegradationError: the error
        or a probe is past its limit, or cannot be measured; nothing is then published.
    """
    if strict_probes:
        refuse_untried(lineage)
    before = checked_past(old, new, lineage)
    alignment = _aligned(before, new, lineage, settings, progress)
    error = alignment.readings["transformed"]["relative_error"]
    has_offset = _published(alignment.fitted)[1] is not None
    refuse_error(
        *(error, alignment.chance, alignment.error.objects, max_error, (before.path, new.path)),
        far=far_means(before.path, new.path, alignment.read.held, has_offset=has_offset),
    )
    canaries = alignment.read.sample.take(alignment.canaries)
    ids = alignment.pairing.ids.take(pa.array(alignment.canaries.numpy())).cast(pa.string())
    recorded = asdict(settings)
    if settings.transform == "low_rank":
        recorded["rank"] = settings.rank_of(before.dim, new.dim)
    recorded |= {"old": str(before.path), "new": str(new.path)}
    recipe = {"align": {**recorded, **facts_of(before)}}
    first = first_version(before, (ids, canaries.old), recipe)
    with nullcontext() if lineage.versions else lineage.beginning(first):
        recipe = {"align": {**recorded, **facts_of(new)}}
        artefact = _next_version(alignment, lineage, recipe, (ids, canaries.new))
        strict = strict_probes
        published = publish(lineage, artefact, strict_probes=strict, promote=promote, warn=warn)
    return dict(published.metrics)


def _next_version(
    alignment: FileAlignment, lineage: Lineage, recipe: Mapping[str, Any], canaries: Block
) -> Artefact:
    """Return the artefact of an aligned file, with its certificates."""
    number, new = lineage.next_version, alignment.new
    chain = lineage.chain.extended(alignment.fitted.transform)
    errors = {**lineage.step_errors, number: alignment.error}
    certificates = {j: certify(chain, errors, number, j) for j in lineage.readable}
    report = alignment.report()
    report["certificate"] = {str(j): asdict(c) for j, c in certificates.items() if c is not None}
    return Artefact(
        dim=new.dim,
        embeddings={SIDE: lambda: new.blocks()},
        transform=alignment.fitted.transform,
        metrics={
            "version": number,
            "dim": new.dim,
            "metrics": {"model": {}},
            "overlap": alignment.overlap(),
            "alignment": report,
        },
        recipe=recipe,
        canaries={SIDE: canaries},
        error=alignment.error,
        follows=lineage.manifest(lineage.newest).fingerprint,
        text_encoder=text_encoder_of(new),
    )


def _aligned(
    old: EmbeddingFile,
    new: EmbeddingFile,
    lineage: Lineage,
    settings: AlignSettings,
    progress: Progress,
) -> FileAlignment:
    """Read both files and fit the map. Raises: DataError: they cannot be aligned."""
    pairing = Pairing(old, new)
    dims = old.dim, new.dim
    if settings.rank is not None and settings.rank > min(dims):
        raise DataError(
            f"rank is {settings.rank}, and a map from {new.dim} to {old.dim} dims has "
            f"{min(dims)} at most; give a lower one."
        )
    rank = settings.rank_of(*dims)
    hashes = id_hashes(pairing.ids)
    past = lineage.canaries(lineage.newest).get(SIDE, (None,))[0] if lineage.versions else None
    groups = pair_groups(hashes, settings.held_out)
    few = partial(refuse_few, dims=dims, kind=settings.transform, rank=rank)
    small = few(groups, allow_small=settings.allow_small_overlap)

    def read_once(groups: Groups) -> tuple[PairReading, tuple[Tensor, Tensor, Tensor]]:
        queries, catalogue = sampled_rows(hashes, groups.held, settings.seed)
        kept = canary_rows(pairing.ids, hashes, past)
        rows = torch.cat([queries, catalogue, kept])
        together = join_processes(CPU)
        read = read_pairs(pairing, dims, groups, rows, progress, together)
        return read, (queries, catalogue, kept)

    read, sampled = read_once(groups)
    refuse_degenerate(old.path, new.path, read.whole, read.zeros)
    if (apart := read.apart(groups)) is not None:
        groups = apart
        read, sampled = read_once(groups)
    small |= few(groups, allow_small=settings.allow_small_overlap, vectors=read.hashes)
    queries, catalogue, kept = sampled
    whole = read.whole
    metric = _metric(lineage) if lineage.versions else None

    def fit(some: SecondMoments, choosing: SecondMoments | None) -> ClosedForm:
        kind, scaled = settings.transform, settings.scaled
        return fit_closed_form(kind, some, choosing, metric, rank=rank, scaled=scaled)

    fitted, ideal = fit(read.seen, read.chosen), fit(whole, None)
    fitted.transform.requires_grad_(False).eval()
    affine = _published(fitted)
    chance = beside_chance(read.held, *affine, objects=_different(read, groups))
    readings = mapping_readings(
        {"transformed": affine, "in_sample": _published(ideal)},
        read.held,
        read.sample.take(queries),
        read.sample.take(catalogue),
    )
    readings["chance"] = chance_reading(affine, chance, read.sample.take(queries), len(catalogue))
    return FileAlignment(
        old=old,
        new=new,
        settings=settings,
        pairing=pairing,
        groups=groups,
        small=small,
        read=read,
        fitted=fitted,
        chance=chance,
        readings=readings,
        neighbours={"queries": len(queries), "catalogue": len(catalogue)},
        canaries=kept,
    )


def _different(read: PairReading, groups: Groups) -> int:
    return len(torch.unique(read.hashes[groups.held]))


def _metric(lineage: Lineage) -> Tensor | None:
    """Return S of the past versions; None if it is I, or if a transform is not affine."""
    chain = lineage.active_chain
    if not chain.newest or not chain.is_affine(chain.newest, 0):
        return None
    steps = [chain.matrix(n, n - 1) for n in range(1, chain.newest + 1)]
    return history_metric(steps, chain.dim(0))


def _published(fitted: ClosedForm) -> tuple[Tensor, Tensor | None]:
    """Return the transform's affine map, in its float32."""
    affine = fitted.transform.requires_grad_(False).affine()
    assert affine is not None
    return affine
