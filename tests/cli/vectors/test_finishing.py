"""`evergram vectors finish-migration`: plan, file and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command import Command
from tests.support.text_encoders import ADDRESSES, sentences

NEW = ("--encoder", ADDRESSES[1])


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows = [f"{i},{text}" for i, text in enumerate(sentences(90))]
    for name, some in (("texts.csv", rows), ("sample.csv", rows[::3])):
        (tmp_path / name).write_text("\n".join(["id,text", *some]) + "\n")
    return tmp_path / "texts.csv"


@pytest.fixture
def kept(texts: Path, tmp_path: Path, evergram: Command) -> Path:
    path = tmp_path / "kept.parquet"
    assert evergram("vectors", "encode", tmp_path / "sample.csv", path, *NEW).code == 0
    return path


def test_a_dry_run_counts_and_writes_nothing(
    texts: Path, kept: Path, tmp_path: Path, evergram: Command
) -> None:
    before = sorted(tmp_path.iterdir())
    out = tmp_path / "new.parquet"
    command = ("vectors", "finish-migration", texts, out, *NEW, "--kept", kept, "--dry-run")
    plan = evergram(*command, "--json").json
    assert (plan["texts"], plan["kept"], plan["to_encode"]) == (90, 30, 60)
    printed = " ".join(evergram(*command).out.split())
    assert "90 texts: 30 have a kept vector, 60 (66.7%) are to be encoded" in printed
    assert "30 kept vectors were computed again and are the same; these are all." in printed
    assert "at most 25.9% of all differ" in " ".join(evergram(*command, "--check", 10).out.split())
    assert sorted(tmp_path.iterdir()) == before


def test_the_file_is_aligned_as_any_other(
    texts: Path, kept: Path, tmp_path: Path, evergram: Command
) -> None:
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    assert evergram("vectors", "encode", texts, old, "--encoder", ADDRESSES[0]).code == 0
    made = evergram.json("vectors", "finish-migration", texts, new, *NEW, "--kept", kept)
    assert (made["file"], made["dim"], made["encoder"]) == (str(new), 12, ADDRESSES[1])
    line = tmp_path / "line"
    published = evergram.json("vectors", "align", old, new, "--lineage", line, "--held-out", 0.3)
    assert published["alignment"]["pairs"]["common"] == 90
    with_words = evergram("vectors", "finish-migration", texts, new, *NEW, "--kept", kept)
    assert "is there already" in with_words.refusal()
    command = ("vectors", "finish-migration", texts, new, *NEW, "--kept", kept, "--force")
    assert f"90 texts, 12 dims, by {ADDRESSES[1]}: {new}" in evergram(*command).out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--encoder", ADDRESSES[0], "--kept", "kept.parquet"), "has vectors of 12 dims"),
        ((*NEW, "--kept", "nowhere"), "nowhere is not there"),
        ((*NEW, "--kept", "kept.parquet", "--document-prompt", "a "), "its prompts are"),
        ((*NEW,), "--kept"),
        ((*NEW, "--kept", "kept.parquet", "--check", "0"), "--check"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    options: tuple[str, ...],
    words: str,
    texts: Path,
    kept: Path,
    tmp_path: Path,
    evergram: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    ran = evergram("vectors", "finish-migration", texts, "new.parquet", *options)
    assert ran.code == 2
    assert words in ran.err
    assert sorted(tmp_path.iterdir()) == before
