"""What there is to read: versions, models and consumers."""

from __future__ import annotations

from datetime import datetime

from evergram.errors import LineageError
from evergram.lineage.disk.manifest import Manifest
from evergram.lineage.lineage import Lineage
from evergram.lineage.version_warnings import version_warnings
from evergram.serving.http.auth import Access
from evergram.serving.http.errors import RefusedError
from evergram.serving.http.schemas import (
    ConsumerAnswer,
    ConsumersAnswer,
    ModelAnswer,
    ModelsAnswer,
    VersionAnswer,
    VersionsAnswer,
)
from evergram.serving.service import State


def versions(state: State, access: Access) -> VersionsAnswer:
    """The versions that may be read, oldest first."""
    lineage = state.lineage
    readable = access.readable(lineage)
    held = sorted({v for side in state.reader.sides for v in state.reader.store(side).filled()})
    default = _default(lineage, access)
    warnings = version_warnings(lineage)
    # Of the lineage that is read from, which while stores are filled is one step ahead.
    ahead = state.reader.lineage
    files = {m.version: ahead.files(m.version) for m in ahead.versions}
    found = [
        VersionAnswer(
            version=manifest.version,
            name=f"{lineage.name}@v{manifest.version}",
            dim=manifest.dim,
            created=manifest.created,
            fingerprint=manifest.fingerprint,
            labels=sorted(k for k, v in lineage.labels.items() if v == manifest.version),
            default=manifest.version == default,
            computed_from=held,
            warnings=warnings[manifest.version],
            checked=[name for name, done in files.get(manifest.version, {}).items() if done],
            unchecked=[name for name, done in files.get(manifest.version, {}).items() if not done],
        )
        for manifest in lineage.versions
        if manifest.version in readable
    ]
    return VersionsAnswer(object="list", name=lineage.name, data=found)


def models(state: State, access: Access) -> ModelsAnswer:
    """The same as OpenAI lists models: by number, by label, and the name alone."""
    lineage = state.lineage
    readable = access.readable(lineage)
    found = [
        _model(f"{lineage.name}@v{m.version}", m) for m in lineage.versions if m.version in readable
    ]
    found += [
        _model(f"{lineage.name}@{label}", lineage.manifest(version))
        for label, version in sorted(lineage.labels.items())
        if version in readable
    ]
    default = _default(lineage, access)
    if default is not None:
        found.append(_model(lineage.name, lineage.manifest(default)))
    return ModelsAnswer(object="list", data=found)


def model(state: State, access: Access, name: str) -> ModelAnswer:
    """Raises: RefusedError: there is none of that name, or it may not be read."""
    for found in models(state, access).data:
        if found.id == name:
            return found
    raise RefusedError(
        404, "unknown_version", f"There is no model {name[:80]!r}; /v1/models lists them.", "model"
    )


def consumers(state: State, access: Access) -> ConsumersAnswer:
    """Who is pinned to what, without tokens. Raises: RefusedError: a consumer asks."""
    access.require_admin("The list of consumers")
    found = []
    for known in state.roll.list():
        try:
            version = state.lineage.resolve(known.pinned)
        except LineageError:
            version = None
        found.append(
            ConsumerAnswer(
                name=known.name,
                pinned=known.pinned,
                version=version,
                allowed=list(known.allowed),
                since=known.since,
            )
        )
    return ConsumersAnswer(object="list", data=found)


def _default(lineage: Lineage, access: Access) -> int | None:
    try:
        return access.version(lineage, None)
    except (LineageError, RefusedError):
        return None


def _model(name: str, manifest: Manifest) -> ModelAnswer:
    created = int(datetime.fromisoformat(manifest.created).timestamp())
    return ModelAnswer(id=name, object="model", created=created, owned_by="evergram")
