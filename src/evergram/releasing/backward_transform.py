"""Fit and measure the backward transform of an upgrade."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from evergram.collectives import ALONE, Collectives
from evergram.compatibility.alignment_loss import (
    AlignmentLoss,
    GradientFit,
    alignment_weight,
    fit_by_gradient,
)
from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.chain import Chain
from evergram.compatibility.closed_forms import fit_closed_form, moments_by_use
from evergram.compatibility.kinds import build_transform
from evergram.compatibility.transforms import Transform
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import SIDES
from evergram.errors import DataError
from evergram.ids import id_hashes
from evergram.releasing.past_versions import PastModel, held_out_rows, known_vectors
from evergram.training.joint import JointAlignment
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import (
    GradientUpgrade,
    JointUpgrade,
    PosthocUpgrade,
    UpgradeSettings,
)

# Relative increase of the error that is accepted for a smaller transform. Otherwise the transform
# magnifies directions in which new vectors carry little information; the next version's multi-step
# loss weights errors there by the square of that factor, at the cost of the task.
TOLERANCE = 0.01
# Fewer common objects are a small overlap: half are for fitting, half for measuring the error.
LEAST_COMMON = 2 * LEAST_OBJECTS


@dataclass(frozen=True)
class Overlap:
    """Counts of the objects that a version has in common with the previous one."""

    common: int
    fitted: int  # alignment is fitted to these
    held_out: int  # its error is measured on these
    # Objects whose id hashes are below this share of 2³² are held out; 1 if nothing is fitted.
    held_out_share: float

    @property
    def small(self) -> bool:
        return self.held_out < LEAST_OBJECTS

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "small": self.small}

    def refuse_small(self, version: int, before: int, *, allow_small: bool) -> None:
        """Raises: DataError: too few common objects to fit, or to measure the error."""
        fits = self.held_out_share < 1
        start = f"Version {version} would have {self.common or 'no'} objects in common with version"
        if not self.common:
            raise DataError(f"{start} {before}; give the same ids, or train a new lineage.")
        if fits and self.fitted < 2:
            held = f"of which {self.fitted} are not held out, and 2 are needed to fit to"
            raise DataError(f"{start} {before}, {held}; give more, or lower upgrade.held_out.")
        if self.small and not allow_small:
            raise DataError(
                f"{start} {before}, and {LEAST_COMMON if fits else LEAST_OBJECTS} are needed; give "
                "more of the same ids, or go without a certificate by --allow-small-overlap."
            )


class BackwardTransformFit:
    """Fits a version's backward transform B_k.

    Args:
        recipe: recipe of version k.
        version: k; with the recipe's seed it seeds the initial transform and the sampling.
        chain: versions 0 to k-1, without withdrawn ones.
        before: the model of version k-1; not modified.
        corpus: the training corpus of version k.
        new_dim: D_k.
    """

    def __init__(
        self,
        recipe: Recipe,
        version: int,
        chain: Chain,
        before: PastModel,
        corpus: Corpus,
        new_dim: int,
    ) -> None:
        self.recipe = recipe
        self.version = version
        self.corpus = corpus
        self.settings: UpgradeSettings = recipe.upgrade
        self.seed: int = recipe.seed + version
        self.past, self.known = known_vectors(before, corpus)
        self.held_out, self.aside = _set_aside(corpus, self.known, self.settings.held_out)
        self.used = {side: self.known[side] & ~self.aside[side] for side in SIDES}
        self.loss = AlignmentLoss(chain, self.settings.steps, "paper")
        generator, settings = torch.Generator().manual_seed(self.seed), self.settings
        chosen = settings.transform
        self.transform: Transform = build_transform(
            chosen.kind, before.dim, new_dim, chosen.options(), generator
        )
        adam = settings.transform_training if isinstance(settings, GradientUpgrade) else None
        if adam is not None and adam.objects == "paper-code":
            for weight in self.transform.parameters():
                nn.init.uniform_(weight, -1 / sqrt(new_dim), 1 / sqrt(new_dim), generator=generator)

    def joint(self) -> JointAlignment | None:
        """Return the alignment to train jointly with the model; None with other settings."""
        if not isinstance(self.settings, JointUpgrade):
            return None
        strength = alignment_weight(self.settings.weight, "paper", self.transform.old_dim)
        return self._alignment(strength)

    def _alignment(self, strength: float) -> JointAlignment:
        settings = self.settings
        assert isinstance(settings, GradientUpgrade)
        weight = {side: self.used[side].float() for side in SIDES}
        adam = settings.transform_training
        known = self.past, weight
        return JointAlignment(self.transform, self.loss, *known, strength, adam, self.seed)

    def finish(self, new: Mapping[str, Tensor], together: Collectives = ALONE) -> None:
        """Fit the transform to the vectors z_k [N, D_k] of each side, unless joint training has,
        and freeze it. Processes share the pass over the objects for a closed form."""
        settings = self.settings
        if settings.fit != "none" and settings.solver == "closed":
            self.transform = self._solved(new, together)
        elif isinstance(settings, PosthocUpgrade):
            adam = settings.transform_training
            if adam.fit is not None and settings.transform.is_learned:
                adam.fit(self._alignment(1.0), new, self.recipe, self.corpus, self.version)
            else:
                fit_by_gradient(
                    self.transform,
                    *self._fitted_to(new),
                    loss=self.loss,
                    settings=GradientFit(rate=adam.rate, epochs=adam.epochs, seed=self.seed),
                )
        self.transform.requires_grad_(False).eval()

    @property
    def overlap(self) -> Overlap:
        common, measured = _count(self.known), _count(self._measured)
        if self.settings.fit == "none":
            return Overlap(common, 0, measured, 1.0)
        return Overlap(common, _count(self.used), measured, self.held_out)

    @torch.no_grad()
    def error(self, new: Mapping[str, Tensor]) -> StepError:
        """Measure B_k z_k − z_{k−1} on held-out objects; on all known ones if nothing is fitted."""
        rows = self._measured
        return StepError.of(self.transform(_objects(new, rows)), _objects(self.past, rows))

    @property
    def _measured(self) -> dict[str, Tensor]:
        if self.settings.fit == "none":
            return self.known
        return {side: self.known[side] & self.aside[side] for side in SIDES}

    @torch.no_grad()
    def _solved(self, new: Mapping[str, Tensor], together: Collectives) -> Transform:
        """Return the closed form, or the jointly trained transform if its error is no larger on the
        pairs that chose the ridge."""
        kind, options = self.settings.transform.kind, self.settings.transform.options()
        moments, held = moments_by_use(*self._fitted_to(new), together)
        metric = self.loss.metric
        solved = fit_closed_form(kind, moments, held, metric, tolerance=TOLERANCE, **options)
        trained = self.transform.affine() if self.settings.fit == "joint" else None
        if trained is None:
            return solved.transform
        weight, offset = trained
        wide = weight.double().cpu(), None if offset is None else offset.double().cpu()
        own = solved.weight, solved.offset
        if not held.count or held.error(*wide, metric) <= held.error(*own, metric):
            return self.transform
        return solved.transform

    def _fitted_to(self, new: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return _objects(new, self.used), _objects(self.past, self.used)


def _objects(vectors: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([vectors[side][rows[side]] for side in SIDES])


def _count(rows: Mapping[str, Tensor]) -> int:
    return sum(int(mask.sum()) for mask in rows.values())


def _set_aside(
    corpus: Corpus, known: Mapping[str, Tensor], share: float
) -> tuple[float, dict[str, Tensor]]:
    """Return the held-out share, and a mask [N] of each side's held-out rows. A share that gives
    fewer than `LEAST_OBJECTS` is raised, up to half of the objects."""
    aside = held_out_rows(corpus, share)
    enough = _count({side: known[side] & aside[side] for side in SIDES}) >= LEAST_OBJECTS
    if enough or _count(known) < LEAST_COMMON:
        return share, aside
    keys = {"query": corpus.queries.vocabulary.keys, "candidate": corpus.candidates.vocabulary.keys}
    hashes = _objects({side: torch.from_numpy(id_hashes(keys[side])) for side in SIDES}, known)
    # Hashes are compared with the share in float32, which has steps of up to 256 here.
    share = (int(hashes.sort().values[LEAST_OBJECTS - 1]) + 512) / 2**32
    return share, held_out_rows(corpus, share)
