"""No input ends in a traceback, and a wrong one is refused in our words: promise 9."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.click_shop import RECIPE
from tests.support.command import PROGRAM, Command
from tests.support.golden import TRAINED

from evergram.errors import ShapeError
from evergram.lineage.lineage import Lineage


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


def test_9_a_view_transforms_arrays(evergram: Command) -> None:
    """What Python's users meet; the command gives no vectors to a view."""
    view = Lineage.open(TRAINED).view(0)
    rows = np.random.default_rng(0).normal(size=(5, 3))
    expected = view.transform(torch.from_numpy(rows).float())
    transformed = view.transform(rows.astype(np.float32))
    assert isinstance(transformed, np.ndarray)
    np.testing.assert_allclose(transformed, expected.numpy(), rtol=1e-6)
    for odd in (rows, rows.astype(">f4"), rows[::-1][::-1], np.asfortranarray(rows)):
        np.testing.assert_allclose(view.transform(odd), expected.numpy(), rtol=1e-3, atol=1e-6)
    for wrong, kind in (
        (rows.astype(int), "an array of int64"),
        (rows.tolist(), "a list"),
        (torch.ones(2, 3, dtype=torch.int64), "a tensor of torch.int64"),
        (torch.tensor(1.0), "a single number"),
    ):
        with pytest.raises(ShapeError, match=f"{kind} was given"):
            view.transform(wrong)
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
