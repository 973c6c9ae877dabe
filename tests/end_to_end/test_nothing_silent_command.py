"""Nothing silent, nothing fatal: the command's options, its recipes, its readers, its errors.

Each test's name begins with the line of the issue that it is of.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.command import PROGRAM, Command

from evergram.cli import app
from evergram.errors import ShapeError
from evergram.lineage.lineage import Lineage

GOLDEN = Path(__file__).parents[1] / "golden"
RECIPE = """
name = "shop"
[data]
kind = "table"
path = "clicks.parquet"
[model]
dim = 4
[training]
epochs = 1
batch_size = 64
"""


def pairs(rows: int = 600) -> list[tuple[int, int]]:
    draw = random.Random(0)
    return [(draw.randrange(40), draw.randrange(30)) for _ in range(rows)]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe and a table of 600 clicks, which is where the command runs."""
    columns = {"query": [q for q, _ in pairs()], "candidate": [f"item{c}" for _, c in pairs()]}
    pq.write_table(pa.table(columns), tmp_path / "clicks.parquet")
    (tmp_path / "shop.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of vectors of the same objects, the second a turn of the first."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    old = draw.normal(size=(300, 4)).astype(np.float32)
    new = old @ np.linalg.qr(draw.normal(size=(4, 4)))[0].astype(np.float32)
    for name, vectors in (("old", old), ("new", new)):
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4)
        table = pa.table({"id": [f"id{i}" for i in range(300)], "vector": column})
        pq.write_table(table, f"{name}.parquet")
    return tmp_path


# 8. No accepted option or key is ignored.

WITHOUT_A_RECIPE = {
    "versions": ("l",),
    "check": ("l",),
    "export": ("l", "o.parquet", "--side", "query"),
    "import": ("old.parquet", "--lineage", "l"),
    "transform": ("old.parquet", "--lineage", "l", "--as", "0", "--out", "o.parquet"),
    "label": ("l", "x", "0"),
    "promote": ("l",),
    "withdraw": ("l", "--reason", "x"),
    "retire": ("l", "0"),
    "consumers": ("l",),
    "consumer-add": ("l", "x", "--pin", "v0"),
    "consumer-pin": ("l", "x", "v0"),
    "consumer-token": ("l", "x"),
    "consumer-remove": ("l", "x"),
    "probe": ("l",),
    "fill": ("l", "--store", "query=s"),
    "serve": ("l",),
    "backfill plan": ("l", "--store", "query=s"),
    "backfill apply": ("l", "--store", "query=s"),
    "backfill status": ("l", "--store", "query=s"),
    "backfill rollback": ("l", "--store", "query=s"),
}


@pytest.mark.parametrize("option", [("--seed", "3"), ("--device", "cpu"), ("--set", "seed=3")])
@pytest.mark.parametrize("command", WITHOUT_A_RECIPE)
def test_8_options_that_would_do_nothing_are_not_there(
    evergram: Command, command: str, option: tuple[str, str]
) -> None:
    sentence = evergram.refused(*command.split(), *WITHOUT_A_RECIPE[command], *option)
    assert f"No such option: {option[0]}" in sentence
    assert f"evergram {command} --help" in sentence


