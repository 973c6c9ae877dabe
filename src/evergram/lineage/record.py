"""`lineage.json`, with every change of it as a pure function, and the manifests of versions."""

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
from evergram.texts.record import TextEncoderRecord
from evergram.validation import sentence_of

FORMAT_VERSION = 1
# The label of the version in production.
STABLE = "stable"
NEWEST = "newest"
NUMBER = re.compile(r"v?([0-9]+)")
# A name becomes part of addresses (`films@stable`), paths and printed lines, so no character may
# mean anything to one of these.
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
RULE = (
    "a name is made of letters (a-z, A-Z), digits, '.', '_' and '-', begins with a letter or a "
    "digit, and is no longer than 128 characters"
)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_name(text: str) -> bool:
    """Say whether a text can be a name."""
    return re.fullmatch(NAME, text) is not None


def check_name(text: str, what: str) -> str:
    """Return a text; refuse one that cannot be what it is meant for, such as "a label"."""
    if not is_name(text):
        raise LineageError(f"{text!r} cannot be {what}: {RULE}; choose another.")
    return text


# It becomes part of a path, or is shown on a terminal.
Name = Annotated[str, AfterValidator(partial(check_name, what="a name"))]


class FrozenRecord(BaseModel):
    """A JSON record that never changes once it is made, and that has no field but its own."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class _Format(BaseModel):
    format_version: int | None = None


class StrictRecord(FrozenRecord):
    """One whose fields have exactly their types, and no NaN or infinity."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, allow_inf_nan=False)


class ChecksummedRecord(FrozenRecord):
    """A JSON record with a checksum, so that a flipped bit cannot move a label."""

    check: str = ""  # SHA-256 of the other fields, as it was read; `to_json` computes it anew

    @classmethod
    def of_json(cls, text: str | bytes, path: str | Path) -> Self:
        """Return the record in the text of a file, after comparing its checksum."""
        try:
            # The rest of a later format's fields may mean anything.
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
                problem = "its checksum is not that of its contents"
            else:
                return record
        raise IntegrityError(f"{path} is damaged: {problem}; restore it from a copy.")

    def to_json(self) -> str:
        """Return the text to write to a file: the record with its checksum."""
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
    name: Name
    versions: list[int]
    labels: dict[Name, int] = {}
    withdrawn: dict[int, Withdrawal] = {}
    retired: list[int] = []
    salt: str | None = None

    @property
    def next_version(self) -> int:
        """The number of the next version."""
        return len(self.versions) + len(self.withdrawn)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        numbers = [*self.versions, *self.withdrawn]
        if self.versions != sorted(self.versions) or sorted(numbers) != list(range(len(numbers))):
            raise ValueError("its versions are not numbered one after the other")
        if not set(self.labels.values()) | set(self.retired) <= set(self.versions):
            raise ValueError("it names a version that is not among its versions")
        return self

    @property
    def newest(self) -> int:
        """The latest version that is not withdrawn. Raises: UnknownVersionError: none is there."""
        if not self.versions:
            raise UnknownVersionError(f"{self.name!r} has no version yet; publish one first.")
        return self.versions[-1]

    @property
    def production(self) -> int:
        """The version that is read by default: the one labelled `stable`, else the newest."""
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
            # More digits than any version has are no version's, and int() refuses too many.
            what = int(digits[1].lstrip("0")[:20] or "0")
        if isinstance(what, bool) or not isinstance(what, Integral):
            raise UnknownVersionError(f"{str(what)[:40]} is no version; {self._known()}.")
        number = int(what)
        if number not in self.versions:
            raise self.unknown(number)
        if number in self.retired:
            retired = f"Version {number} of {self.name} is retired and no longer read"
            raise LineageError(f"{retired}; {self._known()}.")
        return number

    def _labelled(self, name: str) -> int:
        if name not in self.labels:
            meant = did_you_mean(name, [*self.labels, NEWEST])
            what = f"The lineage {self.name!r} has no label {name!r}"
            raise UnknownVersionError(f"{what}; {self._known()}{meant}.")
        return self.labels[name]

    def unknown(self, number: int) -> UnknownVersionError:
        """Return the error for a number that no version has, or no longer has."""
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
        """Return the record with one more version, and production moved to it if it is promoted;
        the salt of version 0 is kept."""
        number, labels = self.next_version, dict(self.labels)
        if promote and STABLE in labels:
            labels[STABLE] = number
        elif not promote and self.versions:
            labels.setdefault(STABLE, self.production)
        kept = self.salt if number else salt
        return self._changed(versions=[*self.versions, number], labels=labels, salt=kept)

    def with_label(self, name: str, what: int | str, with_embeddings: Collection[int]) -> Self:
        """Return the record with a label on a version, wherever the label was before. Only versions
        `with_embeddings`, whose own are stored, can be `stable`."""
        lower = check_name(name, "a label").lower()
        if NUMBER.fullmatch(lower) or lower == NEWEST:
            raise LineageError(f"{name!r} cannot be a label, as 'newest' and 'v0' name versions.")
        for other in (STABLE, *self.labels):
            if lower == other.lower() and name != other:
                raise LineageError(f"{name!r} cannot be a label next to {other!r}; choose another.")
        number = self.resolve(what)
        if name == STABLE and number not in with_embeddings:
            stored = ", ".join(map(str, with_embeddings))
            raise LineageError(
                f"Version {number} of {self.name} cannot be {STABLE}: its embeddings are no longer "
                f"stored (those of {stored} are); a label keeps them when the next is published."
            )
        return self._changed(labels={**self.labels, name: number})

    def without_label(self, name: str) -> Self:
        """Return the record without a label. Raises: UnknownVersionError: there is none."""
        self._labelled(name)
        return self._changed(labels={k: v for k, v in self.labels.items() if k != name})

    def without_newest(
        self, withdrawal: Withdrawal, pins: Mapping[str, int], with_embeddings: Collection[int]
    ) -> Self:
        """Return the record with the newest version withdrawn; its number is not used again. `pins`
        are as for `with_retired`; the version before must be among those `with_embeddings`."""
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
                f"{start}the embeddings of version {before} are no longer stored, as those of "
                "versions with labels are; publish a better one instead."
            )
        withdrawn = {**self.withdrawn, number: withdrawal}
        return self._changed(versions=self.versions[:-1], withdrawn=withdrawn)

    def with_retired(self, what: int | str, pins: Mapping[str, int]) -> Self:
        """Return the record with a version that is no longer read; the chain leads through it.
        `pins`: consumer to the version that it reads."""
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
            verb = "is" if len(consumers) == 1 else "are"
            raise LineageError(
                f"{start}pinned to it {verb} {', '.join(consumers)}; move the consumers first."
            )

    def _changed(self, **fields: object) -> Self:
        """Return the record with these fields, validated as a whole and in the present format."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name != "check"}
        return type(self).model_validate({**values, **fields, "format_version": FORMAT_VERSION})


KIND = r"^[a-z][a-z0-9_]{0,63}$"


class EncoderRecord(FrozenRecord):
    """The structure of the encoder whose tensors are in `encoder.safetensors`. `kind` is a name in
    `evergram.encoders.kinds`, by which the encoder is restored; "module" is an encoder of the
    user's own modules, which must be passed again when it is read."""

    kind: str = Field(pattern=KIND)
    options: dict[str, Any]
    # For each side, input name to vocabulary name.
    inputs: dict[str, dict[str, str]]
    # Vocabulary name to the type of its keys: of ids and categories, of numbers, of times.
    vocabularies: dict[str, Literal["int64", "string", "double", "timestamp[us]"]]


