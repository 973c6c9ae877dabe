"""The manifest of a version, its fingerprint, and the hashes of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import to_json

from evergram.errors import IntegrityError
from evergram.lineage.paths import is_name
from evergram.lineage.record import ChecksummedRecord, FrozenRecord
from evergram.texts.record import TextEncoderRecord

KIND = r"^[a-z][a-z0-9_]{0,63}$"


class EncoderRecord(FrozenRecord):
    """The structure of the encoder whose tensors are in `encoder.safetensors`.

    `kind` is a name in `evergram.encoders.kinds`, by which the encoder is restored; "module" is an
    encoder of the user's own modules, which must be passed again when it is read.
    """

    kind: str = Field(pattern=KIND)
    options: dict[str, Any]
    # For each side, input name to vocabulary name.
    inputs: dict[str, dict[str, str]]
    # Vocabulary name to the type of its keys: of ids and categories, of numbers, of times.
    vocabularies: dict[str, Literal["int64", "string", "double", "timestamp[us]"]]


class TransformRecord(FrozenRecord):
    """The structure of the transform whose tensors are in `transform.safetensors`.

    `kind` is a name in `evergram.compatibility.kinds`, the user's own kinds included.
    """

    kind: str = Field(pattern=KIND)
    options: dict[str, Any] = Field(default_factory=dict)


def fingerprint_of(manifest: Mapping[str, Any]) -> str:
    """Return the identity of a version's space: "sha256:" and 64 hexadecimal digits.

    It is a hash of the hashes of the encoder's tensors and vocabularies, of how it is built and
    normalised, of the recipe and of D; for a version from files, of the hashes of its vectors and
    of D. The number, the name, the time and the Evergram that made it are left out, so that the
    same training always has the same fingerprint.

    Args:
        manifest: the fields of a `Manifest`.
    """
    encoder, files = manifest["encoder"], manifest["files"]
    if encoder is None:
        identity = {"dim": manifest["dim"], "embeddings": manifest["embeddings"]}
    else:
        identity = {
            "dim": manifest["dim"],
            "encoder": {name: getattr(encoder, name) for name in ("kind", "options", "inputs")},
            "weights": files.get("encoder.safetensors"),
            "vocabularies": files.get("vocabularies.parquet"),
            "recipe": manifest["recipe"],
        }
    plain = json.loads(to_json(identity, inf_nan_mode="null"))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


class Manifest(ChecksummedRecord):
    """The contents of `versions/<n>/manifest.json`."""

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
    # Side to SHA-256, of the file of embeddings that is stored while this version is the newest.
    embeddings: dict[str, str]
    # The encoder of text that made the vectors of a version from files, if it is known.
    text_encoder: TextEncoderRecord | None = None
    # The relative error of the transform on canaries of this version and of the one before, if
    # both have some.
    canary_error: float | None = None
    # The identity of the version's space.
    fingerprint: str = Field(default_factory=fingerprint_of)

    @property
    def cuts(self) -> tuple[int, ...]:
        """The numbers of first coordinates that its vectors may be cut to; D is not among them."""
        return () if self.text_encoder is None else tuple(self.text_encoder.matryoshka)

    @property
    def source_fingerprint(self) -> str | None:
        """The fingerprint that the file of a version from files carried; None if it had none."""
        settings = self.recipe.get("import") or self.recipe.get("align")
        carried = settings.get("fingerprint") if isinstance(settings, dict) else None
        return carried if isinstance(carried, str) else None

    @field_validator("files", "embeddings")
    @classmethod
    def _stay_in_the_folder(cls, value: dict[str, str]) -> dict[str, str]:
        # They become paths that are read from and written to.
        for name in value:
            if not is_name(name):
                raise ValueError(f"{name!r} cannot be the name of a file or a side")
        return value

    @model_validator(mode="after")
    def _identified(self) -> Self:
        if self.fingerprint != fingerprint_of(vars(self)):
            raise ValueError("its fingerprint is not that of its contents")
        return self


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest in a version's folder. Raises: IntegrityError: missing or damaged."""
    path = folder / "manifest.json"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise IntegrityError(
            f"{path} cannot be read: {error.strerror}; restore it from a copy of the lineage."
        ) from error
    return Manifest.of_json(text, path)


def check_files(folder: Path, hashes: Mapping[str, str]) -> None:
    """Compare files with their hashes.

    Args:
        hashes: file name in the folder to SHA-256.
    Raises: IntegrityError: a file is missing, or is not the file that was published.
    """
    for name, published in hashes.items():
        path = folder / name
        if not path.is_file():
            raise IntegrityError(f"{path} is missing; restore it from a copy of the lineage.")
        if sha256(path) != published:
            raise IntegrityError(
                f"{path} is not the file that was published (its SHA-256 differs); "
                "restore it from a copy of the lineage."
            )
