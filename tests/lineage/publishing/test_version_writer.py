"""The files of a version are read as they were written, and listed with their hashes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tests.support.artefacts import artefact

from evergram.compatibility.certificate import StepError
from evergram.data.pair_hash import TrainedPairs
from evergram.lineage.disk.manifest import sha256
from evergram.lineage.publishing.publish_statistics import ForwardMap
from evergram.lineage.publishing.version_writer import PublicationFacts, write_version
from evergram.lineage.version_reader import VersionReader


def test_every_part_is_read_as_it_was_written(tmp_path: Path) -> None:
    error = StepError(torch.eye(2, dtype=torch.float64), 40, 3.0)
    version = dataclasses.replace(artefact(3, 2), error=error)
    second = torch.eye(3).double()
    facts = PublicationFacts(
        {"query": "0" * 64},
        {"query": (5, torch.ones(3).double(), second)},
        ForwardMap(torch.ones(3, 2).double(), torch.zeros(3).double()),
        TrainedPairs(np.array([7], np.uint32)),
    )
    manifest = write_version(tmp_path, "shop", 1, version, facts)
    assert (manifest.name, manifest.version, manifest.dim) == ("shop@v1", 1, 3)
    assert manifest.embeddings == {"query": "0" * 64}
    names = {path.name for path in tmp_path.iterdir()} - {"manifest.json"}
    assert manifest.files == {name: sha256(tmp_path / name) for name in names}
    reader = VersionReader(tmp_path, manifest)
    reader.check()
    assert version.transform is not None
    read = reader.transform(2)
    assert torch.equal(read.state_dict()["weight"], version.transform.state_dict()["weight"])
    step_error = reader.error(2)
    assert step_error is not None
    assert (step_error.objects, step_error.power) == (40, 3.0)
    assert torch.equal(step_error.sigma, error.sigma)
    forward = reader.forward(2)
    assert forward is not None
    assert torch.equal(forward[0], torch.ones(3, 2).double())
    pairs = reader.trained_pairs()
    assert pairs is not None
    assert pairs.marks.tolist() == [7]
    canaries = reader.canaries()
    assert canaries["candidate"][0].to_pylist() == ["10"]
    assert torch.equal(canaries["query"][1], version.canaries["query"][1])
    record, state, vocabularies = reader.encoder()
    assert record.vocabularies == {"query.id": "string", "candidate.id": "int64"}
    assert state.keys() == {"query.weight", "candidate.weight"}
    assert vocabularies["candidate.id"].keys.equals(pa.array([10, 20]))


def test_a_version_without_a_part_has_no_file_of_it(tmp_path: Path) -> None:
    bare = dataclasses.replace(artefact(2), encoder=None, canaries={})
    manifest = write_version(tmp_path, "shop", 0, bare, PublicationFacts())
    assert manifest.files.keys() == {"canary.parquet", "metrics.json", "moments.safetensors"}
    assert (manifest.encoder, manifest.transform) == (None, None)
    table = pq.read_table(tmp_path / "canary.parquet")
    assert (table.num_rows, table.column_names) == (0, ["side", "id", "vector"])
    reader = VersionReader(tmp_path, manifest)
    assert (reader.error(2), reader.forward(2), reader.trained_pairs()) == (None, None, None)
