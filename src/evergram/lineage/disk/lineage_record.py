"""`lineage.json`: the versions of a lineage, their labels, and those that were withdrawn."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from evergram.errors import FormatError, IntegrityError, LineageError
from evergram.lineage.disk.names import is_name
from evergram.validation import sentence_of

FORMAT_VERSION = 1


class FrozenRecord(BaseModel):
    """A JSON record that never changes once it is made, and that has no field but its own."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class ChecksumError(ValueError):
    """A record's checksum is not that of its fields; the caller knows which file it is."""


class ChecksummedRecord(FrozenRecord):
    """A JSON record with a checksum over its other fields, so that a flipped bit cannot move a
    label.

    Args:
        check: SHA-256 of the other fields, as it was read; `to_json` computes it anew.
    """

    check: str = ""

    @classmethod
    def of_json(cls, text: str | bytes) -> Self:
        """Return the record in a file, after comparing its checksum.

        Raises: ValidationError: it is no such record. ChecksumError: it was changed, or has no
            checksum.
        """
        record = cls.model_validate_json(text)
        written = json.loads(text)
        if "check" not in written:
            raise ChecksumError("it has no checksum")
        if written.pop("check") != _digest(written):
            raise ChecksumError("its checksum is not that of its contents")
        return record

    def to_json(self) -> str:
        """Return the text to write to a file: the record with its checksum."""
        fields = json.loads(self.model_dump_json(exclude={"check"}))
        sealed = self.model_copy(update={"check": _digest(fields)})
        return sealed.model_dump_json(indent=2)


def _digest(value: dict[str, Any]) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class Withdrawal(FrozenRecord):
    """A version that was withdrawn: its fingerprint, the reason, and the time."""

    fingerprint: str
    reason: str
    when: str


class LineageRecord(ChecksummedRecord):
    """The contents of `lineage.json`.

    Args:
        versions: published and not withdrawn, ascending; with the retired ones.
        labels: name to version.
        withdrawn: by number, which is never used again.
        retired: versions that are no longer read, though the chain still leads through them.
        salt: of the hash that chooses the held-out pairs, from the recipe of version 0; None in a
            lineage of files.
    """

    format_version: int
    name: str
    versions: list[int]
    labels: dict[str, int] = {}
    withdrawn: dict[int, Withdrawal] = {}
    retired: list[int] = []
    salt: str | None = None

    @property
    def next_version(self) -> int:
        """The number of the next version."""
        return len(self.versions) + len(self.withdrawn)

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not is_name(value):
            raise ValueError(f"{value!r} cannot be the name of a lineage")
        return value

    @field_validator("labels")
    @classmethod
    def _labels_are_names(cls, value: dict[str, int]) -> dict[str, int]:
        for label in value:
            if not is_name(label):
                raise ValueError(f"{label!r} cannot be a label")
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        numbers = [*self.versions, *self.withdrawn]
        if self.versions != sorted(self.versions) or sorted(numbers) != list(range(len(numbers))):
            raise ValueError("its versions are not numbered one after the other")
        if not set(self.labels.values()) | set(self.retired) <= set(self.versions):
            raise ValueError("it names a version that is not among its versions")
        return self


def read_record(path: Path) -> LineageRecord:
    """Return the record in a file. Raises: as `parse_record`."""
    try:
        text = path.read_bytes() if path.exists() else None
    except OSError as error:
        raise LineageError(
            f"{path} cannot be read: {error.strerror}; let this user read it."
        ) from error
    return parse_record(text, str(path.parent))


def parse_record(text: str | bytes | None, where: str) -> LineageRecord:
    """Return the record of a lineage from the text of its `lineage.json`.

    Args:
        text: None if there is no such file.
        where: the lineage's folder or address.
    Raises: LineageError: there is no file. FormatError: it is of a later format. IntegrityError: it
        is damaged.
    """
    path = f"{where}/lineage.json"
    if text is None:
        raise LineageError(
            f"{where} is not a lineage (it has no lineage.json); "
            "'evergram train RECIPE.toml --lineage DIR' makes one."
        )
    try:
        # The rest of a later format's fields may mean anything.
        header = _Format.model_validate_json(text)
        if header.format_version != FORMAT_VERSION:
            raise FormatError(
                f"{path} has format_version {header.format_version}; this Evergram reads "
                f"{FORMAT_VERSION}, so upgrade Evergram to read it."
            )
        return LineageRecord.of_json(text)
    except (ValidationError, ChecksumError) as error:
        problem = first_problem(error, LineageRecord)
        raise IntegrityError(f"{path} is damaged: {problem}; restore it from a backup.") from error


class _Format(BaseModel):
    format_version: int


def first_problem(error: ValidationError | ChecksumError, model: type[BaseModel]) -> str:
    """Return which field of a record is wrong, and why, without a full stop."""
    if isinstance(error, ChecksumError):
        return str(error)
    return sentence_of(error, model).rstrip(".")
