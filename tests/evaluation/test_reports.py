"""Reports hold the numbers that they were given, say what was not measured, and load nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from evergram.evaluation import EmbeddingMap
from evergram.evaluation.breakdown import Stratum
from evergram.evaluation.gramian_error import Histograms
from evergram.evaluation.reports.html_page import (
    Axes,
    Line,
    chart,
    not_measured,
    page,
    warning_list,
)
from evergram.evaluation.reports.run_reports import write_demo, write_tuning
from evergram.evaluation.reports.version_report import (
    KeptPast,
    NotMeasured,
    Spectrum,
    VersionFacts,
    WorstQuery,
    histogram_figure,
    kept_sections,
    spectrum_figure,
    training_figures,
    write_version_report,
)


def test_a_page_escapes_its_title_and_says_what_was_not_measured() -> None:
    text = page("<script>", [not_measured("Recall", "No <pair>."), warning_list(["a < b"])])
    assert "<script>" not in text
    assert "Recall: not measured. No &lt;pair&gt;." in text
    assert "<li>a &lt; b</li>" in text
    assert "prefers-color-scheme: dark" in text


def test_what_cannot_be_drawn_is_left_out_and_nothing_left_says_so() -> None:
    axes = Axes("t", "a", "x", logarithmic=True)
    assert "not measured" in chart(axes, [Line("l", [(1, 0.0), (2, float("nan"))])])
    assert chart(axes, [Line("l", [(1, 0.0), (2, 1.0), (3, 0.5)])]).count("<circle") == 2


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


WHY = NotMeasured("Why.")


def test_readings_certificates_and_probes() -> None:
    strata = [Stratum("top", 3, 4, {"past": 0.5, "chain": 0.25, "new": 1.0})]
    kept: dict[str, KeptPast | NotMeasured] = {
        "0": KeptPast(0.8, strata),
        "1": NotMeasured("No model."),
    }
    probe = {"consumer": "ads", "pinned": "v0", "metric": "auc", "value": 0.75, "limit": 0.7}
    probe |= {"baseline": {"value": 0.875}, "objects": 9, "missing": 1, "sentence": None}
    ranking = {"past": {"recall@5": 0.5}, "chain": {"recall@5": 0.4}}
    metrics = {
        "compatibility": {"0": {"queries": 12, "ranking": ranking}},
        "certificate": {"0": {"estimate": 0.1, "bound": 0.2, "relative": 0.3}},
        "probes": [probe],
    }
    facts = VersionFacts("shop", 2, "recall@5", metrics, WHY, WHY, WHY, WHY, WHY, WHY, kept=kept)
    text = "".join(kept_sections(facts, metrics))
    assert "<td>0.4000</td><td>80.0%</td><td>0.8000</td><td>50.0%</td>" in text
    assert "<td>0.5000</td><td>0.2500</td><td>50.0%</td><td>1.0000</td>" in text
    assert "Version 1: not measured. No model." in text
    assert "Certificate of version 1: not measured." in text
    assert "<td>0.8750</td><td>0.7500</td><td>0.7000</td>" in text
    first = VersionFacts("s", 0, "recall@5", {}, WHY, WHY, WHY, WHY, WHY, WHY)
    assert kept_sections(first, {}) == []


LARGE = NotMeasured("It is <too> large.")


def facts(metrics: dict[str, Any], **measured: Any) -> VersionFacts:
    fields = ("spectra", "scores", "neighbours", "worst", "by_popularity", "by_pairs")
    return VersionFacts("shop", 4, "recall@5", metrics, **(dict.fromkeys(fields, LARGE) | measured))


def test_sampled_metrics_have_errors_and_a_loss_to_popularity_is_a_warning(tmp_path: Path) -> None:
    metrics = {
        "metrics": {"model": {"recall@5": 0.25}, "popularity": {"recall@5": 0.5}},
        "sampled": {
            "queries": 7,
            "of": 90,
            "errors": {"model": {"recall@5": 0.125}, "popularity": {"recall@5": 0.0625}},
        },
    }
    strata = [Stratum("all", 3, 0, {"model": None})]
    shown = facts(metrics, by_pairs=strata, worst=[WorstQuery("q<", 1, 2, 3, 4)])
    text = write_version_report(tmp_path / "a.html", shown).read_text()
    assert "0.2500 ± 0.1250" in text
    assert "0.5000 ± 0.0625" in text
    assert "Measured on 7 of 90 test queries" in text
    assert "It ranks no better than popularity: recall@5 0.2500, and 0.5000" in text
    assert "not measured (no test queries)" in text
    assert "q&lt;" in text


def test_each_dot_says_its_name_and_group_and_nothing_is_markup(tmp_path: Path) -> None:
    vectors = torch.eye(3)
    html = EmbeddingMap.of(vectors, ["<b>", "two", 3], groups=["x & y", "z", "z"])._repr_html_()
    titles = re.findall(r"<title>(.*?)</title>", html)
    assert titles == ["&lt;b&gt; (x &amp; y)", "two (z)", "3 (z)"]
    assert html.count("<circle") == 3
    assert html.count("<li>") == 2
    saved = EmbeddingMap.of(vectors, "abc").save(tmp_path / "map.html")
    assert saved.read_text().startswith("<!doctype html>")
    assert "<li>" not in saved.read_text()


def version(number: int, **metrics: float) -> dict[str, Any]:
    return {
        "version": number,
        "dim": 8 + number,
        "metrics": {who: {"recall@20": value} for who, value in metrics.items()},
        "consumer": {"auc_chain": 0.875, "auc_raw": 0.5},
        "drift_relative": 0.25 * number,
    }


def test_the_demos_report_is_one_file_with_every_number_that_loads_nothing(tmp_path: Path) -> None:
    versions = [version(0, model=0.125), version(1, model=0.25, alone=0.75, popularity=0.0625)]
    text = write_demo(tmp_path / "made" / "demo.html", versions, "recall@20").read_text()
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)[1:]]
    assert rows == [
        ["8", "0.1250", "–", "–", "0.8750", "0.5000", "0.0000"],
        ["9", "0.2500", "0.7500", "0.0625", "0.8750", "0.5000", "0.2500"],
    ]
    assert text.count('<svg viewBox="0 0 360') == 3
    assert not re.findall(r"<(?:script|link|img)", text)


def test_trials_are_placed_by_numbers_logarithms_and_texts(tmp_path: Path) -> None:
    values: list[dict[str, Any]] = [
        {"dim": 8, "rate": 0.001, "kind": "bpr"},
        {"dim": 16, "rate": 0.1, "kind": "<softmax>"},
    ]
    trials = [
        {"number": number, "values": of, "state": state, "value": 0.25 * number}
        for number, (of, state) in enumerate(zip(values, ("finished", "pruned"), strict=True), 1)
    ]
    trials.append({"number": 3, "values": values[0], "state": "failed", "value": None})
    text = write_tuning(tmp_path / "trials.html", trials, "recall@20").read_text()
    assert "recall@20 of 2 trials" in text
    assert text.count("<figcaption>") == 4
    assert text.count("<circle") == 2 * 4
    for named in (">0.001<", ">0.01<", ">0.1<", ">bpr<", ">&lt;softmax&gt;<"):
        assert named in text
