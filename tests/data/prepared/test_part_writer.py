"""The files of a part: whole columns, rows of its own, and which rows they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.prepared import prepared
from tests.support.streamed import generated

from evergram.data.holdout import rules
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.prepared.part_writer import WrittenPart, write_part
from evergram.data.prepared.prepared_corpus import load_prepared
from evergram.errors import DataError


def test_a_part_is_written_with_its_rows_and_counts(tmp_path: Path) -> None:
    corpus = generated(400)
    mapped = prepared(corpus, tmp_path / "p", 0.5)
    write_part(mapped, rules.of_at_least(0.8), tmp_path)
    kept = corpus.column("value") >= 0.8
    part = WrittenPart.open(mapped, tmp_path)
    assert part.size == int(kept.sum()) > 0
    for side in ("query", "candidate"):
        rows, counts = part.rows[side], part.counts[side]
        before, own = corpus.column(side)[kept], torch.from_numpy(np.load(tmp_path / f"{side}.npy"))
        assert own.dtype == torch.int32
        assert torch.equal(rows[own.long()], before)
        assert torch.equal(rows, torch.unique(before))
        assert torch.equal(counts, torch.unique(before, return_counts=True)[1])
    for name in ("value", "weight", "time"):
        assert np.load(tmp_path / f"{name}.npy").tolist() == corpus.column(name)[kept].tolist()


def test_a_part_of_nothing_has_no_interactions(tmp_path: Path) -> None:
    mapped = prepared(generated(100), tmp_path / "p")
    write_part(mapped, rules.first(0), tmp_path)
    assert WrittenPart.open(mapped, tmp_path).size == 0
    assert len(mapped.where(rules.first(0))) == 0


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def other_type(path: Path) -> None:
    np.save(path, np.load(path).astype(np.int16))


def shorter(path: Path) -> None:
    np.save(path, np.load(path)[1:])


def without_order(path: Path) -> None:
    np.save(path, np.load(path)[::-1])


def negative(path: Path) -> None:
    np.save(path, -np.load(path) - 1)


def one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)


def zeroed(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:150] + bytes(50) + content[200:])


def no_digests(path: Path) -> None:
    path.write_text(path.read_text().replace('"sha256": {', '"sha256": [{').replace("}}", "}]}"))


COLUMNS = ["candidate.npy", "time.npy"]
ROWS = ["query-rows.npy", "candidate-counts.npy"]
DAMAGES = [
    *((name, how) for name in ["part.json", *COLUMNS, *ROWS] for how in (truncated, emptied)),
    *((name, Path.unlink) for name in ["part.json", *COLUMNS, *ROWS]),
    *((name, how) for name in [*COLUMNS, *ROWS] for how in (other_type, shorter)),
    *((name, negative) for name in ROWS),
    ("query-rows.npy", without_order),
    *((name, how) for name in COLUMNS for how in (one_byte, zeroed)),
    ("part.json", no_digests),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_part_is_written_anew(
    name: str, damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rule = rules.of_at_least(0.5)
    mapped = prepared(generated(400), tmp_path / "p")
    part = mapped.where(rule)
    assert isinstance(part, MappedCorpus)
    before = part.in_memory()
    (folder,) = (path.parent for path in mapped.cache.rglob("part.json"))
    content = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder / name)
    with pytest.raises(DataError):
        WrittenPart.open(mapped, folder)
    again = load_prepared(tmp_path / "p").where(rule)
    assert isinstance(again, MappedCorpus)
    assert again.in_memory().interactions.equals(before.interactions)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == content
    assert caplog.text.count("are written anew") == 1
    load_prepared(tmp_path / "p").where(rule)
    assert caplog.text.count("are written anew") == 1
