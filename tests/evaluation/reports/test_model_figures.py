"""Figures of a version, and numbers beside them."""

from __future__ import annotations

import torch

from evergram.evaluation.gramian_error import Histograms
from evergram.evaluation.reports.model_figures import (
    histogram_figure,
    number,
    spectrum_figure,
    training_figures,
)
from evergram.evaluation.reports.version_facts import Spectrum


def test_a_number_that_is_none_is_not_measured() -> None:
    assert (number(None), number(float("nan"))) == ("not measured", "not measured")
    assert (number(0.5), number(0.5, 0.25)) == ("0.5000", "0.5000 ± 0.2500")


def test_the_curve_marks_the_chosen_epoch_and_tells_of_a_refit() -> None:
    history = [{"epoch": e, "objective": 1 / e, "recall@20": 0.1 * e} for e in (1, 2, 3)]
    training = {
        "history": history,
        "best_epoch": 2,
        "epochs": 3,
        "ended": "patience",
        "seconds": 1.0,
        "refit": {"steps": 70, "interactions": 1234},
    }
    text = training_figures({"training": training}, "recall@20")
    assert text.count("chosen: 2</text>") == 2
    assert "on all 1,234 rows that are not test, for 70 steps" in text
    assert "not measured" in training_figures({"training": {"history": []}}, "recall@20")


def test_scores_and_spectra_say_their_numbers_in_words() -> None:
    edges = torch.tensor([0.0, 1.0, 2.0])
    histograms = Histograms(edges, torch.ones(2) / 2, torch.ones(2) / 2, (0.5, 0.25), 0.75)
    assert "the higher one 75.0% of the time" in histogram_figure(histograms)
    text = spectrum_figure({"query": Spectrum([0.75, 0.25], 1.75, 9)})
    assert "1.75 of 2 (query)" in text
    assert "75.0%" in text
