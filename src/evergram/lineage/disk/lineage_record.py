"""`lineage.json`: which versions there are, what they are called, and which are no more."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from evergram.errors import FormatError, IntegrityError, LineageError
from evergram.lineage.disk.names import is_name
from evergram.validation import sentence_of

FORMAT_VERSION = 4
READABLE = (1, 2, 3, 4)


class FrozenRecord(BaseModel):
    """What is read from a lineage's JSON: nothing is left out silently, nothing changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ChecksumError(ValueError):
    """JSON that is not what was written; its reader says which file that is."""


class ChecksummedRecord(FrozenRecord):
    """What holds the SHA-256 of the rest of itself, from format 3 on: a label that a flipped bit
    has moved would otherwise give out vectors of another version."""

    check: str = ""

    @classmethod
    def of_json(cls, text: str | bytes) -> Self:
        """What was read is compared as it is written there, so that a field of a later Evergram,
        which the file does not have, changes nothing.

        Raises: ValidationError, ChecksumError: it is not what was written.
        """
        found = cls.model_validate_json(text)
        if "check" in found.model_fields_set:
            written = json.loads(text)
            if written.pop("check") != _digest(written):
                raise ChecksumError("its checksum is not that of what it says")
        return found

    def checked(self) -> Self:
        """With the checksum of what will be written."""
        object.__setattr__(
            self, "check", _digest(json.loads(self.model_dump_json(exclude={"check"})))
        )
        return self


def _digest(value: dict[str, Any]) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class Withdrawal(FrozenRecord):
    """What stays of a version that was taken back."""

    fingerprint: str
    reason: str
    when: str


class LineageRecord(ChecksummedRecord):
    """`lineage.json`.

    Args:
        versions: that are published and not withdrawn, ascending; retired ones are among them.
        labels: name to version.
        withdrawn: by number; the number is never used again.
        retired: versions that are no longer read, but that the chain leads through.
        salt: what decides which pairs are held out, by the recipe of version 0; None in a lineage
            of files, and in one that is older than format 4.
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
    def _can_be_shown(cls, value: str) -> str:
        # Older lineages may have names that `create` would refuse today.
        if not value.isprintable():
            raise ValueError("it has characters that cannot be printed")
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
            raise ValueError("it names a version that there is not")
        return self.checked()


def read_record(path: Path) -> LineageRecord:
    """Raises: as `parse_record`."""
    try:
        text = path.read_bytes() if path.exists() else None
    except OSError as error:
        raise LineageError(f"{path} cannot be read: {error.strerror}.") from error
    return parse_record(text, str(path.parent))


def parse_record(text: str | bytes | None, where: str) -> LineageRecord:
    """The record of the lineage at `where`, from its text; None where there is no file of it.

    Raises: LineageError: not a lineage. FormatError: of a later format.
    """
    path = f"{where}/lineage.json"
    if text is None:
        raise LineageError(
            f"{where} is not a lineage (it has no lineage.json); "
            "'evergram train RECIPE.toml --lineage DIR' makes one."
        )
    try:
        # Of a later format nothing but its number can be counted on.
        found = _Format.model_validate_json(text)
        if found.format_version not in READABLE:
            raise FormatError(
                f"{path} has format_version {found.format_version}; this Evergram reads "
                f"{READABLE[0]} to {READABLE[-1]}, so upgrade Evergram to read it."
            )
        record = LineageRecord.of_json(text)
    except (ValidationError, ChecksumError) as error:
        problem = first_problem(error, LineageRecord)
        raise IntegrityError(f"{path} is damaged: {problem}.") from error
    if record.format_version >= 3 and not record.model_fields_set & {"check"}:
        raise IntegrityError(f"{path} is damaged: it has no checksum.")
    return record


class _Format(BaseModel):
    format_version: int


def first_problem(error: ValidationError | ChecksumError, model: type[BaseModel]) -> str:
    """Where JSON is not what it should be, and why, without a full stop."""
    if isinstance(error, ChecksumError):
        return str(error)
    return sentence_of(error, model).rstrip(".")
