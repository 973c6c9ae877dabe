"""The figures of a diagnosis hold the numbers that they are drawn from."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.patches import StepPatch

from evergram.evaluation.gramian_error import Histograms
from evergram.evaluation.reports.diagnosis_report import draw_histograms, write_diagnosis

HISTOGRAMS = Histograms(
    torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.0, 2.0]), torch.tensor([1.5, 0.5]), (1, 0.4), 0.9
)


def test_both_histograms_share_their_edges() -> None:
    (axes,) = draw_histograms(HISTOGRAMS).axes
    observed, random = (p.get_data() for p in axes.patches if isinstance(p, StepPatch))
    for (values, edges, _), density in ((observed, [0.0, 2.0]), (random, [1.5, 0.5])):
        assert values.tolist() == density
        assert edges.tolist() == [0.0, 0.5, 1.0]
    assert axes.get_legend_handles_labels()[1] == ["observed", "random"]


def test_the_diagnosis_is_a_png_in_a_folder_that_it_makes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "diagnosis.png"
    errors = {"sogram": [0.5, 0.1], "sampled": [0.9, 0.8]}
    assert write_diagnosis(path, HISTOGRAMS, [1, 2], errors, errors) == path
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(path.parent.iterdir()) == [path]
