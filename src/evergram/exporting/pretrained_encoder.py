"""A published encoder that embeds any object, from a lineage or a folder of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from evergram.atomic_files import new_folder, remove_folder
from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.encoder import Encoder
from evergram.encoders.encoder_inputs import (
    ID,
    checked_inputs,
    columns_of,
    missing_features,
    refuse_other_ids,
    refuse_unknown,
)
from evergram.encoders.factory import restore_encoder
from evergram.encoders.kinds import ENCODERS
from evergram.encoders.row_encoder import RowEncoder
from evergram.errors import DataError, IntegrityError, LineageError, reason_and_remedy
from evergram.kinds import kinds_where
from evergram.lineage.artefact import load_tensors, plain_numbers, save_tensors
from evergram.lineage.diagnosis import sample_sentence, standard_errors, with_error
from evergram.lineage.lineage import Lineage
from evergram.lineage.record import (
    FORMAT_VERSION,
    ChecksummedRecord,
    EncoderRecord,
    FrozenRecord,
    check_files,
    sha256,
)

SIDE = "candidate"

CONFIG, TENSORS, VOCABULARIES = "config.json", "model.safetensors", "vocabularies.json"
METRICS, CARD = "metrics.json", "README.md"
HASHED = (TENSORS, VOCABULARIES, METRICS)
log: logging.Logger = logging.getLogger(__name__)


class EncoderFacts(FrozenRecord):
    """The version that an encoder is of: its `name` is such as "shop@v3", the `fingerprint` of its
    space, and it was `created` when it was published."""

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
    # File name to SHA-256, of every other file that is read.
    files: dict[str, str]


@dataclass(frozen=True, repr=False)
class PretrainedEncoder:
    """An encoder of a published version, or of a folder that `save_pretrained` wrote.

        encoder = PretrainedEncoder.of_version(Lineage.open("shop"))
        vectors = encoder.encode([17, 42], side="query")                     # [2, D]
        vectors = encoder.encode([{"genre": ["drama"]}], side="candidate")   # an object without id

    Args:
        module: the `nn.Module`, in evaluation mode.
        record: how the module is built, and its inputs.
        facts: which version it is of.
        metrics: what was measured when that was published.
    """

    module: Encoder
    record: EncoderRecord
    facts: EncoderFacts
    metrics: Mapping[str, Any]
    # The sides for which it has warned that features are missing.
    _warned: set[str] = field(default_factory=set, init=False, compare=False)

    @classmethod
    def of_version(cls, lineage: Lineage, version: int | str | None = None) -> Self:
        """Return the encoder of a version of a lineage, by default production's.

        Raises: UnknownVersionError. LineageError: the version came from a file and has no encoder.
        """
        number = lineage.resolve(version)
        record, state, vocabularies = lineage.encoder_parts(number)
        manifest = lineage.manifest(number)
        facts = EncoderFacts(
            name=manifest.name,
            version=number,
            fingerprint=manifest.fingerprint,
            dim=manifest.dim,
            created=manifest.created,
        )
        module = _restored(record, state, vocabularies, f"version {number}")
        return cls(module, record, facts, lineage.metrics(number))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Return the encoder that `save_pretrained` wrote. Each file is compared with its hash;
        nothing but safetensors and JSON is read.

        Raises: DataError: there is no such folder. IntegrityError: it is damaged. FormatError: it
            was written by a later Evergram.
        """
        folder = Path(folder)
        config = _read_config(folder)
        check_files(folder, {name: config.files[name] for name in HASHED})
        vocabularies = _read_vocabularies(folder / VOCABULARIES, config.encoder)
        metrics = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        state = load_tensors(folder / TENSORS)
        module = _restored(config.encoder, state, vocabularies, str(folder))
        return cls(module, config.encoder, config.of, metrics)

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the encoder to a folder, whole or not at all: safetensors, JSON, and a README.md
        made from its metrics.

        Args:
            overwrite: whether to replace a folder that is there.
        Raises: DataError: the folder is there already, or cannot be written.
        """
        folder = Path(folder)
        if folder.exists() and not overwrite:
            raise DataError(
                f"{folder} is there already and is not written over; give another folder, or "
                "overwrite=True."
            )
        if folder.exists() and not (folder / CONFIG).is_file():
            raise DataError(
                f"{folder} holds no encoder, so it is not replaced; give another folder."
            )
        card = model_card(self.record, self.facts, self.metrics, str(folder))
        # As text, which JSON has of every number and time; integers are what they are.
        keys = {
            name: (
                v.keys if pa.types.is_integer(v.keys.type) else v.keys.cast(pa.string())
            ).to_pylist()
            for name, v in self.module.schema.vocabularies.items()
        }
        try:
            with new_folder(folder) as part:
                save_tensors(self.module.state_dict(), part / TENSORS)
                _write_json(part / VOCABULARIES, keys)
                _write_json(part / METRICS, plain_numbers(self.metrics))
                (part / CARD).write_text(card, encoding="utf-8")
                config = _Config(
                    format_version=FORMAT_VERSION,
                    evergram=package_version("evergram"),
                    encoder=self.record,
                    of=self.facts,
                    files={name: sha256(part / name) for name in HASHED},
                )
                (part / CONFIG).write_text(config.to_json(), encoding="utf-8")
                if folder.exists():
                    remove_folder(folder)
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
        """The inputs of an object of each side: "id", and the names of features."""
        return {side: list(inputs) for side, inputs in self.module.schema.inputs.items()}

    def to(self, device: str | torch.device) -> Self:
        """Move the encoder to a device, in place. Returns: itself."""
        self.module.to(device)
        return self

    @overload
    def encode(
        self,
        objects: Any,
        side: str = SIDE,
        *,
        batch_size: int = 4096,
        show_progress_bar: bool = False,
        convert_to_numpy: Literal[True] = True,
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def encode(
        self,
        objects: Any,
        side: str = SIDE,
        *,
        batch_size: int = 4096,
        show_progress_bar: bool = False,
        convert_to_numpy: Literal[False],
    ) -> Tensor: ...

    def encode(
        self,
        objects: Any,
        side: str = SIDE,
        *,
        batch_size: int = 4096,
        show_progress_bar: bool = False,
        convert_to_numpy: bool = True,
    ) -> npt.NDArray[np.float32] | Tensor:
        """Return the embeddings of objects, [B, D] float32 in their order.

        An object that is given by its id alone is embedded without its features, which is not the
        published vector: a warning names the features, once for each side.

        Args:
            objects: ids, in a list, an array or a column; a mapping for each object; or a table
                (pandas, Polars or Arrow). Mappings and tables have the id as "id", and features by
                name, each a key or a list of keys. Or a `Corpus`, for all of its side: that is the
                only input of encoders that need a graph.
            side: "query" or "candidate".
            batch_size: objects that are embedded at once.
            show_progress_bar: on stderr.
            convert_to_numpy: a NumPy array; else a tensor on the CPU.
        Raises: DataError: no such side or feature, or an object of which the encoder knows nothing.
            LineageError: the encoder needs a graph, and a Corpus was not given.
        """
        if batch_size < 1:
            raise DataError(f"batch_size is {batch_size}; it must be at least 1.")
        if isinstance(objects, Corpus):
            vectors = self._of_corpus(objects, side)
        else:
            blocks = list(self._blocks(objects, side, batch_size, show_progress_bar))
            vectors = torch.cat(blocks) if blocks else torch.zeros(0, self.dim)
        return vectors.numpy() if convert_to_numpy else vectors

    def _of_corpus(self, corpus: Corpus, side: str) -> Tensor:
        sides = self.module.schema.inputs
        if side not in sides:
            raise DataError(f"There is no side {side!r}; there is {' and '.join(sides)}.")
        scene = self.module.read(corpus).to(self.module.device)
        entities = corpus.queries if side == "query" else corpus.candidates
        refuse_other_ids(entities.vocabulary.keys, side, self.module.schema)
        refuse_unknown(self.module.known(side, scene).cpu(), {ID: entities.vocabulary.keys})
        is_known_id = self.module.schema.ids(side).rows(entities.vocabulary.keys) >= 0
        self._warn_without_features(side, entities.features, is_known_id)
        return self.module.embed_all(scene)[side].float().cpu()

    def _blocks(
        self, objects: Any, side: str, batch_size: int, show_progress_bar: bool
    ) -> Iterator[Tensor]:
        module = self.module
        if not isinstance(module, RowEncoder):
            raise LineageError(
                f"{self.record.kind} embeds an object by whom it has met, so it needs the whole "
                "graph: give encode() a Corpus, or read stored embeddings by evergram.Reader."
            )
        columns = columns_of(objects)
        inputs = checked_inputs(columns, side, module.schema)
        self._warn_without_features(side, columns, inputs.ids >= 0)
        blocks: Iterable[Tensor] = module.blocks(side, inputs, batch_size)
        if show_progress_bar:
            batches = -(-len(inputs) // batch_size)
            blocks = track(blocks, "Encoding", total=batches, console=Console(stderr=True))
        for block in blocks:
            yield block.float().cpu()

    def _warn_without_features(
        self, side: str, features: Collection[str], is_known_id: Tensor
    ) -> None:
        """Warn once for each side of known ids, bool [B], with none of the values of a feature."""
        missing = missing_features(features, side, self.module.schema)
        if not missing or side in self._warned or not bool(is_known_id.any()):
            return
        self._warned.add(side)
        example = ", ".join(f'"{name}": …' for name in (ID, *missing))
        log.warning(
            "%d of %d objects of side %r are known by id, and are embedded without %s, which "
            "their published vectors include: pass the features too, as encode([{%s}, …]) or as "
            "columns of a table, or read the published vectors by evergram.Reader.",
            int(is_known_id.sum()),
            len(is_known_id),
            side,
            ", ".join(missing),
            example,
        )


def _read_config(folder: Path) -> _Config:
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
    return config


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_vocabularies(path: Path, record: EncoderRecord) -> dict[str, Vocabulary]:
    """Return the vocabularies of an encoder."""
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Vocabulary(
                pa.array(keys[name], pa.int64() if kind == "int64" else pa.string()).cast(
                    pa.type_for_alias(kind)
                )
            )
            for name, kind in record.vocabularies.items()
        }
    except (ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise IntegrityError(
            f"{path} does not hold the encoder's vocabularies: {error}."
        ) from error


def model_card(
    record: EncoderRecord, facts: EncoderFacts, metrics: Mapping[str, Any], address: str
) -> str:
    """Return a model card in Markdown, for a folder at an address, with facts and metrics as they
    were published. The front matter is YAML, as huggingface_hub's `ModelCard` reads it."""
    sides = "\n".join(
        f"| {side} | {', '.join(f'`{name}`' for name in inputs)} |"
        for side, inputs in record.inputs.items()
    )
    measured = "\n".join(_measured(metrics)) or "Nothing was measured when it was published."
    return f"""---
library_name: evergram
tags:
- embeddings
- {record.kind}
---

# {facts.name}

An embedding model of kind `{record.kind}` with {facts.dim} dimensions, published on
{facts.created}. Its vectors are in the space `{facts.fingerprint}`.

```python
from evergram import PretrainedEncoder

encoder = PretrainedEncoder.from_pretrained({json.dumps(address, ensure_ascii=False)})
{_calls(record)}
```

It needs `pip install evergram`. The files are safetensors and JSON, and each is compared with its
SHA-256 in `config.json` when it is loaded.

| side | what it reads of an object |
|---|---|
{sides}

## Measured at publication

{measured}
"""


