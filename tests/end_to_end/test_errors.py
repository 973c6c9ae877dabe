"""No input ends in a traceback: each is refused in a sentence, with an exit code of the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.command import PROGRAM, Command, run_process
from tests.support.golden import TRAINED
from tests.support.lineages import lineage_of

from evergram.errors import ShapeError
from evergram.lineage.lineage import Lineage

ROOT = Path(__file__).parents[2]
TRAIN = "train shop.toml --lineage l"
FAIL = "import evergram.cli as cli\ndef fail(): raise {}\ncli.parser = fail\n"
# By code: a command line that ends with it, and Python that its process runs before.
ENDINGS = {
    0: ("lineage list l", ""),
    1: ("lineage check l --max-error 0", ""),
    2: ("lineage list none", ""),
    70: ("lineage list l", FAIL.format("ZeroDivisionError")),
    130: ("lineage list l", FAIL.format("KeyboardInterrupt")),
}


def test_commands_end_with_the_documented_codes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    table = page.split("| exit code | meaning |")[1].split("\n\n")[0]
    assert {int(c) for c in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == ENDINGS.keys()
    lineage_of(tmp_path / "l")
    for code, (words, before) in ENDINGS.items():
        ran = run_process(*words.split(), folder=tmp_path, before=before, TMPDIR=str(tmp_path))
        assert ran.code == code, ran.err
        # Each but success says on stderr why.
        assert bool(ran.err) == bool(code)


@pytest.mark.long
def test_a_full_disk_in_train_is_one_sentence_and_leaves_nothing(shop: Path) -> None:
    """A limit of what a file may hold stands for the disk: the write fails in the same place."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); "
    arguments = ["train", "shop.toml", "--lineage", "new/l", "--set", "model.dim=64"]
    ran = subprocess.run(
        [sys.executable, "-c", limit + PROGRAM, *arguments], capture_output=True, text=True
    )
    assert ran.returncode == 2, ran.stderr
    assert len(re.findall(r"^error: The state of the training", ran.stderr, re.MULTILINE)) == 1
    assert "Traceback" not in ran.stderr
    assert not (shop / "new/l").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("--set model.dim=10_000_000", r"model.dim = 10000000 needs at least 1,600,\d+,\d+"),
        ("--set model.kind=two_tower --set 'model.hidden=[100_000_000, 100_000_000]'", "bytes"),
        # Where nobody has counted beforehand, the allocation that fails is told.
        (
            "--set gramian.sampler=linear --set gramian.batch_size=100_000_000_000_000",
            r"[\d,]{15,} bytes",
        ),
    ],
)
def test_sizes_that_no_memory_holds_say_how_many_bytes(
    evergram: Command, shop: Path, settings: str, words: str
) -> None:
    assert re.search(words, evergram.refused(f"{TRAIN} {settings}"))
    assert not (shop / "l").exists()


def test_a_view_transforms_arrays_and_refuses_what_is_none() -> None:
    view = Lineage.open(TRAINED).view(0)
    rows = np.random.default_rng(0).normal(size=(5, 3))
    expected = view.transform(torch.from_numpy(rows).float())
    for odd in (rows, rows.astype(np.float32), rows.astype(">f4"), np.asfortranarray(rows)):
        np.testing.assert_allclose(view.transform(odd), expected.numpy(), rtol=1e-3, atol=1e-6)
    for wrong, kind in (
        (rows.astype(int), "an array of int64"),
        (rows.tolist(), "a list"),
        (torch.ones(2, 3, dtype=torch.int64), "a tensor of torch.int64"),
        (torch.tensor(1.0), "a single number"),
        (np.zeros((4, 2)), "have dim 2; version 2 has 3"),
    ):
        with pytest.raises(ShapeError, match=kind):
            view.transform(wrong)


def test_a_training_that_fails_leaves_no_empty_folder(evergram: Command, shop: Path) -> None:
    lost = "--set gramian.kind=sagram --set training.table_rate=1e30"
    lost += " --set training.epochs=3"
    assert "The loss is" in evergram(f"train shop.toml --lineage deep/l {lost}").err
    assert not (shop / "deep/l").exists()
    assert evergram("train shop.toml --lineage deep/l").code == 0
    assert evergram(f"upgrade shop.toml --lineage deep/l {lost}").code == 2
    assert not (shop / "deep/l/.work").exists()