def test_8_every_other_command_says_what_its_options_do(evergram: Command) -> None:
    names = {c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands}
    rest = names - set(WITHOUT_A_RECIPE)
    assert rest == {"train", "upgrade", "evaluate", "diagnose", "compare", "demo", "align"}
    for name in sorted(names):
        said = evergram(name, "--help").out
        assert "change nothing" not in " ".join(said.split())
        assert all((o in said) == (name in rest - {"align"}) for o in ("--device", "--set"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("old.parquet", "new.parquet", "--rank", "2"), "rank is of the transform low_rank, not"),
        (
            ("old.parquet", "new.parquet", "--transform", "affine", "--scaled"),
            "scaled is of the transform orthogonal, not of affine",
        ),
        (("old.parquet", "new.parquet", "--device", "cpu"), "No such option: --device"),
        (("old.parquet", "new.parquet", "--set", "seed=3"), "No such option: --set"),
        (("old.npy", "new.npy", "--id-column", "key"), "--id-column was given, and a .npy file"),
        (("0", "new.parquet", "--old-ids", "x.txt"), "--old-ids names the ids of a file, and OLD"),
    ],
)
def test_8_an_option_of_align_that_would_do_nothing_is_refused(
    evergram: Command, files: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in evergram.refused("align", *arguments, "--lineage", "l")
    assert not (files / "l").exists()


def test_8_the_options_of_align_still_do_what_they_say(evergram: Command, files: Path) -> None:
    low = ("--transform", "low_rank", "--rank", "3", "--json")
    ran = evergram("align", "old.parquet", "new.parquet", "--lineage", "l", "--name", "texts", *low)
    assert ran.code == 0, ran.err
    assert ran.json["alignment"]["transform"]["rank"] == 3
    named = evergram("align", "1", "old.parquet", "--lineage", "l", "--name", "other")
    assert "--name is of a new lineage, and l is one already" in named.err
    scaled = ("--transform", "orthogonal", "--scaled")
    assert evergram("align", "old.parquet", "new.parquet", "--lineage", "k", *scaled).code == 0


def test_8_the_options_of_a_probe_are_of_a_probe(evergram: Command, files: Path) -> None:
    assert evergram("import", "old.parquet", "--lineage", "l").code == 0
    sentence = evergram.refused("consumer-add", "l", "ads", "--pin", "v0", "--metric", "rmse")
    assert "--metric was given without a probe; give --probe and --data" in sentence
    assert evergram("consumer-add", "l", "ads", "--pin", "v0").code == 0
    both = ("--drop-probe", "--probe", "m.onnx", "--data", "d.parquet")
    assert "--drop-probe leaves it without" in evergram.refused(
        "consumer-pin", "l", "ads", "v0", *both
    )


KEYS = [
    ("[gramian]\nbeta = '1'", "gramian.beta", "gramian.kind = 'sagram'", "'sogram'"),
    ("[prior]\nkind = 'constant'\nrank = 4", "prior.rank", "prior.kind = 'svd'", "'constant'"),
    ("[task]\ntemperature = 0.5", "task.temperature", "task.kind = 'softmax'", "'pointwise'"),
    ("[split]\nversions = [0.5]", "split.versions", "split.kind = 'time'", "'random'"),
    ("[upgrade]\nrank = 4", "upgrade.rank", "upgrade.transform = 'low_rank'", "'linear'"),
    ("[upgrade]\nmethod = 'non-bc'\nweight = 4", "upgrade.weight", "upgrade.fit = 'joint'", "none"),
]


@pytest.mark.parametrize(("text", "key", "kinds", "kind"), KEYS, ids=lambda v: str(v)[-14:])
def test_8_a_recipes_key_that_its_kinds_do_not_use_is_an_error_that_names_the_kind(
    evergram: Command, shop: Path, text: str, key: str, kinds: str, kind: str
) -> None:
    (shop / "shop.toml").write_text(RECIPE + text)
    sentence = evergram.refused("train", "shop.toml", "--lineage", "l")
    assert f"shop.toml: {key} is used with {kinds}" in sentence
    assert kind in sentence
    assert f"leave {key} out" in sentence


def test_8_so_is_one_on_the_command_line(evergram: Command, shop: Path) -> None:
    sentence = evergram.refused("train", "shop.toml", "--lineage", "l", "--set", "model.hidden=[8]")
    assert "model.hidden is used with model.kind = 'two_tower' only" in sentence
    for command, override in (
        (("train", "shop.toml", "--lineage", "l"), "upgrade.method=non-bc"),
        (("upgrade", "shop.toml", "--lineage", "l"), "compare.seeds=3"),
        (("compare", "shop.toml", "--out", "o"), "upgrade.method=non-bc"),
        (("evaluate", GOLDEN / "format-3" / "trained"), "model.dim=3"),
        (("diagnose", GOLDEN / "format-3" / "trained"), "upgrade.rank=3"),
    ):
        sentence = evergram.refused(*command, "--set", override)
        assert f"--set {override} changes nothing here" in sentence


def test_8_an_override_of_a_kind_leaves_out_the_keys_of_the_other_and_says_so(
    evergram: Command, shop: Path
) -> None:
    text = RECIPE.replace("dim = 4", "dim = 4\nkind = 'two_tower'\nhidden = [4]")
    (shop / "shop.toml").write_text(text)
    ran = evergram("train", "shop.toml", "--lineage", "l", "--set", "model.kind=factorization")
    assert ran.code == 0, ran.err
    assert "shop.toml: left out, as what was set in its place does not use it: model.hid" in ran.err
    assert Lineage.open("l").manifest(0).recipe["model"]["hidden"] == [64]


@pytest.mark.parametrize("name", ["format-1", "format-2", "format-3"])
def test_8_recipes_that_old_lineages_keep_still_load(
    evergram: Command, tmp_path: Path, name: str
) -> None:
    shutil.copytree(GOLDEN / name / "trained", tmp_path / "l")
    ran = evergram("diagnose", tmp_path / "l", "--steps", "2", "--every", "1", "--json")
    assert ran.code == 0, ran.err
    override = ("--set", "gramian.form=pairs")
    refusal = evergram("diagnose", tmp_path / "l", "--steps", "2", "--every", "1", *override)
    assert "gramian.form is used with gramian.kind = 'sampled' only" in refusal.err
    recipe = json.loads((tmp_path / "l/versions/2/manifest.json").read_text())["recipe"]
    assert "hidden" in recipe["model"]  # a whole dump, with what a factorization does not use


# 9. Tracebacks.


def test_9_a_test_file_without_its_columns(evergram: Command, shop: Path) -> None:
    (shop / "test.csv").write_text("user,item\n1,item2\n")
    text = RECIPE.replace("[model]", 'test = "test.csv"\n[split]\nkind = "given"\n[model]')
    (shop / "shop.toml").write_text(text)
    sentence = evergram.refused("train", "shop.toml", "--lineage", "l")
    assert f"{shop}/test.csv has no column 'query'; its columns are: user, item." in sentence
    assert not (shop / "l").exists()


@pytest.mark.long
def test_9_a_full_disk_in_train_is_one_sentence_and_leaves_nothing(shop: Path) -> None:
    """A limit of what a file may hold stands for the disk: the write fails in the same place."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); "
    arguments = ["train", "shop.toml", "--lineage", "new/l", "--set", "model.dim=64"]
    ran = subprocess.run(
        [sys.executable, "-c", limit + PROGRAM, *arguments], capture_output=True, text=True
    )
    assert ran.returncode == 2, ran.stderr
    lines = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert re.search(r"The state of the training, [\d,]+ bytes, cannot be kept in", lines[0])
    assert "Traceback" not in ran.stderr
    assert not (shop / "new/l").exists()


def test_9_a_full_disk_under_a_mapped_cache_is_one_sentence_too(shop: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); "
    cache = ("gramian.kind=sagram", "gramian.memory=0.0", "model.dim=64")
    arguments = ["train", "shop.toml", "--lineage", "l", *(p for c in cache for p in ("--set", c))]
    ran = subprocess.run(
        [sys.executable, "-c", limit + PROGRAM, *arguments], capture_output=True, text=True
    )
    assert ran.returncode == 2, ran.stderr
    assert re.search(r"error: The cache of SAGram, [\d,]+ bytes, cannot be written", ran.stderr)
    assert not (shop / "l").exists()


def test_9_sizes_that_no_memory_holds_say_how_many_bytes(evergram: Command, shop: Path) -> None:
    sentence = evergram.refused(
        "train", "shop.toml", "--lineage", "l", "--set", "model.dim=10_000_000"
    )
    assert re.search(r"model.dim = 10000000 needs at least 1,600,\d+,\d+,\d+,\d+ bytes", sentence)
    assert "this machine has" in sentence
    layers = "[100_000_000, 100_000_000]"
    tower = ("--set", "model.kind=two_tower", "--set", f"model.hidden={layers}")
    assert "bytes of memory" in evergram.refused("train", "shop.toml", "--lineage", "l", *tower)
    # Where nobody has counted beforehand, the allocation that fails is told.
    drawn = (
        "--set",
        "gramian.batch=independent",
        "--set",
        "gramian.batch_size=100_000_000_000_000",
    )
    sentence = evergram.refused("train", "shop.toml", "--lineage", "l", *drawn)
    assert re.search(r"This needs [\d,]{15,} bytes of memory at once", sentence)
    assert not (shop / "l").exists()


def test_9_no_metrics_at_all_are_refused_before_training(evergram: Command, shop: Path) -> None:
    sentence = evergram.refused("train", "shop.toml", "--lineage", "l", "--set", "metrics=[]")
    assert "metrics is []; it must be a list of at least 1" in sentence


def test_9_a_view_transforms_arrays(evergram: Command) -> None:
    """What Python's users meet; the command gives no vectors to a view."""
    view = Lineage.open(GOLDEN / "format-3" / "trained").view(0)
    rows = np.random.default_rng(0).normal(size=(5, 3))
    expected = view.transform(torch.from_numpy(rows).float())
    found = view.transform(rows.astype(np.float32))
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)
    for odd in (rows, rows.astype(">f4"), rows[::-1][::-1], np.asfortranarray(rows)):
        np.testing.assert_allclose(view.transform(odd), expected.numpy(), rtol=1e-3, atol=1e-6)
    for given, said in (
        (rows.astype(int), "an array of int64"),
        (rows.tolist(), "a list"),
        (torch.ones(2, 3, dtype=torch.int64), "a tensor of torch.int64"),
        (torch.tensor(1.0), "a single number"),
    ):
        with pytest.raises(ShapeError, match=f"{said} was given"):
            view.transform(given)
    with pytest.raises(ShapeError, match="have dim 2; version 2 has 3"):
        view.transform(np.zeros((4, 2)))


