"""Every change of a lineage's versions and labels, as a function from one record to the next.

Nothing is read or written here. A version keeps its number for ever; labels move.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from numbers import Integral

from evergram.did_you_mean import did_you_mean
from evergram.errors import LineageError, UnknownVersionError
from evergram.lineage.disk.lineage_record import FORMAT_VERSION, LineageRecord, Withdrawal
from evergram.lineage.disk.names import RULE, is_name

# The label of the version in production.
STABLE = "stable"
NEWEST = "newest"
NUMBER = re.compile(r"v?([0-9]+)")


def newest(record: LineageRecord) -> int:
    """Return the latest version that is not withdrawn. Raises: UnknownVersionError."""
    if not record.versions:
        raise UnknownVersionError(
            f"The lineage {record.name!r} has no version yet; publish one first."
        )
    return record.versions[-1]


def production(record: LineageRecord) -> int:
    """Return the version that is read by default: the one labelled `stable`, else the newest.

    Raises: UnknownVersionError: nothing is published yet.
    """
    return record.labels[STABLE] if STABLE in record.labels else newest(record)


def readable(record: LineageRecord) -> list[int]:
    """Return the versions that are neither withdrawn nor retired, ascending."""
    return [n for n in record.versions if n not in record.retired]


def resolve(record: LineageRecord, what: int | str | None) -> int:
    """Return the number of a version that can be read.

    Args:
        what: a number or its text ("0", "v0"), a label, "newest", or None for production.
    Raises: UnknownVersionError: there is none, or it was withdrawn. LineageError: it was retired.
    """
    if what is None:
        return production(record)
    if what == NEWEST:
        return newest(record)
    digits = NUMBER.fullmatch(what) if isinstance(what, str) else None
    if isinstance(what, str) and digits is None:
        if what not in record.labels:
            raise UnknownVersionError(
                f"The lineage {record.name!r} has no label {what!r}; {_known(record)}"
                f"{did_you_mean(what, [*record.labels, NEWEST])}."
            )
        return record.labels[what]
    if digits is None and (isinstance(what, bool) or not isinstance(what, Integral)):
        raise UnknownVersionError(f"{str(what)[:40]} is no version; {_known(record)}.")
    # More digits than any number of versions has are no version's, and int() refuses too many.
    number = int(what if digits is None else digits[1].lstrip("0")[:20] or "0")
    if number not in record.versions:
        raise unknown(record, number)
    if number in record.retired:
        raise LineageError(
            f"Version {number} of {record.name} is retired and no longer read; {_known(record)}."
        )
    return number


def unknown(record: LineageRecord, number: int) -> UnknownVersionError:
    """Return the error for a number that no version has, or no longer has."""
    if number in record.withdrawn:
        reason = record.withdrawn[number].reason
        return UnknownVersionError(
            f"Version {number} of {record.name} was withdrawn ({reason}); {_known(record)}."
        )
    return UnknownVersionError(
        f"The lineage {record.name!r} has no version {number}; {_known(record)}."
    )


def _known(record: LineageRecord) -> str:
    versions = ", ".join(map(str, readable(record))) or "none"
    labels = ", ".join(f"{name} ({n})" for name, n in sorted(record.labels.items()))
    return f"its versions are: {versions}" + (f"; its labels: {labels}" if labels else "")


def with_version(record: LineageRecord, *, promote: bool, salt: str | None = None) -> LineageRecord:
    """Return the record with one more version.

    Args:
        promote: whether production moves to it; if not, production stays where it is.
        salt: of the hash that chose the version's held-out pairs; that of version 0 is kept.
    """
    number, labels = record.next_version, dict(record.labels)
    if promote and STABLE in labels:
        labels[STABLE] = number
    elif not promote and record.versions:
        labels.setdefault(STABLE, production(record))
    kept = record.salt if number else salt
    return _changed(record, versions=[*record.versions, number], labels=labels, salt=kept)


def with_label(
    record: LineageRecord, name: str, what: int | str, with_embeddings: Collection[int]
) -> LineageRecord:
    """Return the record with a label on a version, wherever the label was before.

    Args:
        what: the version, as for `resolve`.
        with_embeddings: versions whose own embeddings are stored; only one of them can go into
            production.
    Raises: UnknownVersionError. LineageError: the name cannot be a label; or the version cannot be
        `stable`, as its embeddings are not stored.
    """
    _refuse_label(record, name)
    number = resolve(record, what)
    if name == STABLE and number not in with_embeddings:
        stored = ", ".join(map(str, with_embeddings))
        raise LineageError(
            f"Version {number} of {record.name} cannot be {STABLE}: its own embeddings are no "
            f"longer stored (those of {stored} are); label a version before the next is published "
            "to keep them."
        )
    return _changed(record, labels={**record.labels, name: number})


def _refuse_label(record: LineageRecord, name: str) -> None:
    """Refuse a name that cannot be a label. Raises: LineageError."""
    lower = name.lower()
    if not is_name(name) or NUMBER.fullmatch(lower) or lower == NEWEST:
        raise LineageError(f"{name!r} cannot be a label: {RULE}, and is not 'newest' or like 'v0'.")
    for other in (STABLE, *record.labels):
        if lower == other.lower() and name != other:
            raise LineageError(
                f"{name!r} cannot be a label: it differs from the label {other!r} in capital "
                "letters alone; choose another."
            )


def without_label(record: LineageRecord, name: str) -> LineageRecord:
    """Return the record without a label. Raises: UnknownVersionError: there is no such label."""
    if name not in record.labels:
        raise UnknownVersionError(
            f"The lineage {record.name!r} has no label {name!r}; {_known(record)}"
            f"{did_you_mean(name, record.labels)}."
        )
    return _changed(record, labels={k: v for k, v in record.labels.items() if k != name})


def without_newest(
    record: LineageRecord,
    withdrawal: Withdrawal,
    pins: Mapping[str, int],
    with_embeddings: Collection[int],
) -> LineageRecord:
    """Return the record with the newest version withdrawn; its number is not used again.

    Args:
        pins: consumer to the version that it reads.
        with_embeddings: as for `with_label`; the version before must be among them, as it becomes
            the newest.
    Raises: LineageError: a label or a consumer is on the version; or the version before cannot take
        its place.
    """
    number = newest(record)
    _refuse_used(record, number, pins, "withdrawn")
    if len(record.versions) == 1:
        raise LineageError(
            f"Version {number} is the only one of {record.name}; remove the folder instead."
        )
    before = record.versions[-2]
    if before in record.retired:
        raise LineageError(
            f"Version {number} of {record.name} cannot be withdrawn: version {before}, "
            "which would be the newest, is retired; publish a better version instead."
        )
    if before not in with_embeddings:
        raise LineageError(
            f"Version {number} of {record.name} cannot be withdrawn: the embeddings of version "
            f"{before} are no longer stored. Label a version before the next is published, or "
            "do not promote it at once, and they are kept; now publish a better version instead."
        )
    return _changed(
        record,
        versions=record.versions[:-1],
        withdrawn={**record.withdrawn, number: withdrawal},
    )


def with_retired(record: LineageRecord, what: int | str, pins: Mapping[str, int]) -> LineageRecord:
    """Return the record with a version that is no longer read; the chain still leads through it.

    Args:
        pins: consumer to the version that it reads.
    Raises: UnknownVersionError. LineageError: it is the newest, a label or a consumer is on it, or
        it is retired already.
    """
    number = resolve(record, what)
    if number == newest(record):
        raise LineageError(
            f"Version {number} is the newest of {record.name} and cannot be retired; "
            "'evergram lineage withdraw' takes it back."
        )
    _refuse_used(record, number, pins, "retired")
    return _changed(record, retired=sorted([*record.retired, number]))


def _refuse_used(record: LineageRecord, number: int, pins: Mapping[str, int], what: str) -> None:
    labels = sorted(name for name, n in record.labels.items() if n == number)
    if labels:
        raise LineageError(
            f"Version {number} of {record.name} cannot be {what}: it is labelled "
            f"{', '.join(labels)}; move the label to another version first."
        )
    consumers = sorted(name for name, n in pins.items() if n == number)
    if consumers:
        raise LineageError(
            f"Version {number} of {record.name} cannot be {what}: pinned to it "
            f"{'is' if len(consumers) == 1 else 'are'} {', '.join(consumers)}; they must go to "
            "another version first."
        )


def _changed(record: LineageRecord, **fields: object) -> LineageRecord:
    """Return the record with these fields, validated as a whole and in the present format."""
    values = {name: getattr(record, name) for name in LineageRecord.model_fields if name != "check"}
    return LineageRecord.model_validate({**values, **fields, "format_version": FORMAT_VERSION})
