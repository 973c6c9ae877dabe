"""One version on disk: what its manifest says, and the checks that a reader makes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from evergram.compatibility.kinds import TransformKind
from evergram.errors import FormatError, IntegrityError, LineageError

FORMAT_VERSION = 2
READABLE = (1, 2)


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EncoderRecord(_Frozen):
    """How to build the encoder that `encoder.safetensors` fills; `kind` is from a closed list."""

    kind: Literal["factorization", "two_tower", "graphsage", "lightgcn"]
    options: dict[str, Any]
    # For each side, input name to vocabulary name.
    inputs: dict[str, dict[str, str]]
    # Vocabulary name to the type of its keys.
    vocabularies: dict[str, Literal["int64", "string"]]


class TransformRecord(_Frozen):
    """How to build the transform that `transform.safetensors` fills; a closed `kind`."""

    kind: TransformKind
    options: dict[str, Any] = {}


class Manifest(_Frozen):
    """`versions/<n>/manifest.json`."""

    version: int = Field(ge=0)
    name: str
    dim: int = Field(gt=0)
    created: str
    evergram: str
    # None for a version whose embeddings came from a file.
    encoder: EncoderRecord | None
    transform: TransformRecord | None
    # The whole recipe as it was run, and the seed with it.
    recipe: dict[str, Any]
    # File name to SHA-256, of every other file of the version.
    files: dict[str, str]
    # Side to SHA-256, of the embeddings that stand while this version is the newest.
    embeddings: dict[str, str]

    @property
    def fingerprint(self) -> str:
        return "sha256:" + hashlib.sha256(str((self.dim, self.files)).encode()).hexdigest()

    @field_validator("transform", mode="before")
    @classmethod
    def _of_format_1(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


class LineageRecord(_Frozen):
    """`lineage.json`: the versions that have been published, and nothing else has."""

    format_version: int
    name: str
    versions: list[int]


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_record(path: Path) -> LineageRecord:
    """Raises: LineageError: not a lineage. FormatError: of a later format."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise LineageError(
            f"{path.parent} is not a lineage (it has no {path.name}); "
            "'evergram train RECIPE.toml --lineage DIR' makes one."
        ) from None
    except OSError as error:
        raise LineageError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        record = LineageRecord.model_validate_json(text)
    except ValidationError as error:
        raise IntegrityError(f"{path} is damaged: {_first(error)}.") from error
    if record.format_version not in READABLE:
        raise FormatError(
            f"{path} has format_version {record.format_version}; this Evergram reads "
            f"{READABLE[0]} to {READABLE[-1]}, so upgrade Evergram to read it."
        )
    return record


def read_manifest(folder: Path) -> Manifest:
    """Raises: IntegrityError: it is missing or damaged."""
    path = folder / "manifest.json"
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise IntegrityError(f"{path} is damaged: {_first(error)}.") from error


def check_files(folder: Path, hashes: Mapping[str, str]) -> None:
    """Raises: IntegrityError: a file is missing or is not what was published."""
    for name, published in hashes.items():
        path = folder / name
        if not path.is_file():
            raise IntegrityError(f"{path} is missing; restore it from a copy of the lineage.")
        if sha256(path) != published:
            raise IntegrityError(
                f"{path} is not the file that was published (its SHA-256 differs); "
                "restore it from a copy of the lineage."
            )


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "its JSON"
    return f"{where}: {problem['msg']}"