def test_9_what_slips_through_is_one_sentence_a_log_file_and_exit_code_70(
    evergram: Command, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(shop / "logs"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (shop / "logs").mkdir()

    def broken(*_: object, **__: object) -> None:
        raise KeyError("postgresql://me:secret@host/db\nand more")

    monkeypatch.setattr(import_module("evergram.releasing.upgrade"), "split_for", broken)
    ran = evergram("train", "shop.toml", "--lineage", "l")
    assert ran.code == 70
    assert ran.err.count("\n") == 1
    assert ran.err.startswith(
        "error: Something went wrong that Evergram did not foresee (KeyError:"
    )
    (log,) = (shop / "logs").glob("evergram-*.log")
    assert str(log) in ran.err
    details = log.read_text()
    assert "Traceback" in details
    assert "train shop.toml --lineage l" in details
    assert "secret" not in ran.err + details
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert not (shop / "l").exists()


def test_9_no_empty_folder_of_a_run_stays(evergram: Command, shop: Path) -> None:
    cache = ("--set", "gramian.kind=sagram", "--set", "gramian.memory=0.0")
    lost = ("--set", "training.table_rate=1e30", "--set", "training.epochs=3")
    ran = evergram("train", "shop.toml", "--lineage", "deep/l", *cache, *lost)
    assert ran.code == 2
    assert "The loss is" in ran.err
    assert not (shop / "deep/l").exists()
    assert evergram("train", "shop.toml", "--lineage", "deep/l").code == 0
    ran = evergram("upgrade", "shop.toml", "--lineage", "deep/l", *cache, *lost)
    assert ran.code == 2
    assert not (shop / "deep/l/.work").exists()


# 10. A column that is not there.


def csv(shop: Path, text: str, name: str = "clicks.csv") -> tuple[object, ...]:
    """`train` on a file of this text."""
    (shop / name).write_text(text)
    return ("train", "shop.toml", "--lineage", "l", "--set", f"data.path={name}")


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("user,item,rating,timestamp", "user, item, rating, timestamp"),
        ("userId;movieId;rating;timestamp", "userId, movieId, rating, timestamp"),
        ("User ID\tProduct\tScore\tDate", "User ID, Product, Score, Date"),
    ],
)
def test_10_the_files_real_columns_are_listed_and_the_line_to_write(
    evergram: Command, shop: Path, header: str, columns: str
) -> None:
    sign = next(s for s in ",;\t" if s in header)
    rows = [sign.join((f"u{q}", f"i{c}", "3", "7")) + "\n" for q, c in pairs()]
    arguments = csv(shop, header + "\n" + "".join(rows))
    sentence = evergram.refused(*arguments)
    assert f"clicks.csv has no column 'query'; its columns are: {columns}." in sentence
    assert "under [data]" in sentence
    line = re.search(r"columns = \{.*\}", sentence)
    assert line is not None
    # And what it says is right.
    (shop / "shop.toml").write_text(RECIPE.replace('kind = "table"', f'kind = "table"\n{line[0]}'))
    assert evergram(*arguments).code == 0
    recipe = Lineage.open("l").manifest(0).recipe["data"]["columns"]
    assert list(recipe) == ["query", "candidate", "value", "time"]
    assert list(recipe.values()) == columns.split(", ")


