"""The report is what the kept results give."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reproduction.catalogue import EXPERIMENTS
from reproduction.report.content import PRESET, content
from reproduction.report.write import write_report
from reproduction.run import jobs_of
from tests.support.reproduction_results import map_result

from reproduction import results

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_committed_report_is_what_the_results_give(tmp_path: Path) -> None:
    write_report(results.FOLDER, tmp_path)
    docs = ROOT / "docs"
    page, old = ((folder / "reproduction.md").read_text() for folder in (tmp_path, docs))
    assert page == old, "evergram reproduce report"
    # The drawn paths differ between versions of matplotlib; the hash of what is drawn stays.
    page, old = (
        re.sub(r"<svg.*?</svg>", "", (folder / "reproduction.html").read_text(), flags=re.DOTALL)
        for folder in (tmp_path, docs)
    )
    assert page == old, "evergram reproduce report"
    assert not re.search(r"<(script|link|img|iframe)\b|url\(\s*['\"]?(?!#)", page)
    pictures = [{p.name for p in (f / "reproduction").glob("*.svg")} for f in (tmp_path, docs)]
    assert pictures[0] == pictures[1]


class Tags(HTMLParser):
    """Fails on tags that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def put_movielens(folder: Path, seeds: int) -> None:
    """Write made-up results of one experiment, in which SOGram with α = 0.1 is best."""
    experiment = EXPERIMENTS["gramian/movielens"]
    for job in jobs_of(experiment, PRESET, range(seeds)):
        label = job.training.label
        value = 0.2 if label.endswith("0.1") else 0.1
        made = map_result(label, [value / 2, value + 0.001 * job.seed], job.seed)
        made = replace(made, experiment=job.experiment, key=job.key)
        results.write(folder, made)


def test_a_report_without_results_claims_nothing(tmp_path: Path) -> None:
    paths = write_report(tmp_path / "none", tmp_path / "out")
    assert [path.name for path in paths] == ["reproduction.md", "reproduction.html"]
    text = paths[0].read_text()
    assert "| confirmed" not in text
    assert "| refuted" not in text
    assert text.count("| not measured |") == sum(
        len(e.claims) * len(e.reported) for e in EXPERIMENTS.values()
    )
    assert "not run yet" in text


def test_three_seeds_are_separable_and_one_is_not(tmp_path: Path) -> None:
    put_movielens(tmp_path / "three", 3)
    put_movielens(tmp_path / "one", 1)
    verdicts = {
        name: {
            j.claim.sentence: j.verdict
            for j in content(tmp_path / name).judgements
            if j.verdict != "not measured"
        }
        for name in ("three", "one")
    }
    assert list(verdicts["three"].values()) == ["confirmed", "refuted"]
    assert set(verdicts["one"].values()) == {"not separable"}
    page = write_report(tmp_path / "one", tmp_path / "out")[0].read_text()
    assert "not separable (1 seed)" in page
    assert "1 (0); too few for intervals" in page


def test_a_page_has_settings_hardware_time_and_the_papers_figures(tmp_path: Path) -> None:
    put_movielens(tmp_path / "results", 3)
    for path in (tmp_path / "results").rglob("*.json"):
        made = results.read(path)
        processor = {**made.machine, "processor": "made up <script>"}
        results.write(tmp_path / "results", replace(made, machine=processor))
    again = write_report(tmp_path / "results", tmp_path / "again")
    paths = write_report(tmp_path / "results", tmp_path / "out")
    page, html = paths[0].read_text(), paths[1].read_text()
    assert [p.read_bytes() for p in paths] == [p.read_bytes() for p in again]
    for words in ("2 cores, 1 thread", "CPU minutes a seed", "3 (0, 1, 2)", "+2.9 %"):
        assert words in page
        assert words in html
    assert "made up <script>" not in html
    assert "made up &lt;script&gt;" in html
    assert "(reproduction/gramian-movielens.svg)" in page
    picture = (tmp_path / "out" / "reproduction" / "gramian-movielens.svg").read_text()
    assert picture.startswith("<svg")
    Tags().feed(html)
    assert html.count("<svg") == 1
    assert 'aria-label="Ratings of MovieLens"' in html
