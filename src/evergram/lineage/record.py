"""`lineage.json`, with every change to it as a pure function, and the manifests of versions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import to_json

from evergram.did_you_mean import did_you_mean
from evergram.errors import FormatError, IntegrityError, LineageError, UnknownVersionError
from evergram.file_content import sha256 as sha256
from evergram.texts.record import TextEncoderRecord
from evergram.validation import sentence_of

FORMAT_VERSION = 1
STABLE = "stable"  # the label of the version in production
NEWEST = "newest"
NUMBER = re.compile(r"v?([0-9]+)")
# Names appear in addresses (`films@stable`), paths and terminal output, so special characters are
# not allowed.
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
RULE = (
    "a name consists of letters (a-z, A-Z), digits, '.', '_' and '-', starts with a letter or "
    "digit, and has at most 128 characters"
)


def is_name(text: str) -> bool:
    """Return whether a string is a valid name."""
    return re.fullmatch(NAME, text) is not None


def check_name(text: str, what: str) -> str:
    """Return a name, or refuse it; `what` is its use, such as "a label"."""
    if not is_name(text):
        raise LineageError(f"{text!r} cannot be {what}: {RULE}; choose another.")
    return text


Name = Annotated[str, AfterValidator(partial(check_name, what="a name"))]


class FrozenRecord(BaseModel):
    """An immutable JSON record that allows no unknown fields."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class _Format(BaseModel):
    format_version: int | None = None


class StrictRecord(FrozenRecord):
    """A record without type coercion, and without NaN and infinity."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, allow_inf_nan=False)


class ChecksummedRecord(FrozenRecord):
    """A JSON record with a checksum, so that damage is noticed."""

    check: str = ""  # SHA-256 of the other fields, as read from a file; see `to_json`

    @classmethod
    def of_json(cls, text: str | bytes, path: str | Path) -> Self:
        """Parse a file's text and verify its checksum."""
        try:
            # Check this first, as a later format's other fields may have another meaning.
            version = _Format.model_validate_json(text).format_version
            if version not in (None, FORMAT_VERSION):
                needed = f"this Evergram reads {FORMAT_VERSION}, so upgrade Evergram to read it"
                raise FormatError(f"{path} has format_version {version}; {needed}.")
            record, written = cls.model_validate_json(text), json.loads(text)
        except ValidationError as error:
            problem = sentence_of(error, cls).rstrip(".")
        else:
            if "check" not in written:
                problem = "it has no checksum"
            elif written.pop("check") != _digest(written):
                problem = "its checksum does not match its contents"
            else:
                return record
        raise IntegrityError(f"{path} is damaged: {problem}; restore it from a copy.")

    def to_json(self) -> str:
        """Return the record as JSON, with its checksum."""
        fields = json.loads(self.model_dump_json(exclude={"check"}))
        sealed = self.model_copy(update={"check": _digest(fields)})
        return sealed.model_dump_json(indent=2)


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class Withdrawal(FrozenRecord):
    """A version that was withdrawn: its fingerprint, the reason, and the time."""

    fingerprint: str
    reason: str
    when: str


