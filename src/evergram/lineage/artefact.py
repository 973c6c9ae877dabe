"""The contents of one version before it is published, and how they are written."""

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
from evergram.lineage.publishing.publish_statistics import ForwardMap, Moments
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


@dataclass(frozen=True, repr=False)
class Artefact:
    """A version that is ready to be published.

    Args:
        dim: D.
        embeddings: for each side, ids [N] and vectors [N, D]; or a function that returns them block
            by block, for more than memory holds. A model has the sides "query" and "candidate".
        transform: B_k; None for version 0 alone.
        metrics: what was measured, as JSON.
        recipe: the recipe, as JSON.
        encoder: None if the embeddings came from a file.
        canaries: for each side, ids and vectors [n, D] of a few objects that are kept for ever.
        error: the error of B_k, for the certificate.
        trained: the salt of the hashes of the model's training pairs, and these; None if no model
            was trained.
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

    def __repr__(self) -> str:
        model = "no encoder" if self.encoder is None else self.encoder.kind
        back = "no transform" if self.transform is None else f"{self.transform.kind} transform"
        return f"Artefact(dim {self.dim}, {model}, {back}, sides {', '.join(self.embeddings)})"

    def block(self, side: str) -> Block:
        """Return all ids [N] and vectors [N, D] of a side at once."""
        source = self.embeddings[side]
        if not callable(source):
            return source
        blocks = list(source())
        return pa.concat_arrays([ids for ids, _ in blocks]), torch.cat([v for _, v in blocks])


def are_metrics(value: Any) -> bool:
    """Say whether a value has the form of a version's metrics: `metrics.model`, if there is one, is
    a number or null by name, and each of `probes`, if there are any, names a consumer."""
    if not isinstance(value, Mapping):
        return False
    tables, probes = value.get("metrics", {}), value.get("probes", [])
    model = tables.get("model", {}) if isinstance(tables, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(probes, list):
        return False
    numbers = all(x is None or isinstance(x, int | float) for x in model.values())
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
    """Write all files of a version but its embeddings, the manifest last.

    Args:
        folder: empty.
        name: such as "shop@v3".
        embeddings: SHA-256 of the file of each side.
        moments: of the vectors of each side.
        forward: the map from the version before; None if there is none.
        trained: its training pairs that no earlier version was trained on; None if not known.
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
    write_text(folder / "manifest.json", manifest.to_json())
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
