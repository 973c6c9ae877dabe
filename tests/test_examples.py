"""Examples in docstrings run, each in a folder of its own that has `recipes/` and a lineage.

The lineage, `lineages/films`, has versions 0 to 2 of 4 to 3 dims; queries and candidates have whole
numbers as ids.
"""

from __future__ import annotations

import doctest
import importlib
import shutil
from pathlib import Path

import pytest
from tests.support.golden import TRAINED

import evergram

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evergram"
# The ten objects that a user meets first.
PUBLIC = (
    "evergram.compatibility.transforms.LinearTransform",
    "evergram.data.corpus.Corpus",
    "evergram.lineage.lineage.Lineage",
    "evergram.lineage.view.View",
    "evergram.releasing.publish.publish",
    "evergram.releasing.upgrade.train",
    "evergram.releasing.upgrade.upgrade",
    "evergram.retrieval.reader.Reader",
    "evergram.serving.client.Client",
    "evergram.training.recipe.recipe.Recipe",
)


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


def test_the_most_public_objects_have_an_example() -> None:
    assert set(PUBLIC) <= {example.name for example in examples()}
    assert {name.rpartition(".")[2] for name in PUBLIC} - {"LinearTransform"} <= set(
        evergram.__all__
    )
