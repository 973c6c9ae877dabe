"""What is kept of past versions, against the published readings."""

from __future__ import annotations

from pathlib import Path

from tests.support.tiny_training import tiny_lineage, tiny_recipe

from evergram.evaluation.reports.version_facts import KeptPast
from evergram.releasing.html_report.report_file import ReportedVersion
from evergram.releasing.upgrade import upgrade
from evergram.training.corpora import load_corpus


def test_strata_add_up_to_the_hits_of_the_published_reading(tmp_path: Path) -> None:
    recipe, lineage = tiny_recipe("upgrade.alone=false"), tiny_lineage(tmp_path / "lineage")
    artefact = upgrade(recipe, lineage, progress=False)
    facts = ReportedVersion(recipe, lineage, load_corpus(recipe), 1).facts(artefact)
    kept = facts.kept["0"]
    assert isinstance(kept, KeptPast)
    assert 0 <= kept.new <= 1
    assert sum(stratum.members for stratum in kept.strata) == len(artefact.block("candidate")[0])
    assert (
        sum(stratum.measured for stratum in kept.strata)
        >= artefact.metrics["compatibility"]["0"]["queries"]
    )
