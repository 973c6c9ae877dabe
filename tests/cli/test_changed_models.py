"""`evergram vectors plan-migration, encode`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.command import Command
from tests.support.text_encoders import ADDRESSES, sentences
from tests.support.two_models import by_two_models

from evergram.vector_files.open_embeddings import write_vectors


def four_files(folder: Path, noises: tuple[float, float]) -> tuple[list[object], Path]:
    """Write texts and queries by two models, and judgements; return the command's arguments."""
    vectors, judgements = by_two_models(*noises)
    sides = {
        "old": (vectors.texts, vectors.old),
        "new": (vectors.texts, vectors.new),
        "old-queries": (vectors.queries, vectors.old_queries),
        "new-queries": (vectors.queries, vectors.new_queries),
    }
    for name, (ids, rows) in sides.items():
        write_vectors(folder / f"{name}.parquet", [(pa.array(ids), rows)])
    lines = [f"{q}\t{t}\t{g}" for q, grades in judgements.items() for t, g in grades.items()]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    files: list[object] = [folder / "old.parquet", folder / "new.parquet"]
    for name in ("old-queries", "new-queries"):
        files += [f"--{name}", folder / f"{name}.parquet"]
    return files, folder / "qrels.tsv"


def test_plan_migration_prints_each_way_and_a_verdict(tmp_path: Path, evergram: Command) -> None:
    files, qrels = four_files(tmp_path, (3.0, 0.1))
    files += ["--judgements", qrels]
    report = evergram("vectors", "plan-migration", *files, "--json").json
    assert report["verdict"] == "reindex"
    printed = evergram("vectors", "plan-migration", *files)
    assert printed.code == 0
    assert "Verdict: reindex." in printed.out
    assert all(name in printed.out for name in report["ways"])
    assert "…" not in printed.out, "the table is cut off in 80 columns"


def test_costs_are_printed_if_rates_are_given(tmp_path: Path, evergram: Command) -> None:
    files, qrels = four_files(tmp_path, (3.0, 0.1))
    rates = tmp_path / "rates.toml"
    files += ["--judgements", qrels, "--rates", rates]
    rates.write_text(
        "texts = 12_000_000\nqueries = 50_000\ntokens_per_text = 180\ntexts_per_second = 900\n"
        "price_per_million_tokens = 0.02\nprice_per_hour = 1.2\n"
    )
    cost = evergram("vectors", "plan-migration", *files, "--json").json["ways"]["reindex"]["cost"]
    hours = 12_000_000 / 900 / 3600
    assert cost == pytest.approx(
        {"texts": 12e6, "tokens": 2.16e9, "hours": hours, "money": 43.2 + 1.2 * hours}
    )
    printed = evergram("vectors", "plan-migration", *files).out
    assert "2,160,000,000" in printed
    assert "47.64" in printed
    assert "…" not in printed, "the table is cut off in 80 columns"
    (tmp_path / "some.csv").write_text("id,text\n1,four\n2,letters\n")
    rates.write_text('sample = "some.csv"\n')
    assert (
        "tokens per text: 1.4, estimated, 4 bytes"
        in evergram("vectors", "plan-migration", *files).out
    )
    rates.write_text("price_per_hour = nan\n")
    assert "finite" in evergram.refused("vectors", "plan-migration", *files)
    rates.unlink()
    assert "rates.toml" in evergram.refused("vectors", "plan-migration", *files)


def test_files_that_cannot_be_judged_get_no_verdict_in_json_and_in_words(
    tmp_path: Path, evergram: Command
) -> None:
    files, qrels = four_files(tmp_path, (3.0, 0.1))
    files += ["--judgements", qrels]
    vectors, _ = by_two_models(3.0, 0.1)
    order = torch.randperm(len(vectors.texts), generator=torch.Generator().manual_seed(0))
    zeros, mixed = vectors.new.clone(), vectors.new[order]
    zeros[: len(zeros) // 10] = 0
    for rows, named in ((zeros, "zeros"), (mixed, "mixed up")):
        path = tmp_path / "new.parquet"
        write_vectors(path, [(pa.array(vectors.texts), rows)], overwrite=True)
        ran = evergram("vectors", "plan-migration", *files, "--json")
        report = json.loads(ran.out)
        assert (ran.code, report["verdict"]) == (1, None)
        assert any(named in reason for reason in report["unjudged"])
        assert named in " ".join(evergram("vectors", "plan-migration", *files).out.split())


def test_pairs_that_pass_a_threshold_are_counted(tmp_path: Path, evergram: Command) -> None:
    files, qrels = four_files(tmp_path, (3.0, 0.1))
    files += ["--judgements", qrels, "--threshold", 0.7]
    pinned = evergram("vectors", "plan-migration", *files, "--json").json["ways"]["pinned"]
    vectors, _ = by_two_models(3.0, 0.1)
    assert pinned["pairs_then"] == int((vectors.old_queries @ vectors.old.T >= 0.7).sum())
    back = torch.linalg.lstsq(vectors.new.double(), vectors.old.double()).solution
    rows = (vectors.new_queries.double() @ back, vectors.new.double() @ back)
    queries, texts = (part / part.norm(dim=1, keepdim=True) for part in rows)
    # The aligner holds a tenth of the texts out.
    assert pinned["pairs_now"] == pytest.approx(int((queries @ texts.T >= 0.7).sum()), rel=0.15)
    assert pinned["pairs_now"] > 1.5 * pinned["pairs_then"]


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


def test_few_texts_show_progress_by_batch(
    texts: Path, tmp_path: Path, evergram: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.training.progress.EVERY", 0.0)
    monkeypatch.setattr("evergram.texts.addresses.BATCH", 40)
    encode = ("vectors", "encode", texts, tmp_path / "all.parquet", *NEW)
    ran = evergram("--log-format", "json", *encode)
    lines = map(json.loads, ran.err.splitlines())
    done = [line["done"] for line in lines if line["event"] == "progress"]
    # One of each batch is a canary.
    assert list(dict.fromkeys(done)) == [39, 78, 90]


def test_a_dry_run_counts_and_writes_nothing(
    texts: Path, kept: Path, tmp_path: Path, evergram: Command
) -> None:
    before = sorted(tmp_path.iterdir())
    out = tmp_path / "new.parquet"
    command = ("vectors", "encode", texts, out, *NEW, "--kept", kept, "--dry-run")
    plan = evergram(*command, "--json").json
    assert (plan["texts"], plan["kept"], plan["to_encode"]) == (90, 30, 60)
    assert "to encode: 60\n" in evergram(*command).out
    assert sorted(tmp_path.iterdir()) == before
