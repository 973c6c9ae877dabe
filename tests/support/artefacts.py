"""A small version with random embeddings, ready to be published."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import torch
from tests.support.publishing import copy_of, publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Vocabulary
from evergram.lineage.artefact import Artefact, EncoderParts
from evergram.lineage.lineage import Lineage


def artefact(dim: int, before: int | None = None, seed: int = 0) -> Artefact:
    draw = torch.Generator().manual_seed(seed)
    ids = {"query": pa.array(["a", "b", "c"]), "candidate": pa.array([10, 20])}
    vectors = {s: torch.randn(len(i), dim, generator=draw) for s, i in ids.items()}
    return Artefact(
        dim=dim,
        encoder=EncoderParts(
            kind="factorization",
            options={"dim": dim},
            state={f"{s}.weight": v for s, v in vectors.items()},
            inputs={s: {"id": f"{s}.id"} for s in ids},
            vocabularies={f"{s}.id": Vocabulary(i) for s, i in ids.items()},
        ),
        embeddings={s: (ids[s], vectors[s]) for s in ids},
        transform=None
        if before is None
        else LinearTransform.from_matrix(torch.randn(before, dim, generator=draw)),
        metrics={"metrics": {"model": {"recall@20": 0.5}}},
        recipe={"name": "x"},
        canaries={s: ids[s][:1] for s in ids},
    )


def shop_of_three(folder: Path) -> Lineage:
    """Versions 0 to 2, of dims 2, 3 and 4."""
    return copy_of("three", _publish, folder)


def _publish(folder: Path) -> None:
    lineage = Lineage.create(folder, "shop")
    publish_next(lineage, artefact(2))
    publish_next(lineage, artefact(3, 2, seed=1))
    publish_next(lineage, artefact(4, 3, seed=2))
