"""A plan counts what a real run writes, fits or maps tables, and refuses what `prepare` refuses."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from tests.support.command import Command
from tests.support.fits import changed

from evergram.data import PrepareSettings, prepare
from evergram.data.prepared.prepare import machine_memory
from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.releasing.publish import publish
from evergram.releasing.upgrade import train
from evergram.training import corpus_plan
from evergram.training.corpus_plan import CorpusPlan, CorpusSize, count_ids, plan_corpus, plan_for
from evergram.training.first_recipe import first_recipe
from evergram.training.resuming import CheckpointSettings

ROOT = Path(__file__).parents[2]
LARGE = CorpusSize(477_000_000, {"query": 69_000_000, "candidate": 59_000_000})


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"SLICE": 1 << 14, "ROWS": 1 << 13, "STEPS": 6, "PROBE": 1 << 20}.items():
        monkeypatch.setattr(corpus_plan, name, size)


def interactions(pairs: int, *, queries: int = 900, candidates: int = 700) -> pa.Table:
    draw = np.random.default_rng(0)
    items = draw.integers(0, candidates, pairs)
    return pa.table(
        {
            "query": draw.integers(0, queries, pairs),
            "candidate": pa.array([f"item-{i:04d}" for i in items]),
            "value": draw.random(pairs),
            "time": np.arange(pairs),
        }
    )


def bytes_in(folder: Path, pattern: str = "*") -> int:
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


def test_the_bytes_are_those_that_a_real_run_writes(tmp_path: Path) -> None:
    table, corpus = interactions(120_000, queries=9000, candidates=4000), tmp_path / "corpus"
    size = count_ids(table, PrepareSettings())
    assert size.pairs == len(table)
    assert size.columns == ("value", "time")
    assert size.id_bytes == {"query": 8, "candidate": 4 + len("item-0000")}
    for side, found in size.entities.items():
        assert found == pytest.approx(len(table[side].unique()), rel=0.1)
    prepare(table, corpus)
    written = bytes_in(corpus)
    size = CorpusSize(**{**vars(size), "entities": {"query": 9000, "candidate": 4000}})
    planned = size.bytes_on_disk(16)
    assert written == pytest.approx(planned["prepared"], rel=0.02)
    recipe = first_recipe(corpus).recipe
    small = ["model.dim=16", "training.epochs=2", "training.optimizer=adaptive"]
    lineage = Lineage.create(tmp_path / "lineage", recipe.name)
    checkpoints = CheckpointSettings(20)
    artefact = train(
        changed(recipe, *small), folder=tmp_path / "work", checkpoints=checkpoints, progress=False
    )
    publish(lineage, artefact)
    splits = bytes_in(corpus) - written
    # A twentieth of the pairs is held out, and their ids are not written if all are trained.
    assert 0.85 * planned["splits"] < splits < 1.01 * planned["splits"]
    newest = max((tmp_path / "work").glob("*.safetensors"))
    assert newest.stat().st_size == pytest.approx(planned["checkpoint"], rel=0.02)
    assert 0.7 * planned["lineage"] < bytes_in(lineage.path) < 1.2 * planned["lineage"]
    export = lineage.view().export(tmp_path / "q.parquet", "query")
    assert export == 9000
    lineage.view().export(tmp_path / "c.parquet", "candidate")
    # Parquet compresses ids, and vectors a little.
    assert 0.75 * planned["export"] < bytes_in(tmp_path, "[qc].parquet") < 1.05 * planned["export"]


def test_memory_per_entity_is_at_least_that_of_the_documents() -> None:
    text = (ROOT / "docs" / "large-data.md").read_text().split("<!-- entities -->")[1]
    for name, value in re.findall(r"\| (prepare|train|export)\b.* \| (\d+) \|", text):
        assert corpus_plan.ENTITY_MEMORY[name] >= int(value)


def test_tables_beyond_memory_are_mapped_and_the_largest_dim_in_memory_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, measured in {
        "_seconds_of_training": lambda dim, size: (dim * 1e-7, 1e-6),
        "_seconds_per_miss": lambda folder: 1e-4,
        "_slice_seconds": lambda size, pairs: np.array([1e-6, 2e-6]) * pairs,
        "_own_memory": lambda: 0,
    }.items():
        monkeypatch.setattr(corpus_plan, name, measured)

    def plan(gibibytes: int, disk: int) -> CorpusPlan:
        memory = "evergram.data.prepared.prepare.machine_memory"
        monkeypatch.setattr(memory, lambda: gibibytes << 30)
        usage = SimpleNamespace(free=disk << 30)
        monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
        return plan_for(LARGE, tmp_path / "corpus", 2 << 30)

    roomy, mapped, narrow, tiny = plan(512, 4096), plan(64, 4096), plan(64, 200), plan(2, 10)
    assert [(p.dim, p.fits) for p in (roomy, mapped, narrow, tiny)] == [
        (128, True),
        (32, True),
        (32, True),
        (32, False),
    ]
    trained = {p: [s for s in plan.steps if s.tables] for p, plan in enumerate([roomy, mapped])}
    assert [s.tables for s in trained[0]] == ["memory"] * 3
    assert [s.tables for s in trained[1]] == ["memory", "mapped", "mapped"]
    assert trained[1][2].memory < trained[0][2].memory
    assert trained[1][2].disk > trained[0][2].disk
    assert trained[0][2].seconds == pytest.approx(477 * 12.8)
    assert [step.seconds for step in roomy.steps[:2]] == pytest.approx([477, 2 * 477])
    # A row of 512 bytes of both sides is read and written, unless memory still has its page.
    left = (64 << 30) - trained[1][2].memory
    missed = 1 - left / (128e6 * 512)
    assert trained[1][2].seconds == pytest.approx(477 * 12.8 + 4 * 477e6 * missed * 1e-4)
    assert "--set model.dim=32 --set training.tables=memory" in narrow.commands[1]
    assert "--set model.dim=32 --set training.tables=mapped" in tiny.commands[1]
    assert "477,000,000 pairs of about 69,000,000 queries" in str(tiny)
    assert "| train one epoch, 64d | 50.9 min |" in str(roomy)


def test_the_command_prints_a_plan_and_writes_nothing(evergram: Command, tmp_path: Path) -> None:
    pairs = interactions(3000)
    pq.write_table(pairs.slice(0, 1000), tmp_path / "a.parquet")
    csv.write_csv(pairs.slice(1000), tmp_path / "b.csv")
    before, out = sorted(tmp_path.iterdir()), tmp_path / "my corpus"
    arguments = [tmp_path / "*.*", out, "--plan"]
    shown = evergram("prepare", *arguments)
    assert shown.code == 0, shown.err
    assert "3,000 pairs of about" in shown.out
    assert f"evergram init '{out}' --out 'my corpus.toml'" in shown.out
    plan = evergram("--json prepare", *arguments).json
    assert plan["size"]["pairs"] == 3000
    assert plan["fits"] is True
    assert {step["dim"] for step in plan["steps"]} == {None, 4, 8, 16}
    assert sorted(tmp_path.iterdir()) == before
    shared = plan_corpus(pairs, out, PrepareSettings(shared_ids=True)).size.entities
    both = sum(plan["size"]["entities"].values())
    assert shared["query"] == shared["candidate"] == pytest.approx(both, rel=0.1)


def test_bad_sources_and_an_occupied_folder_are_refused_in_one_line(
    evergram: Command, tmp_path: Path
) -> None:
    table, out = interactions(300), tmp_path / "out"
    pq.write_table(table, tmp_path / "good.parquet")
    pq.write_table(table.drop(["query"]), tmp_path / "missing.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "rows.parquet")
    csv.write_csv(pa.table({"query": ["", "a"], "candidate": ["b", "c"]}), tmp_path / "bad.csv")
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "folder").mkdir()
    prepare(table, tmp_path / "old")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    cases: list[tuple[str, str, str]] = [
        ("missing.parquet", "out", "has no column 'query'"),
        ("empty.parquet", "out", "is empty"),
        ("rows.parquet", "out", "has no rows"),
        ("folder", "out", "no file in a supported format"),
        ("nothing.parquet", "out", "There is no file"),
        ("bad.csv", "out", "query is empty"),
        ("good.parquet", "old", "--overwrite replaces it"),
        ("good.parquet", "other", "has other files"),
    ]
    for source, target, message in cases:
        told = evergram("prepare", tmp_path / source, tmp_path / target, "--plan")
        assert message in told.refusal()
    assert not out.exists()
    with pytest.raises(DataError, match="is unknown"):
        plan_corpus(table, out, PrepareSettings(columns={"user": "query"}))
    more: dict[str, Any] = {"overwrite": True}
    assert plan_corpus(table, tmp_path / "old", **more).memory == machine_memory()
