"""Which run a checkpoint is of, and what two runs differ in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.data.corpus import Corpus, Side
from evergram.data.prepared.files import sha256_of
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.split import Split
from evergram.training.recipe.values import flat

if TYPE_CHECKING:
    from evergram.training.build import Companions

# Ids that are hashed at a time, and keys of a recipe that a sentence names.
BLOCK = 1 << 20
NAMED = 5


@dataclass(frozen=True)
class RunIdentity:
    """Digests of everything that decides a run's result on one machine.

    Args:
        recipe: JSON of the whole recipe.
        version: the number of the version that is trained.
        corpus: of all columns, ids and features that are trained on.
        selection: of the pairs that select an epoch.
        modules: of the modules and embeddings that training starts from or aligns to.
        purpose: distinguishes runs that are otherwise the same, such as a refit.
        torch: the release.
        files: of the files of a prior and of measures that the recipe names; "" without any.
    """

    recipe: str
    version: str
    corpus: str
    selection: str = ""
    modules: str = ""
    purpose: str = ""
    torch: str = torch.__version__
    files: str = ""

    @classmethod
    def of(
        cls, recipe: str, version: int, split: Split, companions: Companions, purpose: str = ""
    ) -> Self:
        """Return the identity of a run; `recipe` is JSON."""
        selected = _digest([split.selection.query, split.selection.candidate])
        corpus, modules = corpus_digest(split.training), modules_digest(companions)
        files = files_digest(json.loads(recipe))
        return cls(recipe, str(version), corpus, selected, modules, purpose, files=files)

    def as_json(self) -> dict[str, str]:
        return dict(vars(self))

    def difference(self, other: Mapping[str, str]) -> str:
        """Return how another run differs, by its `as_json()`, such as "another corpus"; or ""."""
        mine = self.as_json()
        changed = [name for name in mine if other.get(name) != mine[name]]
        if not changed:
            return ""
        first = changed[0]
        if first == "recipe":
            return f"another recipe{_changed_keys(self.recipe, other.get('recipe', ''))}"
        if first == "torch":
            return f"another torch ({other.get('torch')}, here {self.torch})"
        return {
            "version": f"another version ({other.get('version')}, here {self.version})",
            "corpus": "another corpus",
            "selection": "other pairs that select an epoch",
            "modules": "other modules, or another version before it",
            "purpose": "another number of steps",
            "files": "other contents of the files that [prior] or a measure of [task] names",
        }[first]


def _changed_keys(mine: str, theirs: str) -> str:
    try:
        tables: list[dict[str, Any]] = [flat(json.loads(text)) for text in (mine, theirs)]
    except (ValueError, AttributeError):  # no JSON, or no table
        return ""
    one, other = tables
    keys = sorted(k for k in {**one, **other} if one.get(k) != other.get(k))
    if not keys:
        return ""
    more = ", …" if len(keys) > NAMED else ""
    return f" ({', '.join(keys[:NAMED])}{more} changed)"


def files_digest(recipe: Mapping[str, Any]) -> str:
    """Return a digest of the files that a recipe names beside its data; "" if it names none."""
    prior, task = recipe.get("prior") or {}, recipe.get("task") or {}
    named = [prior.get(side) for side in ("query", "candidate")]
    for side in ("query", "candidate"):
        measures = task.get(f"{side}_measure") or []
        named += measures if isinstance(measures, list) else [measures]
    paths = [Path(name) for name in named if isinstance(name, str)]
    digest = hashlib.sha256()
    for path in paths:
        # One that is not there is refused where it is read.
        digest.update((sha256_of(path) if path.is_file() else "none").encode())
    return digest.hexdigest() if paths else ""


def corpus_digest(corpus: Corpus) -> str:
    """Return a digest of a corpus: interactions with all their columns, ids, and features."""
    if isinstance(corpus, MappedCorpus):
        return corpus.fingerprint
    digest = hashlib.sha256(f"{corpus.interactions.schema} {corpus.shared_ids}".encode())
    for name in corpus.interactions.column_names:
        digest.update(_bytes(corpus.column(name)))
    for side in (corpus.queries, corpus.candidates):
        for part in _side(side):
            digest.update(part)
    return digest.hexdigest()


def modules_digest(companions: Companions) -> str:
    """Return a digest of the modules and embeddings that a run starts from or aligns to: of a joint
    module its buffers, which hold the past."""
    digest = hashlib.sha256()
    joint = companions.joint
    for name, buffer in () if joint is None else joint.named_buffers():
        digest.update(name.encode() + _bytes(buffer))
    for module in (companions.start, companions.own):
        digest.update(b"|")
        for name, value in () if module is None else module.state_dict().items():
            digest.update(name.encode() + _bytes(value))
    for name, value in sorted((companions.past or {}).items()):
        digest.update(name.encode() + _bytes(value))
    return digest.hexdigest()


def _side(side: Side) -> Iterable[bytes | memoryview]:
    yield from _ids(side.vocabulary.keys)
    for name, feature in side.features.items():
        yield name.encode()
        yield from _ids(feature.vocabulary.keys)
        yield _bytes(feature.offsets)
        yield _bytes(feature.indices)


def _ids(keys: pa.Array) -> Iterable[bytes | memoryview]:
    yield f"{keys.type} {len(keys)}".encode()
    if pa.types.is_integer(keys.type):
        yield np.ascontiguousarray(keys.to_numpy()).tobytes()
        return
    for start in range(0, len(keys), BLOCK):
        block = keys.slice(start, BLOCK).cast(pa.large_string())
        row = pa.LargeListArray.from_arrays(pa.array([0, len(block)], pa.int64()), block)
        yield pc.binary_join(row, pa.scalar("\n", pa.large_string()))[0].as_buffer().to_pybytes()


def _bytes(tensor: Tensor) -> bytes | memoryview:
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().data if len(plain) else b""


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(_bytes(tensor))
    return digest.hexdigest()