class TransformRecord(FrozenRecord):
    """The structure of the transform whose tensors are in `transform.safetensors`. `kind` is a name
    in `evergram.compatibility.kinds`, the user's own kinds included."""

    kind: str = Field(pattern=KIND)
    options: dict[str, Any] = Field(default_factory=dict)


def fingerprint_of(manifest: Mapping[str, Any]) -> str:
    """Return the identity of a version's space: "sha256:" and 64 hexadecimal digits.

    It is a hash of the hashes of the encoder's tensors and vocabularies, of how it is built and
    normalised, of the recipe and of D; for a version from files, of the hashes of its vectors and
    of D. The number, the name, the time and the Evergram that made it are left out, so that the
    same training always has the same fingerprint.
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
    files: dict[Name, str]
    # Side to SHA-256, of the file of embeddings that is stored while this version is the newest.
    embeddings: dict[Name, str]
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

    @model_validator(mode="after")
    def _identified(self) -> Self:
        if self.fingerprint != fingerprint_of(vars(self)):
            raise ValueError("its fingerprint is not that of its contents")
        return self


def read_record(path: Path) -> LineageRecord:
    """Return the record in a file. Raises: as `parse_record`."""
    try:
        text = path.read_bytes() if path.exists() else None
    except OSError as error:
        raise LineageError(f"{path} cannot be read: {error.strerror}.") from error
    return parse_record(text, str(path.parent))


def parse_record(text: str | bytes | None, where: str) -> LineageRecord:
    """Return the record of a lineage from the text of its `lineage.json`, None if there is no such
    file."""
    if text is None:
        raise LineageError(
            f"{where} is not a lineage (it has no lineage.json); "
            "'evergram train RECIPE.toml --lineage DIR' makes one."
        )
    return LineageRecord.of_json(text, f"{where}/lineage.json")


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest in a version's folder. Raises: IntegrityError: missing or damaged."""
    path = folder / "manifest.json"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error.strerror}; restore it.") from error
    return Manifest.of_json(text, path)


def check_files(folder: Path, hashes: Mapping[str, str]) -> None:
    """Compare files, by name in the folder, with their SHA-256."""
    for name, published in hashes.items():
        path = folder / name
        if not path.is_file():
            raise IntegrityError(f"{path} is missing; restore it from a copy.")
        if sha256(path) != published:
            what = "is not the file that was published (its SHA-256 differs)"
            raise IntegrityError(f"{path} {what}; restore it from a copy.")