def test_10_a_file_without_a_header_is_told_so(evergram: Command, shop: Path) -> None:
    sentence = evergram.refused(*csv(shop, "1,31,2.5,1260759144\n1,32,3.0,1260759179\n"))
    assert "its first line (1, 31, 2.5, 1260759144) seems to be a row" in sentence
    assert "write a line above it that names its columns, such as query,candidate,value" in sentence
    same = evergram.refused(*csv(shop, "1,1,2.5\n1,32,3.0\n"))  # two columns of one name
    assert "its first line (1, 1, 2.5) seems to be a row" in same


def test_10_names_that_nobody_knows_are_asked_for(evergram: Command, shop: Path) -> None:
    sentence = evergram.refused(*csv(shop, "a,b\nx,y\n"))
    assert 'in place of …: columns = {query = "…", candidate = "…"}' in sentence


def test_10_a_rating_that_is_not_read_is_told(evergram: Command, shop: Path) -> None:
    rows = "".join(f"u{q},i{c},4\n" for q, c in pairs())
    ran = evergram(*csv(shop, "query,candidate,stars\n" + rows))
    assert ran.code == 0, ran.err
    assert 'its column stars is not read; if it is the value, add value = "stars"' in ran.err


# Also: ids stay what they are.


def test_also_ids_of_a_csv_stay_what_they_are(evergram: Command, shop: Path) -> None:
    rows = "".join(f"{q:05d},{c}\n" for q, c in pairs())
    (shop / "f.csv").write_text("id,zip\n00001,00017\n00002,17\n")
    arguments = csv(shop, "query,candidate\n" + rows)
    features = ("--set", "data.query_features=f.csv", "--set", "model.kind=two_tower")
    ran = evergram(*arguments, *features)
    assert ran.code == 0, ran.err
    ids, _ = Lineage.open("l").embeddings("query")
    assert "00017" in ids.to_pylist()
    assert "17" not in ids.to_pylist()
    assert Lineage.open("l").embeddings("candidate")[0].type == pa.int64()
    vocabularies = Lineage.open("l").encoder_parts(0)[2]
    assert vocabularies["feature.zip"].keys.to_pylist() == ["17", "00017"]


