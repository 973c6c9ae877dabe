"""Results on disk."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.reproduction_results import result

from evergram.errors import DataError
from reproduction import results


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    made = result("linear SOGram, α = 0.1", 3, map={"validation": [0.25, 0.5]})
    path = results.write(tmp_path, made)
    assert path == results.path_of(tmp_path, made.experiment, "small", made.label, 3)
    assert results.read(path) == made
    assert results.read_all(tmp_path, made.experiment, "small") == [made]
    assert results.read_all(tmp_path, made.experiment, "paper") == []


def test_numbers_have_six_digits_and_json_has_no_nan(tmp_path: Path) -> None:
    made = replace(result("a"), series={"x": [1 / 3, math.nan, math.inf, 7]})
    text = results.write(tmp_path, made).read_text()
    assert json.loads(text)["series"]["x"] == [0.333333, None, None, 7]


def test_names_of_files_are_plain_and_differ(tmp_path: Path) -> None:
    labels = ["λ = 0.01", "λ = 0.1", "α = 0.01", "uniform sampling", "uniform SOGram"]
    names = [results.path_of(tmp_path, "g/x", "small", label, 0).name for label in labels]
    assert len(set(names)) == len(labels)
    assert all(name.isascii() and " " not in name for name in names)


def test_what_is_half_written_is_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = result("a")

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        results.write(tmp_path, made)
    assert results.read_all(tmp_path, made.experiment, "small") == []
    assert list(tmp_path.rglob(".*.part"))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 9}', '{"format": 1, "x": 2}'])
def test_a_file_that_is_no_result_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataError, match="remove it to run it again"):
        results.read(path)


def test_the_key_is_of_settings_and_seed() -> None:
    settings = {"recipe": {"task": {"penalty": 10.0}}}
    key = results.key_of(settings, 0)
    assert key == results.key_of({"recipe": {"task": {"penalty": 10.0}}}, 0)
    assert key != results.key_of(settings, 1)
    assert key != results.key_of({"recipe": {"task": {"penalty": 1.0}}}, 0)


def test_the_machine_and_the_versions_are_named() -> None:
    machine, versions = results.machine(), results.versions()
    assert machine["processor"]
    assert machine["threads"] >= 1
    assert set(versions) == {"evergram", "torch", "python"}


def test_a_label_without_a_plain_letter_has_a_name_that_is_not_hidden(tmp_path: Path) -> None:
    names = [results.path_of(tmp_path, "a/b", "small", label, 0).name for label in ("η", "β")]
    assert len(set(names)) == 2
    assert not any(name.startswith(".") for name in names)
