"""The two files of a form: written, read, and refused where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.support.folding import DIMS, folding_lineage, form_of

from evergram.errors import IntegrityError
from evergram.lineage.disk.query_form_file import (
    RECORD,
    TENSORS,
    read_query_form,
    write_query_form,
)
from evergram.lineage.disk.tensor_files import load_tensors, save_tensors
from evergram.lineage.lineage import Lineage


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    form = form_of(1, values=True)
    write_query_form(form, tmp_path)
    read = read_query_form(tmp_path, DIMS[1])
    for name in ("strengths", "powers", "matrices", "centres"):
        assert torch.equal(getattr(read, name), getattr(form, name))
    for name in ("rule", "squares", "pull", "length", "values"):
        assert getattr(read, name) == getattr(form, name)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_query_form(form_of(1), tmp_path)
    with pytest.raises(IntegrityError, match="has dim 4, its version 9"):
        read_query_form(tmp_path, 9)
    tensors = load_tensors(tmp_path / TENSORS)
    save_tensors({k: v for k, v in tensors.items() if k != "powers"}, tmp_path / TENSORS)
    with pytest.raises(IntegrityError, match="powers"):
        read_query_form(tmp_path, DIMS[1])
    save_tensors({**tensors, "matrices": tensors["matrices"] * torch.nan}, tmp_path / TENSORS)
    with pytest.raises(IntegrityError, match="NaN"):
        read_query_form(tmp_path, DIMS[1])


def test_the_files_are_published_with_their_hashes(tmp_path: Path) -> None:
    lineage = folding_lineage(tmp_path / "films")
    assert {RECORD, TENSORS} <= lineage.manifest(1).files.keys()
    path = tmp_path / "films" / "versions" / "1" / RECORD
    path.write_text(json.dumps({**json.loads(path.read_text()), "squares": 5.0}))
    with pytest.raises(IntegrityError, match="SHA-256 differs"):
        Lineage.open(tmp_path / "films").fold_in(["c1"])