@pytest.mark.parametrize("word", ["NaN", "NULL", "null", "None", r"\N"])
def test_also_words_for_nothing_are_no_users(evergram: Command, shop: Path, word: str) -> None:
    sentence = evergram.refused(*csv(shop, f"query,candidate\nu1,i1\n{word},i2\n"))
    assert (
        f"clicks.csv row 2: query is {word!r}, which in a file of text stands for noth" in sentence
    )
    empty = evergram.refused(*csv(shop, "query,candidate\nu1,i1\nu2,\n"))
    assert "clicks.csv row 2: candidate is empty" in empty
    floats = evergram.refused(*csv(shop, "query,candidate\n17.0,i1\n18.0,i2\n"))
    (shop / "clicks.csv").write_bytes("query,candidate\né1,i1\n".encode("latin-1"))
    assert "it is not in UTF-8; save the file as UTF-8" in evergram.refused(
        "train", "shop.toml", "--lineage", "l", "--set", "data.path=clicks.csv"
    )
    assert "column 'query' is double (the first is 17.0); ids must be integers" in floats


def test_also_a_text_null_in_parquet_is_a_text_and_a_null_is_not(
    evergram: Command, shop: Path
) -> None:
    queries: list[str | None] = ["NULL" if q == 3 else f"u{q}" for q, _ in pairs()]
    candidates = [c for _, c in pairs()]
    pq.write_table(pa.table({"query": queries, "candidate": candidates}), "clicks.parquet")
    assert evergram("train", "shop.toml", "--lineage", "l").code == 0
    assert "NULL" in Lineage.open("l").embeddings("query")[0].to_pylist()
    for nothing in ("", None):
        queries[4] = nothing
        pq.write_table(pa.table({"query": queries, "candidate": candidates}), "clicks.parquet")
        sentence = evergram.refused("train", "shop.toml", "--lineage", "k")
        assert "clicks.parquet row 5: query is empty" in sentence


