"""`PretrainedEncoder`: a published encoder, from a lineage or a folder, that embeds any object."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from evergram.atomic_files import new_folder
from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.encoder import Embeddings, Encoder, RowEncoder, Scene, restore_encoder
from evergram.encoders.encoder_inputs import (
    ID,
    checked_inputs,
    columns_of,
    names_of,
    refuse_other_ids,
    refuse_unknown,
)
from evergram.encoders.kinds import ENCODERS
from evergram.errors import DataError, IntegrityError, LineageError, reason_and_remedy
from evergram.lineage.artefact import load_tensors, save_tensors
from evergram.lineage.lineage import Lineage
from evergram.lineage.record import (
    FORMAT_VERSION,
    ChecksummedRecord,
    EncoderRecord,
    FrozenRecord,
    check_files,
    sha256,
)
from evergram.mapped_tensors import join_blocks

SIDE = "candidate"

CONFIG, TENSORS, VOCABULARIES = "config.json", "model.safetensors", "vocabularies.json"
CARD = "README.md"
HASHED = (TENSORS, VOCABULARIES)
log: logging.Logger = logging.getLogger(__name__)


class EncoderFacts(FrozenRecord):
    """The version of an encoder; `name` is like "shop@v3", `fingerprint` identifies its space."""

    name: str
    version: int
    fingerprint: str
    dim: int
    created: str


class _Config(ChecksummedRecord):
    """`config.json`."""

    format_version: int
    evergram: str
    encoder: EncoderRecord
    of: EncoderFacts
    # File name to SHA-256, for every other file that is read.
    files: dict[str, str]


@dataclass(frozen=True, repr=False)
class PretrainedEncoder:
    """An encoder of a published version, or from a folder that `save_pretrained` wrote.

        encoder = PretrainedEncoder.of_version(Lineage.open("shop"))
        vectors = encoder.encode([17, 42], side="query")                     # [2, D]
        vectors = encoder.encode([{"genre": ["drama"]}], side="candidate")   # an object without id

    Args:
        module: the `nn.Module`, in evaluation mode.
        record: how to build the module, and its inputs.
    """

    module: Encoder
    record: EncoderRecord
    facts: EncoderFacts
    # The sides for which a warning about missing features was logged.
    _warned: set[str] = field(default_factory=set, init=False, compare=False)

    @classmethod
    def of_version(cls, lineage: Lineage, version: int | str | None = None) -> Self:
        """Return the encoder of a version of a lineage, by default the production version.

        Raises: UnknownVersionError. LineageError: the version came from a file without an encoder.
        """
        number = lineage.resolve(version)
        record, state, vocabularies = lineage.reader(number).encoder()
        manifest = lineage.manifest(number)
        facts = EncoderFacts(
            name=manifest.name,
            version=number,
            fingerprint=manifest.fingerprint,
            dim=manifest.dim,
            created=manifest.created,
        )
        module = _restored(record, state, vocabularies, f"version {number}")
        return cls(module, record, facts)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Load an encoder that `save_pretrained` wrote. Checks the hash of each file; reads only
        safetensors and JSON.

        Raises: DataError: there is no such folder. IntegrityError: it is damaged. FormatError: it
            was written by a later Evergram.
        """
        folder = Path(folder)
        path = folder / CONFIG
        try:
            config = _Config.of_json(path.read_bytes(), path)
        except OSError as error:
            raise DataError(
                f"{folder} is not a folder that save_pretrained wrote: {CONFIG} cannot be read "
                f"({reason_and_remedy(error)})."
            ) from error
        if missing := set(HASHED) - config.files.keys():
            raise IntegrityError(f"{path} is damaged: it does not list {min(missing)}.")
        check_files(folder, {name: config.files[name] for name in HASHED})
        vocabularies = _read_vocabularies(folder / VOCABULARIES, config.encoder)
        state = load_tensors(folder / TENSORS)
        module = _restored(config.encoder, state, vocabularies, str(folder))
        return cls(module, config.encoder, config.of)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the encoder atomically to a new folder: safetensors, JSON, and a README.md that
        explains how to load it.

        Raises: DataError: the folder exists, or cannot be written.
        """
        folder = Path(folder)
        if folder.exists():
            raise DataError(f"{folder} already exists; give another folder, or remove it first.")
        keys = {}
        for name, vocabulary in self.module.schema.vocabularies.items():
            # JSON has no times, infinities or NaNs, so all keys but integers are written as text.
            column = vocabulary.keys
            column = column if pa.types.is_integer(column.type) else column.cast(pa.string())
            keys[name] = column.to_pylist()
        try:
            with new_folder(folder) as temporary:
                save_tensors(self.module.state_dict(), temporary / TENSORS)
                text = json.dumps(keys, ensure_ascii=False)
                (temporary / VOCABULARIES).write_text(f"{text}\n", encoding="utf-8")
                (temporary / CARD).write_text(self._card(folder), encoding="utf-8")
                config = _Config(
                    format_version=FORMAT_VERSION,
                    evergram=package_version("evergram"),
                    encoder=self.record,
                    of=self.facts,
                    files={name: sha256(temporary / name) for name in HASHED},
                )
                (temporary / CONFIG).write_text(config.to_json(), encoding="utf-8")
        except OSError as error:
            raise DataError(f"{folder} cannot be written: {reason_and_remedy(error)}.") from error

    def __repr__(self) -> str:
        return f"PretrainedEncoder({self.record.kind}, dim {self.dim}, {self.facts.name})"

    @property
    def kind(self) -> str:
        """The kind of encoder, such as "two_tower"."""
        return self.record.kind

    @property
    def dim(self) -> int:
        """D, the length of its vectors."""
        return self.module.dim

    @property
    def features(self) -> dict[str, list[str]]:
        """The inputs of each side: "id", and the names of features."""
        return {side: list(inputs) for side, inputs in self.module.schema.inputs.items()}

    def to(self, device: str | torch.device) -> Self:
        """Move the encoder to a device, in place, and return it."""
        self.module.to(device)
        return self

    def encode(
        self, objects: Any, side: str = SIDE, *, batch_size: int = 4096
    ) -> npt.NDArray[np.float32]:
        """Return the embeddings of objects, [B, D] float32, in order.

        Without its features, an object's vector differs from its published vector; a warning lists
        missing features, once for each side.

        Args:
            objects: ids, in a list, an array or a column; a mapping for each object; or a table
                (pandas, Polars or Arrow). Mappings and tables have the id as "id", and features by
                name, each a key or a list of keys. Or a `Corpus`, for all objects of its side;
                encoders that need a graph take nothing else.
            side: "query" or "candidate".
            batch_size: number of objects to embed at once.
        Raises: DataError: the side or a feature is unknown, or the encoder knows nothing about an
            object. LineageError: the encoder needs a graph, but the input is not a Corpus.
        """
        if batch_size < 1:
            raise DataError(f"batch_size is {batch_size}; it must be at least 1.")
        if isinstance(objects, Corpus):
            return self._of_corpus(objects, side).numpy()
        module = self.module
        if not isinstance(module, RowEncoder):
            raise LineageError(
                f"{self.record.kind} embeds an object from its interactions, so it needs the whole "
                "graph: give encode() a Corpus, or read stored embeddings with evergram.Reader."
            )
        columns = columns_of(objects)
        inputs = checked_inputs(columns, side, module.schema)
        self._warn_without_features(side, columns, inputs.ids >= 0)
        embeddings: Embeddings = module(Scene({side: inputs}).to(module.device))
        blocks = (block.float().cpu() for block in embeddings.blocks(side, batch_size))
        return join_blocks(blocks, len(inputs), self.dim).numpy()

    def _of_corpus(self, corpus: Corpus, side: str) -> Tensor:
        names_of(side, self.module.schema)  # refuses an unknown side
        scene = self.module.read(corpus).to(self.module.device)
        entities = corpus.sides[side]
        refuse_other_ids(entities.vocabulary.keys, side, self.module.schema)
        refuse_unknown(self.module.known(side, scene).cpu(), {ID: entities.vocabulary.keys})
        is_known_id = self.module.schema.ids(side).rows(entities.vocabulary.keys) >= 0
        self._warn_without_features(side, entities.features, is_known_id)
        return self.module.embed_all(scene)[side].float().cpu()

    def _warn_without_features(
        self, side: str, features: Collection[str], is_known_id: Tensor
    ) -> None:
        """Warn once for each side if there are known ids (bool [B]) but features are missing."""
        names = names_of(side, self.module.schema)
        missing = [name for name in names if name != ID and name not in features]
        if not missing or side in self._warned or not bool(is_known_id.any()):
            return
        self._warned.add(side)
        example = ", ".join(f'"{name}": …' for name in (ID, *missing))
        log.warning(
            "%d of %d objects of side %r are known by id, but are embedded without %s, which "
            "their published vectors include: pass the features, too, as encode([{%s}, …]) or as "
            "columns of a table, or read the published vectors with evergram.Reader.",
            int(is_known_id.sum()),
            len(is_known_id),
            side,
            ", ".join(missing),
            example,
        )

    def _card(self, folder: Path) -> str:
        """Return a Markdown model card with YAML front matter for huggingface_hub."""
        sides = "\n".join(
            f"- {side}: {', '.join(f'`{name}`' for name in inputs)}"
            for side, inputs in self.features.items()
        )
        address = json.dumps(str(folder), ensure_ascii=False)
        return f"""---
