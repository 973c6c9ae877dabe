"""Files of vectors: wrong types and shapes, damaged ones, ids that do not fit, and two files."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.support.bad_input.case import Case, Content, put
from tests.support.bad_input.good_files import DIM, IDS, ROWS

V = np.random.default_rng(7).normal(size=(ROWS, DIM)).astype(np.float32)


def vectors(values: Any = V, ids: Any = IDS) -> pa.Table:
    """Return a table of ids and vectors."""
    flat = pa.array(np.ascontiguousarray(values).ravel())
    return pa.table({"id": ids, "vector": pa.FixedSizeListArray.from_arrays(flat, values.shape[1])})


def npy(array: Any, *, pickled: bool = False) -> bytes:
    """Return an array as the bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=pickled)
    return buffer.getvalue()


def safetensors(header: Any, body: bytes = b"", size: int | None = None) -> bytes:
    """Return a file of this header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + body


class Trap:
    """What a pickle would run: it makes a file."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return Path.touch, (Path("trapped"),)  # type: ignore[return-value]


def imported(
    name: str,
    content: Content,
    file: str = "bad.parquet",
    options: str = "",
    names: str = "",
) -> Case:
    """Return the case of importing a file of this content."""
    command = f"vectors import '{file}' --lineage new {options}"
    return Case(name, command, names or file, put(content, file))


def aligned(
    name: str,
    content: Content,
    file: str = "bad.parquet",
    options: str = "",
    names: str = "",
) -> Case:
    """Return the case of aligning the good old file with a new one of this content."""
    command = f"vectors align old.parquet '{file}' --lineage new {options}"
    return Case(name, command, names or file, put(content, file))


def changed(at: tuple[int, ...], value: float) -> Any:
    values = V.copy()
    values[at] = value
    return values


TENSOR = {"vector": {"dtype": "F32", "shape": [ROWS, DIM], "data_offsets": [0, V.nbytes]}}

CASES = [
    imported("no such file of vectors", lambda p: None),
    imported("vectors in CSV", "id,vector\n1,2\n", "bad.csv"),
    imported("an empty Parquet of vectors", b""),
    imported("vectors of no rows", vectors().slice(0, 0)),
    imported("no column of vectors", pa.table({"id": IDS})),
    imported("vectors of text", pa.table({"id": IDS, "vector": ["[1, 2]"] * ROWS})),
    imported(
        "vectors of several lengths",
        pa.table({"id": IDS, "vector": [[1.0] * (1 + i % 2) for i in range(ROWS)]}),
    ),
    imported("vectors of dim 0", pa.table({"id": IDS, "vector": [[]] * ROWS})),
    imported("a vector that is null", pa.table({"id": IDS, "vector": [None, *V[1:].tolist()]})),
    imported("a vector NaN", vectors(changed((5, 3), np.nan))),
    imported("ids of vectors twice", vectors(ids=["id0", *IDS[:-1]])),
    imported("ids of vectors null", vectors(ids=[None, *IDS[1:]])),
    imported("ids of vectors of floats", vectors(ids=[float(i) for i in range(ROWS)])),
    imported(
        "a .npy of pickled objects",
        npy(np.array([Trap()] * 3, dtype=object), pickled=True),
        "bad.npy",
    ),
    imported("a .npy of one dimension", npy(V[0]), "bad.npy"),
    imported("a .npy of no rows", npy(V[:0]), "bad.npy"),
    imported("a .npy of no bytes", b"", "bad.npy"),
    imported(
        "a Parquet named as a .npy",
        lambda p: p.write_bytes(Path("old.parquet").read_bytes()),
        "bad.npy",
    ),
    imported(
        "too few ids of a .npy",
        lambda p: (put(npy(V), "bad.npy")(p.parent), put("a\nb\n", "few.txt")(p.parent)),
        "bad.npy",
        "--ids few.txt",
    ),
    imported("no such file of ids", npy(V), "bad.npy", "--ids gone.txt", "gone.txt"),
    imported(
        "a file of ids in UTF-16",
        lambda p: (
            put(npy(V), "bad.npy")(p.parent),
            put("\n".join(IDS).encode("utf-16"), "ids16.txt")(p.parent),
        ),
        "bad.npy",
        "--ids ids16.txt",
        "ids16.txt",
    ),
    imported(
        "a file of ids that is a folder",
        lambda p: (put(npy(V), "bad.npy")(p.parent), (p.parent / "idf").mkdir()),  # type: ignore[func-returns-value]
        "bad.npy",
        "--ids idf",
        "idf",
    ),
    imported("a file of ids beside a Parquet", vectors(), options="--ids ids.txt"),
    imported("a .safetensors of no bytes", b"", "bad.safetensors"),
    imported("a .safetensors of no tensor", safetensors({}), "bad.safetensors"),
    imported(
        "a .safetensors of tensors of text",
        safetensors(
            {"vector": {"dtype": "BOOL", "shape": [2, 2], "data_offsets": [0, 4]}}, bytes(4)
        ),
        "bad.safetensors",
    ),
    imported(
        "an Arrow file of vectors that is a Parquet",
        lambda p: p.write_bytes(Path("old.parquet").read_bytes()),
        "bad.arrow",
    ),
    aligned("no id in common", vectors(ids=[f"other{i}" for i in range(ROWS)])),
    aligned(
        "few ids in common",
        vectors(ids=[*IDS[:20], *[f"o{i}" for i in range(ROWS - 20)]]),
        names="18 common objects",
    ),
    aligned("vectors without ids beside vectors with", npy(V), "bad.npy"),
    aligned("vectors at random", vectors()),
    aligned("vectors that are all the same", vectors(np.ones((ROWS, DIM), np.float32))),
    aligned("a file aligned with NaN", vectors(changed((0, 0), np.nan))),
    aligned("an unknown transform", vectors(), options="--transform rotate", names="rotate"),
    aligned("a rank without low_rank", vectors(), options="--rank 3", names="rank is of"),
    aligned(
        "a rank past the dims", vectors(), options="--transform low_rank --rank 99", names="99"
    ),
    aligned(
        "a share of everything held out", vectors(), options="--held-out 1", names="--held-out"
    ),
    aligned("a limit that is no number", vectors(), options="--max-error low", names="low"),
    aligned("a limit NaN", vectors(), options="--max-error nan", names="nan"),
    Case(
        "a new version of a lineage that there is not",
        "vectors align 0 new.parquet --lineage new",
        "new",
    ),
    Case("a number of no version as OLD", "vectors align 7 new.parquet --lineage l", "7"),
    Case(
        "a transform of vectors of other dims",
        "vectors transform bad.parquet --lineage l --as 0 --out o.parquet",
        "bad.parquet",
        put(vectors(V[:, :7]), "bad.parquet"),
    ),
    Case(
        "a transform to no version",
        "vectors transform new.parquet --lineage l --as 9 --out o.parquet",
        "9",
    ),
    Case(
        "a transform to an unknown suffix",
        "vectors transform new.parquet --lineage l --as 0 --out o.xyz",
        "o.xyz",
    ),
    Case(
        "a transform over a file that is there",
        "vectors transform new.parquet --lineage l --as 0 --out old.parquet",
        "old.parquet",
    ),
    Case(
        "a transform into a folder that is there not",
        "vectors transform new.parquet --lineage l --as 0 --out no/o.parquet",
        "no",
    ),
]
