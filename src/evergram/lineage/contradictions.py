"""What contradicts itself in a lineage whose files are all whole."""

from __future__ import annotations

from itertools import pairwise

from evergram.errors import EvergramError
from evergram.lineage.canary_check import measure_canaries
from evergram.lineage.lineage import Lineage
from evergram.lineage.manifest import read_manifest
from evergram.lineage.publication_checks import CanaryCheck
from evergram.lineage.record import STABLE
from evergram.vector_files.open_embeddings import open_embeddings

# Relative; the same files give the same error but for rounding.
SAME = 1e-3


def contradictions(lineage: Lineage) -> list[str]:
    """Return a sentence on each contradiction: of transforms and canaries, of stored vectors and
    canaries, of `stable` and stored vectors, and of `lineage.json` and the folders.

    Raises: IntegrityError: a file is damaged.
    """
    return [*_transforms(lineage), *_stored(lineage), *_labels(lineage), *_folders(lineage)]


def _transforms(lineage: Lineage) -> list[str]:
    """A transform has the error on canaries that it was published with."""
    canaries = {m.version: lineage.canaries(m.version) for m in lineage.versions}
    found = []
    for before, n in pairwise(canaries):
        published = lineage.manifest(n).canary_error
        measured = measure_canaries(lineage.chain, canaries, n, before)
        now = None if measured is None else measured.relative
        if published is None or now is None:
            continue
        if not abs(now - published) <= SAME * (1 + published):
            found.append(
                f"The transform of version {n} errs by {now:.4g} on the canaries that versions "
                f"{before} and {n} kept, and by {published:.4g} when it was published: it is "
                "another transform, or the canaries are others. Restore the version from a copy."
            )
    return found


def _stored(lineage: Lineage) -> list[str]:
    """The canaries are among the stored vectors."""
    found = []
    for n in lineage.versions_with_embeddings:
        for side, (ids, vectors) in lineage.canaries(n).items():
            check = CanaryCheck(ids, vectors, side, lineage.manifest(n).dim)
            blocks = open_embeddings(lineage.stored(side, n)).blocks()
            try:
                for _ in check.through(blocks):
                    pass
            except EvergramError as error:
                found.append(f"Version {n}: {error}")
    return found


def _labels(lineage: Lineage) -> list[str]:
    stable = lineage.labels.get(STABLE)
    if stable is None or stable in lineage.versions_with_embeddings:
        return []
    return [
        f"The label {STABLE!r} is on version {stable}, whose vectors are not stored, so that no "
        "service can start. Put it on another version by 'evergram lineage promote'."
    ]


def _folders(lineage: Lineage) -> list[str]:
    """No whole version is there that the record does not know."""
    found: list[str] = []
    if lineage.address != str(lineage.path):
        return found  # a mirror also has what was read before
    for folder in sorted((lineage.path / "versions").glob("[0-9]*")):
        number = int(folder.name) if folder.name.isdecimal() else -1
        if number < lineage.next_version:
            continue
        try:
            manifest = read_manifest(folder)
        except EvergramError:
            continue
        found.append(
            f"versions/{number} holds version {number}, created {manifest.created}, and "
            "lineage.json does not list it: lineage.json is an older copy, or a publication was "
            "killed. Restore the newest lineage.json; the next publication removes the version."
        )
    return found
