"""`consumers.json`: the consumers of a lineage, the versions that they read, and their probes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from evergram.errors import FormatError, IntegrityError
from evergram.lineage.paths import NAME
from evergram.lineage.record import ChecksumError, ChecksummedRecord, first_problem

FORMAT_VERSION = 1
# Returns the number of a version, by its number in text or a label.
Resolve = Callable[[str], int]


class _StrictRecord(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )


class Baseline(_StrictRecord):
    """The value of a probe when it was added, its version, and the number of its objects."""

    version: int = Field(ge=0)
    value: float
    objects: int = Field(ge=0)


class Probe(_StrictRecord):
    """A consumer's own model and an evaluation file, both kept in the lineage's folder.

    Before the files are copied there, `model` and `data` are their paths outside of it, and the
    hashes, if there are any, are of the contents that were tried.
    """

    model: str
    model_sha256: str = ""
    data: str
    data_sha256: str = ""
    side: str
    metric: Literal["auc", "accuracy", "rmse"]
    # The least value that is good enough; for rmse, of which less is better, the largest.
    min: float | None = None
    max: float | None = None
    baseline: Baseline | None = None

    @property
    def has_limit(self) -> bool:
        """Whether there is a value that it must reach; without one it is only measured."""
        return self.min is not None or self.max is not None

    @model_validator(mode="after")
    def _limit_fits(self) -> Self:
        wrong = "min" if self.metric == "rmse" else "max"
        if getattr(self, wrong) is not None:
            right = "max" if wrong == "min" else "min"
            raise ValueError(f"{self.metric} takes {right} as its limit, not {wrong}")
        if self.min is not None and not 0 <= self.min <= 1:
            raise ValueError(
                f"{self.metric} is between 0 and 1, and its limit must be, too; it is {self.min}"
            )
        if self.max is not None and not self.max >= 0:
            raise ValueError(f"rmse is at least 0, and its limit must be, too; it is {self.max}")
        return self


class Threshold(_StrictRecord):
    """The score from which on a consumer shows hits, of the version that it is pinned to."""

    value: float
    metric: Literal["cosine", "ip", "l2"] = "cosine"

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        largest = {"cosine": 1.0, "l2": 0.0}.get(self.metric)
        if largest is not None and self.value > largest:
            what = "a cosine" if self.metric == "cosine" else "an l2 score (-distance²)"
            raise ValueError(f"{what} is at most {largest:g}, and the threshold is {self.value:g}")
        return self


class Consumer(_StrictRecord):
    """A reader of the lineage.

    Args:
        pinned: "v0" or a label: the version that it reads by default.
        allowed: versions and labels that it may read; the pinned one is among them.
    """

    name: str = Field(pattern=f"^{NAME}$")
    pinned: str
    allowed: tuple[str, ...]
    since: str
    contact: str | None = None
    token_sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    probe: Probe | None = None
    threshold: Threshold | None = None

    @field_validator("since")
    @classmethod
    def _is_date(cls, value: str) -> str:
        date.fromisoformat(value)
        return value

    @model_validator(mode="after")
    def _reads_what_it_is_pinned_to(self) -> Self:
        if self.pinned not in self.allowed:
            raise ValueError(
                f"pinned to {self.pinned}, which is not among the versions it may read"
            )
        return self


class ConsumersRecord(ChecksummedRecord):
    """The contents of `consumers.json`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)

    format_version: int
    consumers: tuple[Consumer, ...]

    @field_validator("consumers")
    @classmethod
    def _names_differ(cls, value: tuple[Consumer, ...]) -> tuple[Consumer, ...]:
        names = [c.name for c in value]
        twice = {n for n in names if names.count(n) > 1}
        if twice:
            raise ValueError(f"{min(twice)!r} is there twice")
        return value


def pin_of(what: str, resolve: Resolve) -> str:
    """Return a version as it is written down: "v0" for a number, or the label.

    Raises: UnknownVersionError: it is neither.
    """
    number = resolve(what)
    return f"v{number}" if re.fullmatch(r"v?\d+", what) else what


def parse_consumers(text: str | None, where: str) -> ConsumersRecord:
    """Return the record in the text of a file.

    Args:
        text: None if there is no file; the record is then empty.
        where: the file, for errors.
    Raises: FormatError: of a later format. IntegrityError: damaged.
    """
    if text is None:
        return ConsumersRecord(format_version=FORMAT_VERSION, consumers=())
    try:
        raw: Any = json.loads(text)
        version = raw.get("format_version") if isinstance(raw, dict) else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise FormatError(
                f"{where} has format_version {version}; this Evergram reads {FORMAT_VERSION}, so "
                "upgrade Evergram to read it."
            )
        return ConsumersRecord.of_json(text)
    except (ValidationError, ChecksumError) as error:
        what = first_problem(error, ConsumersRecord)
    except json.JSONDecodeError as error:
        what = str(error)
    raise IntegrityError(f"{where} is damaged: {what}; restore it from a copy of the lineage.")
