"""`evergram prepare`: files in, a prepared folder out."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import Command
from tests.support.prepared_folders import assert_is_corpus, column

from evergram.data.tables import load_table

TEXT = "user,item,stars,when\n7,a,5,3\n9,b,1,1\n7,b,4,2\n7,a,3,4\n"
COLUMNS = ("--column", "query=user", "--column", "candidate=item", "--column", "time=when")


def test_files_become_a_folder(tmp_path: Path, evergram: Command) -> None:
    (tmp_path / "events.csv").write_text(TEXT)
    result = evergram("prepare", tmp_path / "events.csv", tmp_path / "out", *COLUMNS)
    assert result.code == 0
    assert "4 interactions of 2 queries with 2 candidates." in result.out
    assert "reading 1 source\n" in result.err
    names = {"query": "user", "candidate": "item", "time": "when"}
    assert_is_corpus(tmp_path / "out", load_table(tmp_path / "events.csv", columns=names))


def test_options_and_json(tmp_path: Path, evergram: Command) -> None:
    (tmp_path / "f.csv").write_text("id,kind\na,x\nb,y\n")
    for name in ("1.csv", "2.csv"):
        (tmp_path / name).write_text(TEXT)
    arguments = [tmp_path / "1.csv", tmp_path / "2.csv", tmp_path / "out", *COLUMNS]
    arguments += ["--column", "value=stars", "--unique", "--minimum-value", "2", "--k-core", "1"]
    arguments += ["--candidate-features", tmp_path / "f.csv", "--memory", "256MiB"]
    facts = evergram.json("prepare", *arguments, "--threads", "1", "--name", "films")
    assert (facts["rows_read"], facts["below_minimum"], facts["repeats_dropped"]) == (8, 2, 4)
    assert facts["columns"]["value"] == "float32"
    assert facts["seconds"] > 0
    assert facts["peak_memory"] > 1 << 20
    assert "already; --append adds" in evergram.refused("prepare", *arguments)
    assert evergram.json("prepare", *arguments, "--overwrite")["added"] == 2
    (tmp_path / "later.csv").write_text("user,item,stars,when\n8,a,5,9\n")
    append = ("prepare", tmp_path / "later.csv", tmp_path / "out", "--append")
    assert "has the name 'out'" in evergram.refused(*append, "--name", "zz")
    later = evergram.json("prepare", tmp_path / "later.csv", tmp_path / "out", "--append")
    assert (later["parts"], later["interactions"]) == (2, 3)
    assert column(tmp_path / "out", "time").tolist() == [2, 3, 9]


def test_wrong_options_are_one_sentence(tmp_path: Path, evergram: Command) -> None:
    (tmp_path / "events.csv").write_text(TEXT)
    start = ("prepare", tmp_path / "events.csv", tmp_path / "out")
    assert "--column query=user" in evergram.refused(*start)
    assert "it is ROLE=NAME" in evergram.refused(*start, "--column", "user")
    twice = ("--column", "query=a", "--column", "query=b")
    assert "names query twice" in evergram.refused(*start, *twice)
    assert "no size of memory" in evergram.refused(*start, "--memory", "lots")
    assert "There is no file" in evergram.refused("prepare", tmp_path / "x.csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()