def test_also_the_other_files_of_ids_are_read_likewise(evergram: Command, shop: Path) -> None:
    base = ("train", "shop.toml", "--lineage", "l", "--set")
    (shop / "w.csv").write_text("id,weight\n1,2.0\nNaN,1.0\n")
    assert "w.csv row 2: id is 'NaN'" in evergram.refused(*base, "task.query_measure=w.csv")
    (shop / "w.csv").write_text("id,weight\n1,2.0\n1,1.0\n")
    assert "w.csv names the id 1 twice" in evergram.refused(*base, "task.query_measure=w.csv")
    (shop / "f.csv").write_text("id,tag\nitem1,a\nNULL,b\n")
    features = ("data.candidate_features=f.csv", "--set", "model.kind=two_tower")
    assert "f.csv row 2: id is 'NULL'" in evergram.refused(*base, *features)
    (shop / "f.csv").write_text("id,tag\nx1,a\nx2,b\n")
    assert "have none of the ids of the interactions" in evergram.refused(*base, *features)


def test_also_ids_beside_vectors_are_read_likewise(evergram: Command, files: Path) -> None:
    np.save("v.npy", np.ones((3, 2), np.float32))
    (files / "v.ids.txt").write_text("a\nNULL\nc\n")
    sentence = evergram.refused("import", "v.npy", "--lineage", "l")
    assert "v.ids.txt line 2: the id is 'NULL'" in sentence
    table = pq.read_table("old.parquet").to_pylist()
    table[6]["id"] = ""
    pq.write_table(pa.Table.from_pylist(table, pq.read_schema("old.parquet")), "bad.parquet")
    assert "bad.parquet row 7 has no id" in evergram.refused(
        "import", "bad.parquet", "--lineage", "l"
    )


def test_also_a_negative_weight_is_refused(evergram: Command, shop: Path) -> None:
    text = "query,candidate,weight\n1,2,0.5\n1,3,-0.5\n"
    sentence = evergram.refused(*csv(shop, text), "--set", "task.sparse=weight")
    assert "row 2: weight is -0.5; it must be a finite number of at least 0" in sentence


# Also: pydantic's grammar, --no-promote, versions, check.


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model.dim=none", "model.dim is 'none'; it must be a whole number."),
        ("model.dim=0", "model.dim is 0; it must be greater than 0."),
        ("model.dmi=3", "did you mean model.dim?"),
        ("gramian.rate=fast", "gramian.rate is 'fast'; it must be a number, or 'auto'."),
        ("task.penalty={}", "task.penalty is {}; it must be a list of which each is a number"),
        ("training.metric=hits", "training.metric is 'hits'; it must be recall@K, ndcg@K or map@K"),
        ("data.shared_ids=1", "data.shared_ids is 1; it must be true or false."),
        ("split=random", "split is 'random'; it must be a table of names and values."),
        ("upgrade.method=[1]", "upgrade.method is [1]; it must be text."),
    ],
)
def test_also_a_wrong_value_is_said_in_our_words(
    evergram: Command, shop: Path, override: str, sentence: str
) -> None:
    said = evergram.refused("upgrade", "shop.toml", "--lineage", "l", "--set", override)
    assert sentence in said


