"""A lineage of three versions of files, each of which knows much that the next does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.embedding_files import file_of, randn
from torch import Tensor

from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.align_settings import AlignSettings
from evergram.retrieval.sidecars.make_sidecar import make_sidecar

ROWS, DIMS = 1500, (8, 10, 12)


@dataclass(frozen=True)
class Made:
    """The lineage, the vectors of each version in the order of the ids, and sidecars by version."""

    lineage: Lineage
    ids: pa.Array
    vectors: list[Tensor]
    folder: Path
    sidecars: dict[int, Path]

    def file(self, version: int) -> Path:
        return self.folder / f"v{version}.parquet"


@pytest.fixture(scope="module", params=["string", "int64"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    meaning = randn(0, ROWS, 6)
    vectors = []
    for version, dim in enumerate(DIMS):
        seen = torch.tanh(meaning @ randn(10 + version, 6, dim))
        vectors.append(seen + 0.5 * randn(20 + version, ROWS, dim))
    numbers = torch.randperm(ROWS, generator=torch.Generator().manual_seed(9)).tolist()
    ids = pa.array([f"id{n}" for n in numbers] if request.param == "string" else numbers)
    lineage = Lineage.create(folder / "line", "line")
    files = [file_of(folder / f"v{n}.parquet", v, ids) for n, v in enumerate(vectors)]
    settings = AlignSettings("affine")
    sidecars = {}
    for version in (1, 2):
        align(files[version - 1], files[version], lineage, settings)
        sidecars[version] = folder / f"{version}.sidecar"
        make_sidecar(lineage, files[version - 1], size=6).save(sidecars[version])
    return Made(lineage, ids, vectors, folder, sidecars)
