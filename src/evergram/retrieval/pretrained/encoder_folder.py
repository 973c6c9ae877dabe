"""An encoder in a folder of its own, in safetensors and JSON, to be used without its lineage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from evergram.atomic_files import new_folder, remove_folder
from evergram.data.corpus import Vocabulary
from evergram.errors import DataError, FormatError, IntegrityError
from evergram.lineage.disk.manifest import EncoderRecord, check_files, sha256
from evergram.lineage.disk.plain_json import plain_numbers
from evergram.lineage.disk.tensor_files import load_tensors, save_tensors
from evergram.system_errors import reason_and_remedy
from evergram.validation import sentence_of

FORMAT_VERSION = 1
CONFIG, TENSORS, VOCABULARIES = "config.json", "model.safetensors", "vocabularies.json"
METRICS, CARD = "metrics.json", "README.md"
READ_FILES = (CONFIG, TENSORS, VOCABULARIES, METRICS)


class EncoderFacts(BaseModel):
    """The version that an encoder is of.

    Args:
        name: such as "shop@v3".
        fingerprint: of the space that its vectors are in.
        dim: D.
        created: when the version was published.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    name: str
    version: int
    fingerprint: str
    dim: int
    created: str


class _Config(BaseModel):
    """`config.json`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    format_version: int
    evergram: str
    encoder: EncoderRecord
    of: EncoderFacts
    # File name to SHA-256, of every other file that is read.
    files: dict[str, str]


@dataclass(frozen=True)
class EncoderFolder:
    """The contents of an encoder's folder.

    Args:
        record: how the encoder is built.
        facts, metrics: the version that it is of, and what was measured of that.
        state, vocabularies: its tensors, and the keys that their rows are for.
    """

    record: EncoderRecord
    facts: EncoderFacts
    metrics: Mapping[str, Any]
    state: Mapping[str, Tensor]
    vocabularies: Mapping[str, Vocabulary]


def write_encoder_folder(
    folder: Path, encoder: EncoderFolder, card: str, *, overwrite: bool
) -> None:
    """Write an encoder to a folder, whole or not at all.

    Args:
        card: the text of README.md.
    Raises: DataError: the folder is there already and may not be replaced, or cannot be written.
    """
    if folder.exists() and not overwrite:
        raise DataError(
            f"{folder} is there already and is not written over; give another folder, or "
            "overwrite=True."
        )
    if folder.exists() and not (folder / CONFIG).is_file():
        raise DataError(f"{folder} holds no encoder, so it is not replaced; give another folder.")
    # As text, which JSON has of every number and time; integers are what they are.
    keys = {
        name: (v.keys if pa.types.is_integer(v.keys.type) else v.keys.cast(pa.string())).to_pylist()
        for name, v in encoder.vocabularies.items()
    }
    try:
        with new_folder(folder) as part:
            save_tensors(encoder.state, part / TENSORS)
            _write_json(part / VOCABULARIES, keys)
            _write_json(part / METRICS, plain_numbers(encoder.metrics))
            (part / CARD).write_text(card, encoding="utf-8")
            config = _Config(
                format_version=FORMAT_VERSION,
                evergram=package_version("evergram"),
                encoder=encoder.record,
                of=encoder.facts,
                files={name: sha256(part / name) for name in (TENSORS, VOCABULARIES, METRICS)},
            )
            (part / CONFIG).write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
            if folder.exists():
                remove_folder(folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {reason_and_remedy(error)}.") from error


def read_encoder_folder(folder: Path) -> EncoderFolder:
    """Return the encoder that `write_encoder_folder` wrote.

    Raises: DataError: there is no such folder. IntegrityError: it is damaged. FormatError: it was
        written by a later Evergram.
    """
    path = folder / CONFIG
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"{folder} is not a folder that save_pretrained wrote: {CONFIG} cannot be read "
            f"({reason_and_remedy(error)})."
        ) from error
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise IntegrityError(f"{path} is damaged: {error}.") from error
    try:
        version = raw.get("format_version") if isinstance(raw, dict) else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise FormatError(
                f"{path} has format_version {version}; this Evergram reads {FORMAT_VERSION}, so "
                "upgrade Evergram to read it."
            )
        config = _Config.model_validate(raw)
    except ValidationError as error:
        raise IntegrityError(f"{path} is damaged: {sentence_of(error, _Config)}") from error
    missing = {TENSORS, VOCABULARIES, METRICS} - config.files.keys()
    if missing:
        raise IntegrityError(f"{path} is damaged: it does not list {min(missing)}.")
    check_files(folder, {name: config.files[name] for name in (TENSORS, VOCABULARIES, METRICS)})
    vocabularies = _vocabularies(folder / VOCABULARIES, config.encoder)
    metrics = json.loads((folder / METRICS).read_text(encoding="utf-8"))
    state = load_tensors(folder / TENSORS)
    return EncoderFolder(config.encoder, config.of, metrics, state, vocabularies)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def _vocabularies(path: Path, record: EncoderRecord) -> dict[str, Vocabulary]:
    """Return the vocabularies of an encoder. Raises: IntegrityError: one is missing or damaged."""
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