def test_also_a_probe_and_an_option_are_said_in_our_words(evergram: Command, files: Path) -> None:
    assert evergram("import", "old.parquet", "--lineage", "l").code == 0
    probe = ("--probe", "m.onnx", "--data", "d.parquet")
    sentence = evergram.refused("consumer-add", "l", "ads", "--pin", "v0", *probe, "--metric", "f1")
    assert "metric is 'f1'; it must be one of 'auc', 'accuracy' or 'rmse'" in sentence
    sentence = evergram.refused("consumer-add", "l", "ads", "--pin", "v0", *probe, "--min", "7")
    assert "auc is between 0 and 1" in sentence
    assert "--port is 'x'; it must be a whole number" in evergram.refused(
        "serve", "l", "--port", "x"
    )


def test_also_no_promote_reads_as_it_does(evergram: Command, files: Path) -> None:
    for command in ("upgrade", "align"):
        said = evergram(command, "--help").out
        start = said.index("--no-promote")
        part = " ".join(re.sub(r"[│╭╰─╮╯]", " ", said[start:]).split())
        assert "and leave production where it is." in part[:200]
        assert "default: True" not in part[:200]
    evergram("align", "old.parquet", "new.parquet", "--lineage", "l")
    ran = evergram("align", "1", "old.parquet", "--lineage", "l", "--no-promote")
    assert ran.code == 0, ran.err
    assert Lineage.open("l").production == 1


def test_also_versions_fit_80_columns_and_say_what_one_came_for(evergram: Command) -> None:
    path = GOLDEN / "format-3" / "operated"
    ran = evergram("versions", path)
    assert max(map(len, ran.out.splitlines()[1:])) <= 80
    words = [re.sub(r"[│┃ ]+", " ", line).split() for line in ran.out.splitlines()]
    assert ["version", "dim", "created", "recall@20", "fingerprint", "labels"] in words
    rows = {w[0]: w[1:] for w in words if w and w[0] in {"0", "1", "3"}}
    found = {str(m.version): m for m in Lineage.open(path).versions}
    for number, row in rows.items():
        assert row[:2] == [str(found[number].dim), found[number].created[:10]]
    assert rows["0"][4:] == ["retired"]
    assert rows["1"][4:] == ["stable,", "production"]
    assert "Compared with their hashes: lineage.json, and manifest.json and metrics.json" in ran.out
    listed = evergram("versions", path, "--json").json
    assert [v["production"] for v in listed["versions"]] == [False, True, False]
    assert "versions/3/metrics.json" in listed["checked"]
    assert "versions/3/encoder.safetensors" not in listed["checked"]


def test_also_check_says_which_files_it_has_compared(evergram: Command, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "format-3" / "trained", tmp_path / "l")
    ran = evergram("check", tmp_path / "l", "--json")
    everything = {
        p.relative_to(tmp_path / "l").as_posix()
        for p in (tmp_path / "l").rglob("*")
        if p.is_file() and not p.name.startswith(".")
    }
    assert set(ran.json["checked"]) == everything
    said = " ".join(evergram("check", tmp_path / "l").out.split())
    assert f"{len(everything)} files were compared with their hashes" in said
    # It is true: any of them that is changed is refused.
    victim = tmp_path / "l" / random.Random(0).choice(sorted(everything))
    victim.write_bytes(victim.read_bytes()[:-1] + b"#")
    assert evergram("check", tmp_path / "l").code == 2


@pytest.mark.long
def test_also_exit_codes_are_what_the_documents_say(evergram: Command, shop: Path) -> None:
    assert evergram("train", "shop.toml", "--lineage", "l").code == 0
    trained = GOLDEN / "format-3" / "trained"
    assert evergram("check", trained, "--max-error", "0").code == 1
    assert evergram("versions", "none").code == 2
    assert evergram("versions", "l", "--nonsense").code == 2
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "train", "shop.toml", "--lineage", "k",
         "--set", "training.epochs=100000"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    process.stderr.readline()  # of the first epoch: it is at work
    process.send_signal(2)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert said.endswith("interrupted; the lineage is as it was\n")
    assert "Traceback" not in said
