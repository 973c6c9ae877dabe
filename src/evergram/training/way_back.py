"""How a version's backward transform comes to be: with its model, afterwards, or not at all."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from evergram.compatibility.alignment import AlignmentLoss, alignment_weight
from evergram.compatibility.certificate import StepError
from evergram.compatibility.chain import Chain
from evergram.compatibility.closed_form import fit_closed_form
from evergram.compatibility.fitting import fit_by_gradient
from evergram.compatibility.second_moments import SecondMoments
from evergram.compatibility.transforms import Transform, build_transform
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
from evergram.training.joint import Alignment, AlignmentSettings
from evergram.training.reading import held_out_rows, known_vectors
from evergram.training.recipe import Recipe

# One in so many objects chooses the ridge of a closed form.
FOR_RIDGE = 10


class WayBack:
    """B_k of one version, from its start to what is published.

    Args:
        recipe: `upgrade` says how.
        chain: of versions 0 to k-1, without withdrawn ones.
        before: M_{k-1}; it is not changed.
        corpus: what version k learns from.
        version: k.
        new_dim: D_k.
    """

    def __init__(
        self,
        recipe: Recipe,
        chain: Chain,
        before: Encoder,
        corpus: Corpus,
        version: int,
        new_dim: int,
    ) -> None:
        self.settings = recipe.upgrade
        self.seed = recipe.seed + version
        self.past, self.known = known_vectors(before, corpus)
        self.aside = held_out_rows(corpus, self.settings.held_out)
        self.used = {side: self.known[side] & ~self.aside[side] for side in SIDES}
        self.loss = AlignmentLoss(chain, self.settings.steps)
        self.transform: Transform = build_transform(
            self.settings.transform,
            before.dim,
            new_dim,
            self.settings.transform_options,
            torch.Generator().manual_seed(self.seed),
        )

    def joint(self) -> Alignment | None:
        """What trains together with the model, where the recipe wants that."""
        if self.settings.fit != "joint":
            return None
        settings = self.settings
        chosen = AlignmentSettings(
            strength=alignment_weight(settings.weight, settings.unit, self.transform.old_dim),
            rate=settings.transform_rate,
            objects=settings.objects,
            rows=settings.rows,
            seed=self.seed,
        )
        weight = {side: self.used[side].float() for side in SIDES}
        return Alignment(self.transform, self.loss, self.past, weight, chosen)

    def finish(self, new: Mapping[str, Tensor]) -> None:
        """Fit what is not trained, on the objects that take part, and change nothing from then on.

        Args:
            new: of each side, z_k [N, D_k].
        """
        settings = self.settings
        pairs = self._objects(new, self.used), self._objects(self.past, self.used)
        if settings.solver == "closed" and settings.fit != "none":
            self.transform = self._closed(*pairs)
        elif settings.fit == "posthoc":
            fit_by_gradient(
                self.transform,
                *pairs,
                loss=self.loss,
                rate=settings.transform_rate,
                epochs=settings.fit_epochs,
                seed=self.seed,
            )
        self.transform.requires_grad_(False).eval()

    @torch.no_grad()
    def error(self, new: Mapping[str, Tensor]) -> StepError:
        """On the objects that alignment never saw; on all that are known where those are none."""
        rows = {side: self.known[side] & self.aside[side] for side in SIDES}
        if not any(bool(r.any()) for r in rows.values()):
            rows = self.known
        return StepError.of(
            self.transform(self._objects(new, rows)), self._objects(self.past, rows)
        )

    def _closed(self, new: Tensor, past: Tensor) -> Transform:
        apart = torch.arange(len(new)) % FOR_RIDGE == 0
        seen, held = (
            SecondMoments(self.transform.old_dim, self.transform.new_dim) for _ in range(2)
        )
        seen.add(past[~apart], new[~apart])
        held.add(past[apart], new[apart])
        return fit_closed_form(
            self.settings.transform, seen, held, self.loss.metric, rank=self.settings.rank
        ).transform

    def _objects(self, vectors: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([vectors[side][rows[side]] for side in SIDES])