library_name: evergram
tags:
- embeddings
- {self.kind}
---

# {self.facts.name}

Kind `{self.kind}`, {self.dim} dimensions, published on {self.facts.created} in the space
`{self.facts.fingerprint}`. Its inputs:

{sides}

```python
from evergram import PretrainedEncoder  # pip install evergram

vectors = PretrainedEncoder.from_pretrained({address}).encode(objects, side="{SIDE}")
```
"""


def _read_vocabularies(path: Path, record: EncoderRecord) -> dict[str, Vocabulary]:
    """Read an encoder's vocabularies from JSON."""
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
        vocabularies = {}
        for name, kind in record.vocabularies.items():
            column = pa.array(keys[name], pa.int64() if kind == "int64" else pa.string())
            vocabularies[name] = Vocabulary(column.cast(pa.type_for_alias(kind)))
    except (ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise IntegrityError(
            f"{path} does not have the encoder's vocabularies: {error}."
        ) from error
    return vocabularies


def _restored(
    record: EncoderRecord,
    state: Mapping[str, Tensor],
    vocabularies: Mapping[str, Vocabulary],
    what: str,
) -> Encoder:
    if record.kind in ENCODERS and not ENCODERS[record.kind].made_by_recipe:
        raise LineageError(
            f"The encoder of {what} consists of modules that the lineage does not contain; give "
            "them as evergram.load_encoder(lineage, version, EncoderModules(…)). Its embeddings "
            "can be read without them."
        )
    module = restore_encoder(record.kind, record.options, record.inputs, state, vocabularies, what)
    return module.requires_grad_(False)
