"""The files of one version, written to a folder; `VersionReader` reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from evergram.atomic_files import write_text
from evergram.compatibility.certificate import StepError
from evergram.data.pair_hash import TrainedPairs
from evergram.lineage.artefact import Artefact, EncoderParts
from evergram.lineage.disk.manifest import EncoderRecord, Manifest, TransformRecord, sha256
from evergram.lineage.disk.plain_json import plain_numbers
from evergram.lineage.disk.query_form_file import write_query_form
from evergram.lineage.disk.tensor_files import save_tensors
from evergram.lineage.disk.trained_pairs import FILE as PAIRS
from evergram.lineage.disk.trained_pairs import write_trained_pairs
from evergram.lineage.publishing.block_check import checked_block
from evergram.lineage.publishing.publish_statistics import ForwardMap, Moments
from evergram.vector_files.writers import vectors_to_arrow


@dataclass(frozen=True)
class PublicationFacts:
    """The facts of a version that are computed when it is published.

    Args:
        embeddings: SHA-256 of the file of each side.
        moments: of the vectors of each side.
        forward: the map from the version before; None if there is none.
        canary_error: of its transform, see `Manifest`.
        new_pairs: its training pairs that no earlier version was trained on; None if not known.
    """

    embeddings: Mapping[str, str] = field(default_factory=dict)
    moments: Mapping[str, Moments] = field(default_factory=dict)
    forward: ForwardMap | None = None
    new_pairs: TrainedPairs | None = None
    canary_error: float | None = None


def write_version(
    folder: Path, lineage: str, number: int, artefact: Artefact, facts: PublicationFacts
) -> Manifest:
    """Write all files of a version but its embeddings, the manifest last.

    Args:
        folder: empty.
        lineage: the lineage's name; version 3 of "shop" is named "shop@v3".
    """
    if artefact.encoder is not None:
        save_tensors(artefact.encoder.state, folder / "encoder.safetensors")
        pq.write_table(_vocabulary_table(artefact.encoder), folder / "vocabularies.parquet")
    if artefact.transform is not None:
        save_tensors(artefact.transform.state_dict(), folder / "transform.safetensors")
    if artefact.error is not None:
        _write_error(artefact.error, folder / "error.safetensors")
    if facts.forward is not None:
        tensors = {"weight": facts.forward.weight, "offset": facts.forward.offset}
        save_tensors(tensors, folder / "forward.safetensors")
    if facts.new_pairs is not None:
        write_trained_pairs(facts.new_pairs, folder / PAIRS)
    if artefact.query_form is not None:
        write_query_form(artefact.query_form, folder)
    _write_moments(facts.moments, folder / "moments.safetensors")
    pq.write_table(_canary_table(artefact), folder / "canary.parquet")
    write_text(folder / "metrics.json", json.dumps(plain_numbers(artefact.metrics), indent=2))
    manifest = Manifest(
        version=number,
        name=f"{lineage}@v{number}",
        dim=artefact.dim,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        evergram=package_version("evergram"),
        encoder=_encoder_record(artefact.encoder),
        transform=_transform_record(artefact),
        recipe=dict(artefact.recipe),
        files={path.name: sha256(path) for path in sorted(folder.iterdir())},
        embeddings=dict(facts.embeddings),
        text_encoder=artefact.text_encoder,
        canary_error=facts.canary_error,
    )
    write_text(folder / "manifest.json", manifest.to_json())
    return manifest


def _write_error(error: StepError, path: Path) -> None:
    numbers = {"objects": error.objects, "power": error.power}
    tensors = {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}
    save_tensors({"sigma": error.sigma, **tensors}, path)


def _write_moments(moments: Mapping[str, Moments], path: Path) -> None:
    tensors = {}
    for side, (count, mean, second) in moments.items():
        tensors[f"{side}.count"] = torch.tensor(count)
        tensors |= {f"{side}.mean": mean, f"{side}.second": second}
    save_tensors(tensors, path)


def _encoder_record(encoder: EncoderParts | None) -> EncoderRecord | None:
    if encoder is None:
        return None
    key_types = {name: str(v.keys.type) for name, v in encoder.vocabularies.items()}
    fields: dict[str, Any] = {
        "kind": encoder.kind,
        "options": encoder.options,
        "inputs": encoder.inputs,
        "vocabularies": key_types,
    }
    return EncoderRecord.model_validate(fields)


def _transform_record(artefact: Artefact) -> TransformRecord | None:
    transform = artefact.transform
    if transform is None:
        return None
    return TransformRecord.model_validate({"kind": transform.kind, "options": transform.options})


def _vocabulary_table(encoder: EncoderParts) -> pa.Table:
    names: list[pa.Array] = []
    keys: list[pa.Array] = []
    for name, vocabulary in encoder.vocabularies.items():
        names.append(pa.repeat(name, len(vocabulary)))
        keys.append(vocabulary.keys.cast(pa.string()))
    return pa.table(
        {"vocabulary": pa.concat_arrays(names).dictionary_encode(), "key": pa.concat_arrays(keys)}
    )


def _canary_table(artefact: Artefact) -> pa.Table:
    tables = [
        pa.table(
            {
                "side": pa.repeat(side, len(ids)),
                "id": ids.cast(pa.string()),
                "vector": vectors_to_arrow(vectors),
            }
        )
        for side, block in artefact.canaries.items()
        for ids, vectors in [checked_block(*block, side, artefact.dim)]
        if len(ids)
    ]
    if not tables:
        return pa.table({"side": [], "id": [], "vector": []})
    return pa.concat_tables(tables)
