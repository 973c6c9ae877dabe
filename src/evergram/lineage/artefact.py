"""Everything that one version is, and how it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from evergram.atomic_files import write_text
from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import Transform
from evergram.data.corpus import Vocabulary
from evergram.data.pair_hash import TrainedPairs
from evergram.lineage.disk.manifest import EncoderRecord, Manifest, TransformRecord, sha256
from evergram.lineage.disk.plain_json import plain_numbers
from evergram.lineage.disk.tensor_files import save_tensors
from evergram.lineage.pair_history import FILE as PAIRS
from evergram.lineage.pair_history import write_trained_pairs
from evergram.lineage.publish_statistics import ForwardMap, Moments
from evergram.vector_files.parquet import vectors_to_arrow

Block = tuple[pa.Array, Tensor]


@dataclass(frozen=True)
class EncoderParts:
    """An encoder, taken apart.

    Args:
        kind, options: how to build it.
        state: its tensors.
        inputs, vocabularies: its schema.
    """

    kind: str
    options: Mapping[str, Any]
    state: Mapping[str, Tensor]
    inputs: Mapping[str, Mapping[str, str]]
    vocabularies: Mapping[str, Vocabulary]


@dataclass(frozen=True)
class Artefact:
    """Everything that one version is.

    Args:
        dim: D.
        embeddings: for each side, ids [N] and vectors [N, D]; or what gives them block by block,
            for more than memory holds. A model has the sides "query" and "candidate".
        transform: B_k; None for version 0 alone.
        metrics: JSON of what was measured.
        recipe: JSON of the recipe.
        encoder: None where the embeddings came from a file.
        canaries: for each side, ids and vectors [n, D] that are kept for ever.
        error: what B_k leaves, for the certificate.
        trained: the pairs that the model was trained on, and the salt of their hashes; None where
            no model was trained.
    """

    dim: int
    embeddings: Mapping[str, Block | Callable[[], Iterable[Block]]]
    transform: Transform | None
    metrics: Mapping[str, Any]
    recipe: Mapping[str, Any]
    encoder: EncoderParts | None = None
    canaries: Mapping[str, Block] = field(default_factory=dict)
    error: StepError | None = None
    trained: tuple[str, TrainedPairs] | None = None

    def block(self, side: str) -> Block:
        """All ids [N] and vectors [N, D] of a side at once."""
        found = self.embeddings[side]
        if not callable(found):
            return found
        blocks = list(found())
        return pa.concat_arrays([ids for ids, _ in blocks]), torch.cat([v for _, v in blocks])


def are_metrics(found: Any) -> bool:
    """Whether readers of metrics can count on these: where there is `metrics.model`, it has a
    number or null by name, and where there are `probes`, each is of a consumer."""
    if not isinstance(found, Mapping):
        return False
    tables, probes = found.get("metrics", {}), found.get("probes", [])
    model = tables.get("model", {}) if isinstance(tables, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(probes, list):
        return False
    numbers = all(value is None or isinstance(value, int | float) for value in model.values())
    named = all(isinstance(p, Mapping) and isinstance(p.get("consumer"), str) for p in probes)
    return numbers and named


def write_version(
    folder: Path,
    name: str,
    number: int,
    artefact: Artefact,
    embeddings: dict[str, str],
    moments: Mapping[str, Moments],
    forward: ForwardMap | None,
    trained: TrainedPairs | None,
) -> Manifest:
    """Fill the folder of a version with all but its embeddings, the manifest last.

    Args:
        embeddings: side to SHA-256.
        moments, forward: what was learnt of them.
        trained: pairs of its training that no earlier version was trained on.
    """
    encoder, transform, error = artefact.encoder, artefact.transform, artefact.error
    if encoder is not None:
        save_tensors(encoder.state, folder / "encoder.safetensors")
        pq.write_table(_vocabulary_table(encoder), folder / "vocabularies.parquet")
    if transform is not None:
        save_tensors(transform.state_dict(), folder / "transform.safetensors")
    if error is not None:
        facts = {"objects": error.objects, "power": error.power}
        tensors = {k: torch.tensor(v, dtype=torch.float64) for k, v in facts.items()}
        save_tensors({"sigma": error.sigma, **tensors}, folder / "error.safetensors")
    if forward is not None:
        tensors = {"weight": forward.weight, "offset": forward.offset}
        save_tensors(tensors, folder / "forward.safetensors")
    if trained is not None:
        write_trained_pairs(trained, folder / PAIRS)
    parts = {}
    for side, (count, mean, second) in moments.items():
        parts[f"{side}.count"] = torch.tensor(count)
        parts |= {f"{side}.mean": mean, f"{side}.second": second}
    save_tensors(parts, folder / "moments.safetensors")
    pq.write_table(_canary_table(artefact), folder / "canary.parquet")
    write_text(folder / "metrics.json", json.dumps(plain_numbers(artefact.metrics), indent=2))
    manifest = Manifest(
        version=number,
        name=name,
        dim=artefact.dim,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        evergram=package_version("evergram"),
        encoder=None
        if encoder is None
        else EncoderRecord.model_validate(
            {
                "kind": encoder.kind,
                "options": encoder.options,
                "inputs": encoder.inputs,
                "vocabularies": {
                    name: str(v.keys.type) for name, v in encoder.vocabularies.items()
                },
            }
        ),
        transform=None
        if transform is None
        else TransformRecord.model_validate({"kind": transform.kind, "options": transform.options}),
        recipe=dict(artefact.recipe),
        files={path.name: sha256(path) for path in sorted(folder.iterdir())},
        embeddings=embeddings,
    )
    write_text(folder / "manifest.json", manifest.model_dump_json(indent=2))
    return manifest


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
    columns: dict[str, Iterable[Any]] = {"side": [], "id": [], "vector": []}
    tables = []
    for side, (ids, vectors) in artefact.canaries.items():
        tables.append(
            pa.table(
                {
                    "side": pa.repeat(side, len(ids)),
                    "id": ids.cast(pa.string()),
                    "vector": vectors_to_arrow(vectors),
                }
            )
        )
    return pa.concat_tables(tables) if tables else pa.table(columns)
