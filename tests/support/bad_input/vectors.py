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
    command = f"import '{file}' --lineage new {options}"
    return Case(name, command, names or file, put(content, file))


def aligned(
    name: str,
    content: Content,
    file: str = "bad.parquet",
    options: str = "",
    names: str = "",
) -> Case:
    """Return the case of aligning the good old file with a new one of this content."""
    command = f"align old.parquet '{file}' --lineage new {options}"
    return Case(name, command, names or file, put(content, file))


def changed(at: tuple[int, ...], value: float) -> Any:
    values = V.copy()
    values[at] = value
    return values


TENSOR = {"vector": {"dtype": "F32", "shape": [ROWS, DIM], "data_offsets": [0, V.nbytes]}}

CASES = [
    imported("no such file of vectors", lambda p: None),
    imported("a folder of vectors", lambda p: p.mkdir()),
    imported("vectors in CSV", "id,vector\n1,2\n", "bad.csv"),
    imported("vectors of an unknown suffix", b"x", "bad.h5"),
    imported("vectors in a pickle", b"\x80\x04K\x01.", "bad.pkl"),
    imported("vectors in an .npz", b"PK\x03\x04", "bad.npz"),
    imported("an empty Parquet of vectors", b""),
    imported(
        "a Parquet of vectors cut short",
        lambda p: p.write_bytes(Path("old.parquet").read_bytes()[:-500]),
    ),
    imported("vectors of no rows", vectors().slice(0, 0)),
    imported("no column of vectors", pa.table({"id": IDS})),
    imported("no column of ids", pa.table({"vector": vectors()["vector"]})),
    imported("another column of vectors than there is", vectors(), options="--vector-column emb"),
    imported("vectors of text", pa.table({"id": IDS, "vector": ["[1, 2]"] * ROWS})),
    imported("vectors of single numbers", pa.table({"id": IDS, "vector": [1.0] * ROWS})),
    imported(
        "vectors of several lengths",
        pa.table({"id": IDS, "vector": [[1.0] * (1 + i % 2) for i in range(ROWS)]}),
    ),
    imported("vectors of dim 0", pa.table({"id": IDS, "vector": [[]] * ROWS})),
    imported("vectors of lists of text", pa.table({"id": IDS, "vector": [["a", "b"]] * ROWS})),
    imported("vectors of booleans", pa.table({"id": IDS, "vector": [[True, False]] * ROWS})),
    imported("a vector that is null", pa.table({"id": IDS, "vector": [None, *V[1:].tolist()]})),
    imported(
        "a null within a vector",
        pa.table({"id": IDS, "vector": [[None] * DIM, *V[1:].tolist()]}),
    ),
    imported("a vector NaN", vectors(changed((5, 3), np.nan))),
    imported("an infinite vector", vectors(changed((5, 3), np.inf))),
    imported("a vector past float32", vectors(V.astype(np.float64) * 1e300)),
    imported("ids of vectors twice", vectors(ids=["id0", *IDS[:-1]])),
    imported("ids of vectors null", vectors(ids=[None, *IDS[1:]])),
    imported("ids of vectors empty", vectors(ids=["", *IDS[1:]])),
    imported("ids of vectors of floats", vectors(ids=[float(i) for i in range(ROWS)])),
    imported("ids of vectors of lists", vectors(ids=[[i] for i in range(ROWS)])),
    imported(
        "a .npy of pickled objects",
        npy(np.array([Trap()] * 3, dtype=object), pickled=True),
        "bad.npy",
    ),
    imported("a .npy of one dimension", npy(V[0]), "bad.npy"),
    imported("a .npy of three dimensions", npy(V[None]), "bad.npy"),
    imported("a .npy of text", npy(np.array([["a", "b"]])), "bad.npy"),
    imported("a .npy of complex numbers", npy(V.astype(np.complex64)), "bad.npy"),
    imported("a .npy of dates", npy(V.astype("datetime64[s]")), "bad.npy"),
    imported("a .npy of records", npy(np.zeros(3, dtype=[("a", "f4"), ("b", "f4")])), "bad.npy"),
    imported("a .npy of no rows", npy(V[:0]), "bad.npy"),
    imported("a .npy of no dims", npy(V[:, :0]), "bad.npy"),
    imported("a .npy cut short", npy(V)[:-1000], "bad.npy"),
    imported("a .npy of its header alone", npy(V)[:128], "bad.npy"),
    imported("a .npy of no bytes", b"", "bad.npy"),
    imported(
        "a .npy of a huge declared size",
        npy(V).replace(b"(300, 64), }        ", b"(300000000000, 64)}"),
        "bad.npy",
    ),
    imported(
        "a Parquet named as a .npy",
        lambda p: p.write_bytes(Path("old.parquet").read_bytes()),
        "bad.npy",
    ),
    imported("a .npy with NaN", npy(changed((1, 1), np.nan)), "bad.npy"),
    imported("a .npy past float32", npy(V.astype(np.float64) * 1e300), "bad.npy"),
    imported("a .npy of version 9", b"\x93NUMPY\x09\x00" + npy(V)[8:], "bad.npy"),
    imported(
        "too few ids of a .npy",
        lambda p: (put(npy(V), "bad.npy")(p.parent), put("a\nb\n", "few.txt")(p.parent)),
        "bad.npy",
        "--ids few.txt",
    ),
    imported(
        "an id twice in a file of ids",
        lambda p: (put(npy(V), "bad.npy")(p.parent), put("a\n" * ROWS, "twice.txt")(p.parent)),
        "bad.npy",
        "--ids twice.txt",
    ),
    imported(
        "an empty line in a file of ids",
        lambda p: (
            put(npy(V), "bad.npy")(p.parent),
            put("\n".join([*IDS[:-1], "", "x"]), "gap.txt")(p.parent),
        ),
        "bad.npy",
        "--ids gap.txt",
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
    imported(
        "a .safetensors with a huge header", safetensors(b"{}", size=2**60), "bad.safetensors"
    ),
    imported("a .safetensors whose header is no JSON", safetensors(b"nothing"), "bad.safetensors"),
    imported(
        "a .safetensors cut short", safetensors(TENSOR, V.tobytes()[:-100]), "bad.safetensors"
    ),
    imported(
        "a .safetensors with more than its header says",
        safetensors(TENSOR, V.tobytes() + b"more"),
        "bad.safetensors",
    ),
    imported(
        "a .safetensors of an unknown type",
        safetensors({"vector": {**TENSOR["vector"], "dtype": "F99"}}, V.tobytes()),
        "bad.safetensors",
    ),
    imported("a .safetensors of no tensor", safetensors({}), "bad.safetensors"),
    imported(
        "a .safetensors of two matrices",
        safetensors(
            {
                "a": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
                "b": {"dtype": "F32", "shape": [1, 2], "data_offsets": [8, 16]},
            },
            bytes(16),
        ),
        "bad.safetensors",
    ),
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
    imported("an Arrow stream cut short", b"\xff\xff\xff\xff\x10\x00", "bad.arrows"),
    aligned("no id in common", vectors(ids=[f"other{i}" for i in range(ROWS)])),
    aligned(
        "few ids in common",
        vectors(ids=[*IDS[:20], *[f"o{i}" for i in range(ROWS - 20)]]),
        names="18 common objects",
    ),
    aligned("ids of another type", vectors(ids=list(range(ROWS)))),
    aligned("vectors without ids beside vectors with", npy(V), "bad.npy"),
    aligned("vectors at random", vectors()),
    aligned("vectors that are all the same", vectors(np.ones((ROWS, DIM), np.float32))),
    aligned("vectors that are all zero", vectors(np.zeros((ROWS, DIM), np.float32))),
    aligned("vectors on one line", vectors(np.outer(np.arange(ROWS), V[0]).astype(np.float32))),
    aligned("a file aligned with NaN", vectors(changed((0, 0), np.nan))),
    aligned("an unknown transform", vectors(), options="--transform rotate", names="rotate"),
    aligned("a rank without low_rank", vectors(), options="--rank 3", names="rank is of"),
    aligned(
        "a rank past the dims", vectors(), options="--transform low_rank --rank 99", names="99"
    ),
    aligned(
        "a share of everything held out", vectors(), options="--held-out 1", names="--held-out"
    ),
    aligned(
        "an orthogonal transform of other dims",
        vectors(V[:, :32]),
        options="--transform orthogonal",
        names="bad.parquet",
    ),
    aligned("a limit that is no number", vectors(), options="--max-error low", names="low"),
    aligned("a limit NaN", vectors(), options="--max-error nan", names="nan"),
    Case(
        "a new version of a lineage that there is not",
        "align 0 new.parquet --lineage new",
        "new",
    ),
    Case("a number of no version as OLD", "align 7 new.parquet --lineage l", "7"),
    Case("an older version as OLD", "align 0 new.parquet --lineage l", "0"),
    Case(
        "a transform of vectors of other dims",
        "transform bad.parquet --lineage l --as 0 --out o.parquet",
        "bad.parquet",
        put(vectors(V[:, :7]), "bad.parquet"),
    ),
    Case(
        "a transform to no version",
        "transform new.parquet --lineage l --as 9 --out o.parquet",
        "9",
    ),
    Case(
        "a transform to an unknown suffix",
        "transform new.parquet --lineage l --as 0 --out o.xyz",
        "o.xyz",
    ),
    Case(
        "a transform over a file that is there",
        "transform new.parquet --lineage l --as 0 --out old.parquet",
        "old.parquet",
    ),
    Case(
        "a transform from a version that there is not",
        "transform old.parquet --lineage l --as 0 --from 7 --out o.parquet",
        "no version 7",
    ),
    Case(
        "a transform into a folder that is there not",
        "transform new.parquet --lineage l --as 0 --out no/o.parquet",
        "no",
    ),
]