class LineageRecord(ChecksummedRecord):
    """The contents of `lineage.json`."""

    format_version: int
    name: Name
    versions: list[int]  # all published versions except the withdrawn ones, ascending
    labels: dict[Name, int] = {}  # maps a label to its version
    # Withdrawn versions by number. The numbers are not used again.
    withdrawn: dict[int, Withdrawal] = {}
    # Versions that can no longer be read, although the chain still goes through them.
    retired: list[int] = []
    # Salt of the hash that chooses held-out pairs, from the recipe of version 0; None in a lineage
    # made from files.
    salt: str | None = None

    @property
    def next_version(self) -> int:
        """The number of the next version."""
        return len(self.versions) + len(self.withdrawn)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        numbers = [*self.versions, *self.withdrawn]
        if self.versions != sorted(self.versions) or sorted(numbers) != list(range(len(numbers))):
            raise ValueError("its versions are not numbered consecutively")
        if not set(self.labels.values()) | set(self.retired) <= set(self.versions):
            raise ValueError("it refers to a version that it does not list")
        return self

    @property
    def newest(self) -> int:
        """The latest version that is not withdrawn. Raises: UnknownVersionError: there is none."""
        if not self.versions:
            raise UnknownVersionError(f"{self.name!r} has no version yet; publish one first.")
        return self.versions[-1]

    @property
    def production(self) -> int:
        """The default version: the one labelled `stable`, or else the newest."""
        if STABLE in self.labels:
            return self.labels[STABLE]
        return self.newest

    @property
    def readable(self) -> list[int]:
        """The versions that are neither withdrawn nor retired, ascending."""
        return [n for n in self.versions if n not in self.retired]

    def resolve(self, what: int | str | None) -> int:
        """Return the number of a version that can be read; see `Lineage.resolve`."""
        if what is None:
            return self.production
        if what == NEWEST:
            return self.newest
        if isinstance(what, str):
            digits = NUMBER.fullmatch(what)
            if digits is None:
                return self._labelled(what)
            # Cut, because int() refuses strings of too many digits.
            what = int(digits[1].lstrip("0")[:20] or "0")
        if isinstance(what, bool) or not isinstance(what, Integral):
            raise UnknownVersionError(f"{str(what)[:40]} is not a version; {self._known()}.")
        number = int(what)
        if number not in self.versions:
            raise self.unknown(number)
        if number in self.retired:
            retired = f"Version {number} of {self.name} is retired and can no longer be read"
            raise LineageError(f"{retired}; {self._known()}.")
        return number

    def _labelled(self, name: str) -> int:
        if name not in self.labels:
            meant = did_you_mean(name, [*self.labels, NEWEST])
            what = f"The lineage {self.name!r} has no label {name!r}"
            raise UnknownVersionError(f"{what}; {self._known()}{meant}.")
        return self.labels[name]

    def unknown(self, number: int) -> UnknownVersionError:
        """Return the error for a version that does not exist or was withdrawn."""
        what = f"The lineage {self.name!r} has no version {number}"
        if number in self.withdrawn:
            reason = self.withdrawn[number].reason
            what = f"Version {number} of {self.name} was withdrawn ({reason})"
        return UnknownVersionError(f"{what}; {self._known()}.")

    def _known(self) -> str:
        versions = ", ".join(map(str, self.readable)) or "none"
        labels = ", ".join(f"{name} ({n})" for name, n in sorted(self.labels.items()))
        return f"its versions are: {versions}" + (f"; its labels: {labels}" if labels else "")

    def with_version(self, *, promote: bool, salt: str | None = None) -> Self:
        """Return the record with a new version, in production if `promote`. Only version 0 sets the
        salt."""
        number, labels = self.next_version, dict(self.labels)
        if promote and STABLE in labels:
            labels[STABLE] = number
        elif not promote and self.versions:
            labels.setdefault(STABLE, self.production)
        salt = self.salt if number else salt
        return self._changed(versions=[*self.versions, number], labels=labels, salt=salt)

    def with_label(self, name: str, what: int | str, with_embeddings: Collection[int]) -> Self:
        """Return the record with a label put on or moved to a version. Only versions
        `with_embeddings`, whose embeddings are stored, can be `stable`."""
        lower = check_name(name, "a label").lower()
        if NUMBER.fullmatch(lower) or lower == NEWEST:
            raise LineageError(f"{name!r} cannot be a label; 'newest' and 'v0' are reserved.")
        for other in (STABLE, *self.labels):
            if lower == other.lower() and name != other:
                what = f"{name!r} cannot be a label, because it differs from {other!r} only in case"
                raise LineageError(f"{what}; choose another.")
        number = self.resolve(what)
        if name == STABLE and number not in with_embeddings:
            stored = ", ".join(map(str, with_embeddings))
            raise LineageError(
                f"Version {number} of {self.name} cannot be {STABLE}: its embeddings are no longer "
                f"stored (only those of {stored}); to keep them, label a version in time."
            )
        return self._changed(labels={**self.labels, name: number})

    def without_label(self, name: str) -> Self:
        """Return the record without a label. Raises: UnknownVersionError: there is none."""
        self._labelled(name)
        return self._changed(labels={k: v for k, v in self.labels.items() if k != name})

    def without_newest(
        self, withdrawal: Withdrawal, pins: Mapping[str, int], with_embeddings: Collection[int]
    ) -> Self:
        """Return the record with the newest version withdrawn; its number is not used again. The
        previous version must be in `with_embeddings`; for `pins`, see `with_retired`."""
        number = self.newest
        self._refuse_used(number, pins, "withdrawn")
        start = f"Version {number} of {self.name} cannot be withdrawn: "
        if len(self.versions) == 1:
            raise LineageError(f"{start}it is the only one; remove the folder instead.")
        before = self.versions[-2]
        if before in self.retired:
            raise LineageError(f"{start}version {before} is retired; publish a better one instead.")
        if before not in with_embeddings:
            raise LineageError(
                f"{start}the embeddings of version {before} are no longer stored, because it had "
                "no label; publish a better one instead."
            )
        withdrawn = {**self.withdrawn, number: withdrawal}
        return self._changed(versions=self.versions[:-1], withdrawn=withdrawn)

    def with_retired(self, what: int | str, pins: Mapping[str, int]) -> Self:
        """Return the record with a version retired. `pins` maps a consumer to the version that it
        reads."""
        number = self.resolve(what)
        if number == self.newest:
            raise LineageError(f"The newest version, {number}, cannot be retired; withdraw it.")
        self._refuse_used(number, pins, "retired")
        return self._changed(retired=sorted([*self.retired, number]))

    def _refuse_used(self, number: int, pins: Mapping[str, int], what: str) -> None:
        start = f"Version {number} of {self.name} cannot be {what}: "
        if labels := sorted(name for name, n in self.labels.items() if n == number):
            raise LineageError(f"{start}it is labelled {', '.join(labels)}; move the label first.")
        if consumers := sorted(name for name, n in pins.items() if n == number):
            pinned = f"{', '.join(consumers)} {'is' if len(consumers) == 1 else 'are'} pinned to it"
            raise LineageError(f"{start}{pinned}; move the consumers first.")

    def _changed(self, **fields: object) -> Self:
        """Return the record with these fields changed, validated."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name != "check"}
        return type(self).model_validate({**values, **fields, "format_version": FORMAT_VERSION})


KIND = r"^[a-z][a-z0-9_]{0,63}$"


class EncoderRecord(FrozenRecord):
    """The structure of the encoder whose tensors are in `encoder.safetensors`. `kind` is a name in
    `evergram.encoders.kinds`, which restores the encoder; "module" means a user's torch modules,
    which must be passed again to read it."""

    kind: str = Field(pattern=KIND)
    options: dict[str, Any]
    inputs: dict[str, dict[str, str]]  # for each side, an input's name → its vocabulary's
    # Maps a vocabulary's name to the type of its keys (ids and categories, numbers, times).
    vocabularies: dict[str, Literal["int64", "string", "double", "timestamp[us]"]]


class TransformRecord(FrozenRecord):
    """The structure of the transform whose tensors are in `transform.safetensors`. `kind` is a name
    in `evergram.compatibility.kinds`, to which users may add kinds."""

    kind: str = Field(pattern=KIND)
    options: dict[str, Any] = Field(default_factory=dict)


def fingerprint_of(manifest: Mapping[str, Any]) -> str:
    """Return the identity of a version's embedding space: "sha256:" and 64 hexadecimal digits.

    It hashes D, the recipe, the encoder's structure, and the hashes of its tensors and
    vocabularies; for a version from files, D and the hashes of its vectors. Number, name, time and
    Evergram's version are not included, so that the same training always gives the same
    fingerprint.
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
    encoder: EncoderRecord | None  # None for a version whose embeddings came from a file
    transform: TransformRecord | None
    recipe: dict[str, Any]  # complete, with the seed
    files: dict[Name, str]  # the SHA-256 of every other file of the version, by name
    embeddings: dict[Name, str]  # the SHA-256 of each side's file of embeddings
    # The text encoder that made the vectors of a version from files, if known.
    text_encoder: TextEncoderRecord | None = None
    # The transform's relative error on canaries common with the previous version; None without any.
    canary_error: float | None = None
    # The identity of the version's embedding space.
    fingerprint: str = Field(default_factory=fingerprint_of)

    @property
    def cuts(self) -> tuple[int, ...]:
        """The dimensions, below D, that its vectors may be cut to (Matryoshka)."""
        return () if self.text_encoder is None else tuple(self.text_encoder.matryoshka)

    @property
    def source_fingerprint(self) -> str | None:
        """The fingerprint in the file that the version was made from, or None."""
        settings = self.recipe.get("import") or self.recipe.get("align")
        fingerprint = settings.get("fingerprint") if isinstance(settings, dict) else None
        return fingerprint if isinstance(fingerprint, str) else None

    @model_validator(mode="after")
    def _identified(self) -> Self:
        if self.fingerprint != fingerprint_of(vars(self)):
            raise ValueError("its fingerprint does not match its contents")
        return self


