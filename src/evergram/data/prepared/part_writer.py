"""Write the part of a corpus that a rule marks, as columns in files with rows of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from evergram.data.columnar.pair_blocks import PairRule
from evergram.data.prepared.column_file import (
    ColumnFile,
    check_rows,
    check_sha256,
    new_column,
    sha256_of,
)
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.data.prepared.mapped_corpus import MappedCorpus

SIDES = ("query", "candidate")
SUMMARY = "part.json"


def write_part(corpus: MappedCorpus, rule: PairRule, folder: Path) -> None:
    """Write the interactions that a rule marks, in their order, in two passes over the corpus.

    Entities without an interaction among them are left out, and the others keep their order, as of
    `Corpus.restrict`.

    The corpus's files are verified first.

    Args:
        folder: an empty folder. It gets each column as .npy; of each side the rows of the corpus
            that are kept, and their counts; and a summary, with the SHA-256 of each file.
    Raises: DataError: a file of the corpus is damaged.
    """
    corpus.verify(corpus.interactions.column_names)
    counts = {side: torch.zeros(len(corpus.counts(side)), dtype=torch.int64) for side in SIDES}
    for block in corpus.blocks():
        marks = rule(block)
        for side, rows in (("query", block.query), ("candidate", block.candidate)):
            counts[side] += torch.bincount(rows[marks], minlength=len(counts[side]))
    size = int(counts["query"].sum())
    kept = {side: counts[side] > 0 for side in SIDES}
    if corpus.shared_ids:
        kept = dict.fromkeys(SIDES, kept["query"] | kept["candidate"])
    for side in SIDES:
        np.save(folder / f"{side}-rows.npy", torch.nonzero(kept[side]).flatten().numpy())
        np.save(folder / f"{side}-counts.npy", counts[side][kept[side]].numpy())
    new_rows = {side: (kept[side].cumsum(0) - 1).numpy() for side in SIDES}
    types = {name: corpus.columns[0][name].dtype for name in corpus.interactions.column_names}
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(new_column(folder / f"{name}.npy", dtype, size))
            for name, dtype in types.items()
        }
        for block in corpus.blocks():
            marked = rule(block).numpy()
            piece = corpus.interactions.slice(block.start, len(block))
            for name, file in files.items():
                if name in SIDES:
                    old = (block.query if name == "query" else block.candidate).numpy()[marked]
                    values = new_rows[name][old].astype(types[name])
                else:
                    values = piece[name].to_numpy()[marked]
                file.write(values.tobytes())
    write_summary(folder / SUMMARY, {"interactions": size})


@dataclass(frozen=True)
class WrittenPart:
    """A part that `write_part` wrote.

    Args:
        size: the number of its interactions; of none, the other fields are empty.
        rows: of each side, which rows of the corpus its entities are, int64 [N], ascending.
        counts: of each side, the interactions of each entity, int64 [N].
        files: its columns.
    """

    size: int
    rows: Mapping[str, Tensor]
    counts: Mapping[str, Tensor]
    files: Mapping[str, ColumnFile]

    @classmethod
    def open(cls, corpus: MappedCorpus, folder: Path) -> WrittenPart:
        """Return the part of a corpus. Raises: DataError: its files are damaged."""
        verify_files(folder / SUMMARY)
        size = read_summary(folder / SUMMARY, "interactions")
        if size == 0:
            return cls(0, {}, {}, {})
        rows, counts = {}, {}
        for side in SIDES:
            rows[side] = _read(folder / f"{side}-rows.npy", None)
            counts[side] = _read(folder / f"{side}-counts.npy", len(rows[side]))
            check_rows(rows[side], side, len(corpus.counts(side)), "It is written anew.")
            agrees = int(counts[side].sum()) == size and int(counts[side].min()) >= 0
            if not agrees or bool((rows[side].diff() <= 0).any()):
                raise DataError(f"The {side} rows and counts in {folder} contradict each other.")
        types = {name: corpus.columns[0][name].dtype for name in corpus.interactions.column_names}
        files = {n: ColumnFile.open(folder / f"{n}.npy", size, types[n]) for n in types}
        return cls(size, rows, counts, files)


def write_summary(path: Path, values: Mapping[str, object]) -> None:
    """Write a summary of derived files, with the SHA-256 of each column beside it."""
    digests = {file.name: sha256_of(file) for file in sorted(path.parent.glob("*.npy"))}
    path.write_text(json.dumps({"format_version": 1, **values, "sha256": digests}))


def verify_files(path: Path) -> None:
    """Read the columns beside a summary through, and compare them with their SHA-256.

    Raises: DataError: the summary or a column is damaged.
    """
    digests = _summary(path).get("sha256")
    if not isinstance(digests, dict):
        raise DataError(f"{path} is damaged: sha256 is {digests!r}.")
    for name, digest in digests.items():
        check_sha256(path.parent / Path(name).name, str(digest), "It is written anew.")


def read_summary(path: Path, name: str) -> int:
    """Return a number of a summary of derived files. Raises: DataError: it is damaged."""
    value = _summary(path).get(name)
    if type(value) is not int or value < 0:
        raise DataError(f"{path} is damaged: {name} is {value!r}.")
    return value


def _summary(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error!r}.") from error
    if not isinstance(values, dict):
        raise DataError(f"{path} is damaged: it is {values!r}.")
    return values


def _read(path: Path, length: int | None) -> Tensor:
    file = ColumnFile.open(path, length, np.dtype(np.int64))
    return torch.from_numpy(file.mapped().copy())