def _calls(record: EncoderRecord) -> str:
    """Return a call of `encode` for each side, with all that the encoder reads of an object."""
    if record.kind in kinds_where(ENCODERS, "needs_graph"):
        return "\n".join(
            f'vectors = encoder.encode(corpus, side="{side}")  # an evergram.Corpus'
            for side in record.inputs
        )
    calls = []
    for side, inputs in record.inputs.items():
        features = [name for name in inputs if name != "id"]
        objects = ", ".join(f'"{name}": [KEYS]' for name in features)
        objects = f'[{{"id": ID, {objects}}}, ...]' if features else "[ID, ...]"
        calls.append(f'vectors = encoder.encode({objects}, side="{side}")')
    return "\n".join(calls)


def _measured(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the metrics that are numbers."""
    if isinstance(metrics.get("untested"), str):
        yield f"{metrics['untested']}\n"
    ranking = metrics.get("metrics", {}).get("model", {})
    if ranking:
        yield "| metric | value |"
        yield "|---|---|"
        errors = standard_errors(metrics.get("sampled"), "model")
        for name, value in ranking.items():
            yield f"| {name} | {with_error(_number(value), errors.get(name))} |"
        if (sentence := sample_sentence(metrics.get("sampled"))) is not None:
            yield f"\n{sentence}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "not measured"


def _restored(
    record: EncoderRecord,
    state: Mapping[str, Tensor],
    vocabularies: Mapping[str, Vocabulary],
    what: str,
) -> Encoder:
    if record.kind in ENCODERS and not ENCODERS[record.kind].made_by_recipe:
        raise LineageError(
            f"The encoder of {what} is made of modules that the lineage does not hold; give them "
            "as evergram.load_encoder(lineage, version, EncoderModules(…)). Its embeddings can be "
            "read without them."
        )
    module = restore_encoder(record.kind, record.options, record.inputs, state, vocabularies, what)
    return module.requires_grad_(False)
