"""A name that is nearly right is refused with the one that was meant, wherever names are given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.command import Command
from tests.support.lineages import lineage_of

TRAIN = ("train", "shop.toml", "--lineage", "l")
MEANT = [
    (("trian", "shop.toml"), "'train'"),
    (("lineage", "lisst", "k"), "'list'"),
    ((*TRAIN, "--lineag", "x"), "'--lineage'"),
    ((*TRAIN, "--resum", "never"), "'--resume'"),
    ((*TRAIN, "--device", "cud"), "'cuda'"),
    ((*TRAIN, "--resume", "newer"), "'never'"),
    ((*TRAIN, "--set", "gramian.kindd=exact"), "gramian.kind"),
    ((*TRAIN, "--set", "gramain.kind=exact"), "gramian"),
    ((*TRAIN, "--set", "gramian.kind=sogran"), "'sogram'"),
    ((*TRAIN, "--set", "model.kind=factorisation"), "'factorization'"),
    ((*TRAIN, "--set", "data.kind=tabel"), "'table'"),
    ((*TRAIN, "--set", "task.loss=squred"), "'squared'"),
    ((*TRAIN, "--set", "data.path=$EVERGRAM_DATA/gowala/x.csv"), "'gowalla'"),
    ((*TRAIN, "--set", "data.path=shop.cvs"), "'shop.csv'"),
    ((*TRAIN, "--set", "data.columns={query='qury'}"), "'query'"),
    (("upgrade", *TRAIN[1:], "--set", "upgrade.method=bc-alinger"), "'bc-aligner'"),
    (("evaluate", "k", "--index", "hnws"), "'hnsw'"),
    (("--log-format", "jsn", "demo"), "'json'"),
    (("init", "shop.csv", "--column", "qurey=user"), "'query'"),
    (("init", "shop.csv", "--column", "query=usr"), "'user'"),
    (("init", "shop.csv", "--kind", "tabel"), "'table'"),
    (("lineage", "promote", "k", "stabel"), "'stable'"),
    (("lineage", "label", "k", "--remove", "stabel"), "'stable'"),
    (("vectors", "export", "k", "o.npy", "--side", "objct"), "'object'"),
    (("vectors", "export", "k", "o.npy", "--side", "object", "--as", "newst"), "'newest'"),
    (("vectors", "export-transform", "k", "o", "--format", "onx"), "'onnx'"),
    (("vectors", "align", "2", "x.npy", "--lineage", "k", "--transform", "lineer"), "'linear'"),
    (("consumer", "token", "k", "serach"), "'search'"),
    (("store", "fill", "k", "--store", "objct=snapshot:s"), "'object'"),
]


@pytest.mark.parametrize(("words", "meant"), MEANT, ids=lambda value: str(value)[-40:])
def test_also_a_name_that_is_nearly_right(
    evergram: Command, shop: Path, words: tuple[str, ...], meant: str
) -> None:
    (shop / "shop.csv").write_text("user,item\n1,2\n")
    np.save("x.npy", np.zeros((300, 4), np.float32))
    lineage_of(Path("k"))
    assert evergram("lineage", "label", "k", "stable", "2").code == 0
    assert evergram("consumer", "add", "k", "search", "--pin", "0").code == 0
    assert f"(did you mean {meant}?)" in evergram.refused(*words)
