"""Bad input, one case a code path, ends in one sentence, exit code 2, and nothing written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.bad_input import (
    consumers,
    disks,
    interactions_tables,
    interactions_text,
    lineages,
    recipes,
    services,
    stores,
    texts,
    vectors,
)
from tests.support.bad_input.case import Case, tree_of
from tests.support.bad_input.good_files import make_good_files
from tests.support.command import Command

FAMILIES: dict[str, list[Case]] = {
    "interactions in tables": interactions_tables.CASES,
    "interactions in text": interactions_text.CASES,
    "recipes": recipes.CASES,
    "files of vectors": vectors.CASES,
    "lineages": lineages.CASES,
    "consumers": consumers.CASES,
    "texts": texts.CASES,
    "stores": stores.CASES,
    "the service": services.CASES,
    "disks, locks and downloads": disks.CASES,
}
CASES = [(family, case) for family, cases in FAMILIES.items() for case in cases]


@pytest.fixture(scope="module")
def good_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_good_files(folder)
    return folder


@pytest.mark.parametrize(
    "case", [c for _, c in CASES], ids=[f"{family}: {case.name}" for family, case in CASES]
)
def test_bad_input_ends_in_one_sentence_and_nothing_is_written(
    case: Case,
    good_files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    evergram: Command,
) -> None:
    folder = tmp_path / "here"
    shutil.copytree(good_files, folder, symlinks=True)
    monkeypatch.chdir(folder)
    case.make(folder)
    before = tree_of(folder)
    with case.during():
        sentence = evergram(*case.arguments).refusal()
    assert tree_of(folder) == before
    assert case.names in sentence
