"""The page of a version: what was not measured says so, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evergram.evaluation.breakdown.strata import Stratum
from evergram.evaluation.reports.version_facts import NotMeasured, VersionFacts, WorstQuery
from evergram.evaluation.reports.version_report import write_version_report

WHY = NotMeasured("It is <too> large.")


def facts(metrics: dict[str, Any], **measured: Any) -> VersionFacts:
    fields = ("spectra", "scores", "neighbours", "worst", "by_popularity", "by_pairs")
    return VersionFacts("shop", 4, "recall@5", metrics, **(dict.fromkeys(fields, WHY) | measured))


def test_each_measure_that_is_missing_says_why(tmp_path: Path) -> None:
    metrics = {"untested": "Nothing was left.", "metrics": {"model": {"recall@5": None}}}
    text = write_version_report(tmp_path / "a.html", facts(metrics), None, ["Careful."]).read_text()
    assert text.count("not measured. It is &lt;too&gt; large.") == 6
    assert "Metrics: not measured. Nothing was left." in text
    assert "The curve: not measured." in text
    assert "<li>Careful.</li>" in text
    assert "<title>Version 4 of shop</title>" in text


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
