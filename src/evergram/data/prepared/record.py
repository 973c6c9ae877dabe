"""`PreparedRecord`: what `prepared.json` of a prepared folder says, see docs/large-data.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from evergram.errors import DataError, FormatError
from evergram.validation import sentence_of

NAME = "prepared.json"
FORMAT_VERSION: Final = 1

SideName: TypeAlias = Literal["query", "candidate"]
SIDES: tuple[SideName, SideName] = ("query", "candidate")
ColumnType: TypeAlias = Literal["int32", "int64", "float32", "float64"]


class _Lenient(BaseModel):
    # A later writer may add keys that this reader does not need.
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")


class SideRecord(_Lenient):
    """One side: the number of its entities, the type of their ids, and names of features."""

    entities: int = Field(ge=1)
    ids: Literal["int64", "string"]
    features: list[str]


class PartRecord(_Lenient):
    """What one run of prepare added, ordered by time.

    Args:
        folder: below the prepared folder, such as parts/00000; a damaged record leads nowhere else.
        entities: by side, entities after this part.
        sources: names of the files that it was made of.
        sha256: of the file of each column; a column without it is not checked.
    """

    folder: str = Field(pattern=r"^parts/[0-9]+$")
    interactions: int = Field(ge=1)
    entities: dict[str, int]
    first_time: int | float | None = None
    last_time: int | float | None = None
    sources: list[str]
    sha256: dict[str, str] = {}


class Choices(_Lenient):
    """What was left out of the interactions, which also holds for later appends."""

    unique: bool = False
    k_core: int = 0
    minimum_value: float | None = None
    columns: dict[str, str] = {}
    weights: dict[str, float] = {}


class PreparedRecord(_Lenient):
    """The whole record.

    Args:
        interactions: n, over all parts.
        columns: the type of each column of interactions that there is.
        times: how they were written, see `reading.rules.Clock`; "" without times.
        fingerprint: changes whenever the content of the folder does; it names a folder of derived
            files.
        entity_files: the SHA-256 of each file of entities; a file without it is not checked.
    """

    format_version: Literal[1]
    name: str
    shared_ids: bool
    interactions: int = Field(ge=1)
    sides: dict[SideName, SideRecord]
    columns: dict[str, ColumnType]
    times: str = ""
    parts: list[PartRecord]
    fingerprint: str = Field(pattern=r"^[A-Za-z0-9_-]{8,200}$")
    choices: Choices = Choices()
    entity_files: dict[str, str] = {}

    @model_validator(mode="after")
    def _agrees(self) -> PreparedRecord:
        total = sum(part.interactions for part in self.parts)
        if total != self.interactions:
            raise ValueError(
                f"it contradicts itself: {self.interactions:,} interactions, {total:,} in its parts"
            )
        if set(self.sides) != set(SIDES) or not set(SIDES) <= set(self.columns):
            raise ValueError(
                f"it contradicts itself: it has the sides {', '.join(self.sides) or 'none'} and "
                f"the columns {', '.join(self.columns) or 'none'}, and query and candidate must be "
                "among both"
            )
        return self

    @classmethod
    def load(cls, folder: Path) -> PreparedRecord:
        """Return the record of a prepared folder.

        Raises: DataError: the folder has no record, or its record is damaged.
            FormatError: a later Evergram wrote it.
        """
        path = folder / NAME
        try:
            values = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataError(
                f"{folder} is no prepared corpus, as it has no {NAME}, which `evergram prepare` "
                f"writes last; `evergram prepare SOURCE {folder}` makes one."
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or f"it is no JSON ({error})"
            raise DataError(f"{path} cannot be read: {why}; prepare the corpus again.") from error
        version = values.get("format_version") if isinstance(values, dict) else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise FormatError(
                f"{path} has format_version {version}, and this Evergram reads up to "
                f"{FORMAT_VERSION}; install a later one, or prepare the corpus again with this one."
            )
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problem = sentence_of(error, cls).rstrip(".")
            raise DataError(f"{path} is damaged: {problem}; prepare the corpus again.") from error