def read_record(path: Path) -> LineageRecord:
    """Read the record in a file. Raises: see `parse_record`."""
    try:
        text = path.read_bytes() if path.exists() else None
    except OSError as error:
        raise LineageError(f"{path} cannot be read: {error.strerror}.") from error
    return parse_record(text, str(path.parent))


def parse_record(text: str | bytes | None, where: str) -> LineageRecord:
    """Parse the text of a `lineage.json`. Raises: LineageError: the text is None, as there is no
    file. IntegrityError: it is damaged. FormatError: a later format."""
    if text is None:
        raise LineageError(
            f"{where} is not a lineage (it has no lineage.json); "
            "'evergram train RECIPE.toml --lineage DIR' creates one."
        )
    return LineageRecord.of_json(text, f"{where}/lineage.json")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest in a version's folder. Raises: IntegrityError: missing or damaged."""
    path = folder / "manifest.json"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error.strerror}; restore it.") from error
    return Manifest.of_json(text, path)


def check_files(folder: Path, hashes: Mapping[str, str]) -> None:
    """Verify the SHA-256 of files, by name, in a folder. Raises: IntegrityError."""
    for name, published in hashes.items():
        path = folder / name
        if not path.is_file():
            raise IntegrityError(f"{path} is missing; restore it from a copy.")
        if sha256(path) != published:
            what = "differs from the published file (by its SHA-256)"
            raise IntegrityError(f"{path} {what}; restore it from a copy.")
