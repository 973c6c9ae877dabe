"""Checkpoints of a run: when they are written, which are kept, and of which run they are."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import nn

from evergram.data.corpus import Corpus
from evergram.errors import RecipeError, TrainingError
from evergram.training.build import Companions
from evergram.training.checkpoints.checkpoint_folder import CheckpointFolder
from evergram.training.checkpoints.pilot_journal import PilotJournal
from evergram.training.checkpoints.run_identity import (
    RunIdentity,
    corpus_digest,
    files_digest,
    modules_digest,
)
from evergram.training.checkpoints.settings import PATIENCE, SECONDS, CheckpointSettings
from evergram.training.checkpoints.state_file import TrainingState
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import Recipe

RUN = RunIdentity('{"seed": 1}', "1", "corpus")


def state(number: int) -> TrainingState:
    return TrainingState({"a": torch.full((2,), float(number))}, {"number": number})


def opened(
    folder: Path, keep: int = 2, run: RunIdentity = RUN, title: str = "version 1"
) -> CheckpointFolder:
    return CheckpointFolder(folder, title, run, CheckpointSettings(steps=10, keep=keep))


def number_of(folder: CheckpointFolder) -> int | None:
    loaded = folder.load()
    if loaded is None:
        return None
    assert float(loaded.tensors["a"][0]) == loaded.facts["number"]
    return int(loaded.facts["number"])


def numbers(folder: Path) -> list[str]:
    return sorted(path.name.split(".")[1].lstrip("0") for path in folder.iterdir())


def test_the_newest_are_kept_and_the_newest_is_loaded(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    assert folder.load() is None
    for number in range(1, 7):
        folder.save(state(number), number)
    assert numbers(tmp_path) == ["5", "6"]
    again = opened(tmp_path)
    assert number_of(again) == 6
    # The same step again, after its epoch, replaces what was saved before.
    again.save(state(8), 6)
    assert number_of(opened(tmp_path)) == 8
    assert numbers(tmp_path) == ["5", "6"]


def test_a_damaged_one_is_skipped_for_the_one_before_it_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = opened(tmp_path, keep=3)
    for number in (5, 6, 7):
        folder.save(state(number), number)
    cut, changed = (tmp_path / f"version-1.{n:012d}.safetensors" for n in (7, 6))
    cut.write_bytes(cut.read_bytes()[:-3])
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    again = opened(tmp_path, keep=3)
    assert number_of(again) == 5
    assert [m.split(":")[0] for m in caplog.messages] == [
        f"{path.name} is damaged" for path in (cut, changed)
    ]
    again.save(state(6), 6)
    assert numbers(tmp_path) == ["5", "6"]
    assert number_of(opened(tmp_path)) == 6


def test_a_checkpoint_is_due_by_steps_since_the_last_and_never_without_a_folder(
    tmp_path: Path,
) -> None:
    folder = opened(tmp_path)
    assert [folder.due(9), folder.due(10)] == [False, True]
    folder.save(state(12), 12)
    assert [folder.due(21), folder.due(22)] == [False, True]
    nowhere = CheckpointFolder(None, "version 1", None, CheckpointSettings(steps=1))
    assert not nowhere.due(100)
    nowhere.save(state(1), 1)
    assert nowhere.load() is None
    slow = CheckpointFolder(tmp_path, "version 1", RUN)
    assert not slow.due(10**9)


def test_a_time_or_a_number_of_steps_is_read_and_anything_else_is_refused() -> None:
    for every, seconds, steps in (
        ("60s", 60.0, None),
        ("0.5m", 30.0, None),
        (" 2h ", 7200.0, None),
        ("1000", None, 1000),
        (None, None, None),
    ):
        settings = CheckpointSettings.of(every, 3, "never")
        assert settings == CheckpointSettings(seconds, steps, 3, "never")
    for wrong in ("", "0", "-1", "1.5", "60 s", "60d", "nans", "1e9s", "s"):
        with pytest.raises(RecipeError, match="60s"):
            CheckpointSettings.of(wrong)
    values: list[dict[str, Any]] = [
        {"keep": 0},
        {"resume": "always"},
        {"seconds": 1.0, "steps": 1},
        {"seconds": float("nan")},
        {"steps": 0},
    ]
    for each in values:
        with pytest.raises(RecipeError):
            CheckpointSettings(**each)


def test_by_itself_writing_takes_a_small_share_of_the_time() -> None:
    settings = CheckpointSettings()
    assert not settings.due(SECONDS - 1, 10**9, 0.0)
    assert settings.due(SECONDS, 0, 0.0)
    assert not settings.due(SECONDS, 0, 10.0)
    assert settings.due(10.0 * PATIENCE, 0, 10.0)
    # What is asked for is done, whatever it costs.
    assert CheckpointSettings(seconds=5).due(5, 0, 100.0)
    assert CheckpointSettings(steps=7).due(0.0, 7, 100.0)
    assert not CheckpointSettings(steps=7).due(1e9, 6, 0.0)


PAIRS = {"query": ["a", "b", "b"], "candidate": ["x", "y", "x"], "value": [1.0, 2.0, 3.0]}


FEATURES = {"id": ["a", "b"], "city": ["u", "v"]}


def corpus_with(
    pairs: dict[str, list[object]] | None = None, **features: list[str] | list[int]
) -> Corpus:
    table = pa.table({**PAIRS, **(pairs or {})})
    return Corpus.from_tables(table, pa.table({**FEATURES, **features}))


def test_every_column_id_and_feature_of_a_corpus_counts() -> None:
    digests = [
        corpus_digest(corpus_with()),
        corpus_digest(corpus_with({"candidate": ["x", "y", "y"]})),
        corpus_digest(corpus_with({"query": ["a", "c", "c"]})),
        corpus_digest(corpus_with({"value": [1.0, 2.0, 4.0]})),
        corpus_digest(corpus_with({"weight": [1.0, 2.0, 4.0]})),
        corpus_digest(corpus_with(city=["u", "w"])),
        corpus_digest(corpus_with(city=["u", "u"])),
        corpus_digest(corpus_with({"query": [1, 2, 2]}, id=[1, 2])),
    ]
    assert len(set(digests)) == len(digests)
    assert corpus_digest(corpus_with()) == digests[0]


class Moved(nn.Module):
    """A parameter, which is trained, and a buffer, which is the past."""

    def __init__(self, parameter: float, buffer: float) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.tensor(parameter))
        self.register_buffer("past", torch.tensor(buffer), persistent=False)


def test_modules_count_and_of_a_joint_one_the_buffers() -> None:
    def digest(**companions: object) -> str:
        return modules_digest(Companions(**companions))  # type: ignore[arg-type]

    digests = [
        digest(),
        digest(joint=Moved(1.0, 2.0)),
        digest(joint=Moved(1.0, 3.0)),
        digest(start=Moved(1.0, 2.0)),
        digest(own=Moved(1.0, 2.0)),
        digest(past={"query": torch.ones(2)}),
        digest(past={"query": torch.zeros(2)}),
    ]
    assert len(set(digests)) == len(digests)
    assert digest(joint=Moved(5.0, 2.0)) == digests[1]


def test_a_difference_is_named(small: Recipe) -> None:
    split = split_for(small, load_corpus(small), 0)
    identity = RunIdentity.of(small.model_dump_json(), 0, split, Companions())
    for change, named in (
        ({"torch": "1.0"}, "torch (1.0"),
        ({"version": "3"}, "version (3, here 0)"),
        ({"corpus": "x"}, "corpus"),
        ({"selection": "x"}, "pairs"),
        ({"modules": "x"}, "modules"),
        ({"purpose": "refit"}, "steps"),
        ({"files": "x"}, "files"),
        ({"recipe": "no JSON"}, "recipe"),
    ):
        assert named in identity.difference(replace(identity, **change).as_json())
    assert identity.difference(identity.as_json()) == ""


def test_changed_keys_of_a_recipe_are_named(small: Recipe) -> None:
    def identity(*overrides: str) -> RunIdentity:
        recipe = Recipe.of(small.model_dump(), list(overrides))
        return RunIdentity(recipe.model_dump_json(), "0", "")

    one, other = identity(), identity("task.penalty=6.0", "training.epochs=9")
    words = "another recipe (task.penalty, training.epochs changed)"
    assert one.difference(other.as_json()) == words
    assert one.difference({}) == "another recipe"


def test_the_contents_of_the_files_that_a_recipe_names_count(tmp_path: Path) -> None:
    query, weights = tmp_path / "query.parquet", tmp_path / "weights.csv"
    recipe = {
        "prior": {"kind": "files", "query": str(query), "candidate": str(query)},
        "task": {"query_measure": [0.5, str(weights)], "candidate_measure": 1.0},
    }
    query.write_text("one")
    digests = [files_digest(recipe)]  # a file that is not there is refused elsewhere
    weights.write_text("id,weight")
    digests.append(files_digest(recipe))
    query.write_text("two")
    digests.append(files_digest(recipe))
    assert len(set(digests)) == 3
    assert files_digest({"prior": {"kind": "zero"}, "task": {"query_measure": [1.0]}}) == ""


JOURNAL_RUN = RunIdentity("{}", "0", "corpus")


def test_the_value_of_a_pilot_comes_back_bit_for_bit(tmp_path: Path) -> None:
    for value in (0.1 + 0.2, 5e-324, -math.inf):
        PilotJournal(tmp_path, "version 0", JOURNAL_RUN).add({"l2": 0.1, "rate": 2}, value)
        again = PilotJournal(tmp_path, "version 0", JOURNAL_RUN)
        assert again.get({"rate": 2, "l2": 0.1}) == value
        assert again.get({"l2": 0.2}) is None


def test_another_run_a_damaged_file_and_never_measure_anew(tmp_path: Path) -> None:
    PilotJournal(tmp_path, "version 0", JOURNAL_RUN).add({}, 1.0)
    anew = CheckpointSettings(resume="never")
    other = replace(JOURNAL_RUN, corpus="other")
    for journal in (
        PilotJournal(tmp_path, "version 0", JOURNAL_RUN, anew),
        PilotJournal(tmp_path, "version 0", other),
        PilotJournal(tmp_path, "version 1", JOURNAL_RUN),
        PilotJournal(None, "version 0"),
    ):
        assert journal.get({}) is None
    for content in ("", "[]", '{"identity": []}', '{"identity": {}, "values": 3}'):
        (tmp_path / "version-0.pilots.json").write_text(content)
        assert PilotJournal(tmp_path, "version 0", JOURNAL_RUN).get({}) is None


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = PilotJournal(tmp_path / "file", "version 0", JOURNAL_RUN)
    with pytest.raises(TrainingError, match=r"cannot be kept in .*file: "):
        blocked.add({}, 1.0)
