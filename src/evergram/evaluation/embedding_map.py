"""A map of embeddings to look at: each a dot that says its name when it is pointed at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import torch
from torch import Tensor

WIDTH, HEIGHT, EDGE = 720, 480, 16
# Colours that are told apart by people who do not see all of them (Okabe and Ito 2008), and grey.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#000000")
OTHER = "#9ca3af"


@dataclass(frozen=True)
class EmbeddingMap:
    """Embeddings in the plane of their two largest principal components.

    In a notebook it shows itself. The plane shows the share of the variance that its title says,
    and no more: what lies together in it may be apart.

    >>> import numpy as np
    >>> from evergram.evaluation import EmbeddingMap
    >>> vectors = np.eye(3, dtype=np.float32)
    >>> map_ = EmbeddingMap.of(vectors, ["a", "b", "c"], groups=["x", "x", "y"])
    >>> len(map_.points)
    3

    Args:
        points: [N, 2].
        names: of each dot.
        groups: of each dot, or None; the eight largest have colours.
        share: of the variance, from 0 to 1.
    """

    points: np.ndarray
    names: Sequence[str]
    groups: Sequence[str] | None
    share: float

    @classmethod
    def of(
        cls,
        vectors: Tensor | np.ndarray,
        names: Sequence[object],
        groups: Sequence[object] | None = None,
    ) -> EmbeddingMap:
        """Return the map of `vectors` [N, D], finite, with N and D above 1."""
        rows = torch.as_tensor(vectors).double()
        centred = rows - rows.mean(0)
        u, s, _ = torch.linalg.svd(centred, full_matrices=False)
        share = float(s[:2].square().sum() / s.square().sum().clamp(min=1e-300))
        labels = None if groups is None else [str(group) for group in groups]
        return cls((u[:, :2] * s[:2]).numpy(), [str(name) for name in names], labels, share)

    def _repr_html_(self) -> str:
        """Return the figure; notebooks call this."""
        low, high = self.points.min(0), self.points.max(0)
        size = np.array([WIDTH, HEIGHT]) - 2 * EDGE
        places = EDGE + (self.points - low) / np.maximum(high - low, 1e-12) * size
        counted = Counter(sorted(self.groups or ())).most_common(len(COLOURS))
        colours = dict(zip(sorted(name for name, _ in counted), COLOURS, strict=False))
        groups = self.groups or [""] * len(self.names)
        dots = (
            f'<circle cx="{x:.1f}" cy="{HEIGHT - y:.1f}" r="4" fill="{colours.get(group, OTHER)}" '
            f'fill-opacity="0.75"><title>{escape(f"{name} ({group})" if group else name)}'
            "</title></circle>"
            for (x, y), name, group in zip(places, self.names, groups, strict=True)
        )
        legend = "".join(
            f'<li><span style="color:{colour}">●</span> {escape(group)}</li>'
            for group, colour in colours.items()
        )
        title = f"{len(self.names)} embeddings, {self.share:.0%} of their variance"
        return (
            f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" '
            f'style="max-width:{WIDTH}px;background:#fff">{"".join(dots)}</svg>'
            f"<figcaption>{title}</figcaption>"
            f'<ul style="list-style:none;columns:4;padding:0">{legend}</ul></figure>'
        )
