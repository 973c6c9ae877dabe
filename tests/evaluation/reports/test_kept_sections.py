"""What past versions and consumers keep."""

from __future__ import annotations

from evergram.evaluation.breakdown.strata import Stratum
from evergram.evaluation.reports.kept_sections import kept_sections, share
from evergram.evaluation.reports.version_facts import KeptPast, NotMeasured, VersionFacts

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


def test_a_share_of_nothing_is_not_measured() -> None:
    assert [share(0.0, 0.0), share(None, 1.0), share(0.5, 0.25)] == [
        "not measured",
        "not measured",
        "200.0%",
    ]
