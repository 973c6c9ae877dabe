"""The report is what the kept results give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from reproduction.catalogue import EXPERIMENTS
from reproduction.report import conclusion
from reproduction.report.page import sections_of, write_report
from reproduction.run import jobs_of, settled, trials_of
from tests.support.reproduction_results import map_result

from reproduction import results

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_committed_report_is_what_the_results_give(tmp_path: Path) -> None:
    write_report(results.FOLDER, tmp_path)
    docs = ROOT / "docs"
    page, old = ((folder / "reproduction.md").read_text() for folder in (tmp_path, docs))
    assert page == old, "python -m reproduction report"
    pictures = [{p.name for p in (f / "reproduction").glob("*.svg")} for f in (tmp_path, docs)]
    assert pictures[0] == pictures[1]


def put_movielens(folder: Path, seeds: int) -> None:
    """Write made-up results of one experiment, in which SOGram with α = 0.1 is best."""
    experiment = EXPERIMENTS["gramian/movielens"]
    for unsettled in jobs_of(experiment, "small", range(seeds)):
        for trial in trials_of(unsettled):
            made = map_result(trial.training.label, [0.1, 0.2], trial.seed)
            made = replace(made, experiment=trial.experiment, preset=trial.preset, key=trial.key)
            results.write(folder, made)
        job = settled(unsettled, folder)
        assert job is not None
        label = job.training.label
        value = 0.2 if label.endswith("0.1") else 0.1
        made = map_result(label, [value / 2, value + 0.001 * job.seed], job.seed)
        made = replace(made, experiment=job.experiment, key=job.key)
        results.write(folder, made)


def test_a_report_without_results_claims_nothing(tmp_path: Path) -> None:
    paths = write_report(tmp_path / "none", tmp_path / "out")
    assert [path.name for path in paths] == ["reproduction.md"]
    text = paths[0].read_text()
    assert text.count("**confirmed**") == text.count("**refuted**") == 1  # what these words mean
    assert text.count("**not measured**") == sum(
        len(e.claims) * len(e.reported) for e in EXPERIMENTS.values()
    )
    assert "Not run yet" in text
    assert f"\n- {conclusion.NOTHING}\n\n" in text


def test_a_conclusion_stands_only_with_every_verdict_that_carries_it() -> None:
    sections = sections_of(results.FOLDER)
    found = {(s.experiment.name, s.preset): s for s in sections}
    carried = [
        each
        for each in conclusion.CONCLUSIONS
        if all(need.judgement(found).verdict == need.verdict for need in each.needs)
    ]
    lines = conclusion.conclusion(sections)
    assert len(lines) == len(carried) >= 2
    for need in {need for each in carried for need in each.needs}:
        own, other = found[need.experiment, need.preset], need.judgement(found)
        changed = [replace(j, verdict="not measured") if j is other else j for j in own.judgements]
        without = [replace(s, judgements=changed) if s is own else s for s in sections]
        left = [each for each in carried if need not in each.needs]
        assert len(conclusion.conclusion(without)) == len(left) < len(carried)


def test_three_seeds_are_separable_and_one_is_not(tmp_path: Path) -> None:
    put_movielens(tmp_path / "three", 3)
    put_movielens(tmp_path / "one", 1)
    verdicts = {
        name: {
            j.claim.sentence: j.verdict
            for section in sections_of(tmp_path / name)
            for j in section.judgements
            if j.verdict != "not measured"
        }
        for name in ("three", "one")
    }
    assert list(verdicts["three"].values()) == ["confirmed", "refuted"]
    assert set(verdicts["one"].values()) == {"not separable"}
    page = write_report(tmp_path / "one", tmp_path / "out")[0].read_text()
    assert "**not separable**." in page
    assert "1 seed; too few for intervals" in page


def test_a_page_has_settings_hardware_time_and_pictures(tmp_path: Path) -> None:
    put_movielens(tmp_path / "results", 3)
    again = write_report(tmp_path / "results", tmp_path / "again")
    paths = write_report(tmp_path / "results", tmp_path / "out")
    page = paths[0].read_text()
    assert [p.read_bytes() for p in paths] == [p.read_bytes() for p in again]
    for words in ("2 cores, 1 thread", "CPU minutes each", "3 seeds"):
        assert words in page
    assert "(reproduction/gramian-movielens.svg)" in page
    assert paths[1].name == "gramian-movielens.svg"
    assert paths[1].read_text().startswith("<svg")
