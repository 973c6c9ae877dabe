"""The whole page of `--report`, against what was published and an independent computation."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from evergram.data.split import Split
from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.releasing.html_report import report_file
from evergram.releasing.html_report.report_file import refuse_unwritable, write_published
from evergram.releasing.release import train_and_publish, upgrade_and_publish
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import Recipe

VOID = {"meta", "line", "path", "circle"}


class Page(HTMLParser):
    """The tables of a page by caption, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.rows: list[list[str]] = []
        self.caption, self.text = "", ""
        self.requests: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.requests += [f"{tag} {n}" for n, _ in attrs if n in ("src", "href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows = []
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td", "caption"):
            self.text = ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "caption":
            self.caption = self.text
        if tag in ("th", "td"):
            self.rows[-1].append(self.text)
        if tag == "table":
            self.tables[self.caption] = self.rows


@pytest.fixture
def recipe(small: Recipe) -> Recipe:
    return Recipe.of(
        small.model_dump(), ["training.epochs=2", "training.refit=false", "upgrade.alone=false"]
    )


def test_the_page_has_what_was_published_and_what_a_count_by_hand_gives(
    recipe: Recipe, tmp_path: Path
) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    metrics = train_and_publish(recipe, lineage, report=tmp_path / "made" / "0.html").metrics
    text = (tmp_path / "made" / "0.html").read_text()
    first = Page(text)
    assert not first.open
    assert not first.requests
    assert "url(" not in text
    assert f"chosen: {metrics['training']['best_epoch']}" in text
    assert first.tables["Data"][1] == ["rows of training", f"{metrics['data']['interactions']:,}"]
    model = metrics["metrics"]["model"]
    assert first.tables["Metrics"][1] == ["this version", *(f"{v:.4f}" for v in model.values())]

    # The worst queries, by every score at once in float64.
    split = split_for(recipe, load_corpus(recipe), 0)
    queries, candidates = (lineage.embeddings(side)[1].double() for side in ("query", "candidate"))
    scores = queries @ candidates.T
    known = (split.training.column("query"), split.training.column("candidate"))
    selected = split.selection.candidate >= 0
    scores[known] = -torch.inf
    scores[split.selection.query[selected], split.selection.candidate[selected]] = -torch.inf
    ranks: dict[int, list[int]] = {}
    for q, c in set(zip(split.test.query.tolist(), split.test.candidate.tolist(), strict=True)):
        if c >= 0:
            ranks.setdefault(q, []).append(int((scores[q] >= scores[q, c]).sum()))
    worst = first.tables["The 20 worst queries"][1:]
    bests = sorted((min(r) for r in ranks.values()), reverse=True)[:20]
    assert [int(row[3]) for row in worst] == bests
    ids = split.training.queries.vocabulary.keys
    pairs = split.training.counts("query")
    of_id = {str(ids[q].as_py()): (int(pairs[q]), len(r), max(r)) for q, r in ranks.items()}
    for row in worst:
        assert (int(row[1]), int(row[2]), int(row[4])) == of_id[row[0]]

    # Recall by popularity: all strata together are the hits of all test pairs.
    strata = first.tables["Recall@20 by candidates"][1:]
    hits = sum(float(r[3]) * int(r[2]) for r in strata if not r[3].startswith("not measured"))
    assert hits == pytest.approx(sum(x <= 20 for r in ranks.values() for x in r), abs=0.05)
    assert sum(int(r[2]) for r in strata) == sum(map(len, ranks.values()))

    # An effective rank, by the singular values of the vectors.
    rows = {row[0]: row for row in first.tables["Spectrum"][1:]}
    share = build_share(recipe, split)
    values = torch.linalg.svdvals(candidates * share.sqrt()[:, None]) ** 2
    parts = values / values.sum()
    assert rows["candidate"][3] == f"{float((-(parts * parts.log()).sum()).exp()):.2f}"


def build_share(recipe: Recipe, split: Split) -> torch.Tensor:
    """Return count^γ of candidates as shares, with γ of the recipe's measure."""
    counts = split.training.counts("candidate").double()
    (power, *_) = recipe.task.measures_of("candidate")
    weights = counts ** float(power)
    return weights / weights.sum()


def test_an_upgrade_says_what_past_versions_keep(recipe: Recipe, tmp_path: Path) -> None:
    lineage, path = Lineage.create(tmp_path / "lineage"), tmp_path / "1.html"
    train_and_publish(recipe, lineage)
    reading = upgrade_and_publish(recipe, lineage, report=path).metrics["compatibility"]["0"]
    second = Page(path.read_text())
    (row,) = second.tables["recall@20 kept"][1:]
    past, chain = (reading["ranking"][name]["recall@20"] for name in ("past", "chain"))
    assert row[:6] == [
        "version 0",
        f"{reading['drift']['held_out']['relative']:.1%}",
        str(reading["queries"]),
        f"{past:.4f}",
        f"{chain:.4f}",
        f"{chain / past:.1%}",
    ]
    assert "Consumers: not measured. No consumer of this lineage has a probe." in path.read_text()
    alone = second.tables["Metrics"][2]
    assert alone[0] == "the same model, trained without alignment"
    assert set(alone[1:]) == {"not measured"}
    strata = second.tables["Version 0: recall@20 of test pairs"][1:]
    assert any(float(r[3]) > 0 for r in strata if not r[3].startswith("not"))


def test_a_path_that_cannot_be_written_is_refused_before_training(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    for path, words in (
        (tmp_path / "page.txt", r"must end in \.html"),
        (tmp_path / "folder.html", "is a folder"),
        (tmp_path / "file" / "page.html", "cannot be written"),
        (Path("/proc/page.html"), "cannot be written"),
    ):
        with pytest.raises(DataError, match=words):
            refuse_unwritable(path)
    monkeypatch.setattr("evergram.releasing.release.train", None)  # calling it would fail
    lineage = Lineage.create(tmp_path / "lineage")
    with pytest.raises(DataError, match="cannot be written"):
        train_and_publish(recipe, lineage, report=Path("/proc/page.html"))
    refuse_unwritable(None)
    refuse_unwritable(tmp_path / "new" / "page.html")
    assert not (tmp_path / "new").exists()


def test_a_disk_that_fails_after_publishing_says_that_the_version_is_published(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    class Facts:
        version = 3

    monkeypatch.setattr(report_file, "write_version_report", full)
    with pytest.raises(DataError, match="Version 3 is published, and its report could not"):
        write_published(tmp_path / "x.html", Facts(), {}, [])  # type: ignore[arg-type]
