"""The routes that list versions, models and consumers."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from evergram.errors import LineageError
from evergram.lineage.diagnosis import version_warnings
from evergram.lineage.lineage import Lineage
from evergram.lineage.record import Manifest
from evergram.serving.http.access import Access
from evergram.serving.http.errors import RefusedError
from evergram.serving.http.openapi import (
    ConsumerAnswer,
    ConsumersAnswer,
    ModelAnswer,
    ModelsAnswer,
    VersionAnswer,
    VersionsAnswer,
)
from evergram.serving.service import ServedState


def versions(state: ServedState, access: Access) -> VersionsAnswer:
    """Return the versions that may be read, oldest first."""
    lineage = state.lineage
    readable = access.readable(lineage)
    stored = sorted({v for side in state.reader.sides for v in state.reader.store(side).filled()})
    default = _default(lineage, access)
    warnings = version_warnings(lineage)
    # Files are those of the reader's lineage, which is a version ahead while stores are filled.
    ahead = state.reader.lineage
    files = {m.version: ahead.files(m.version) for m in ahead.versions}
    answers = [
        VersionAnswer(
            version=manifest.version,
            name=f"{lineage.name}@v{manifest.version}",
            dim=manifest.dim,
            created=manifest.created,
            fingerprint=manifest.fingerprint,
            labels=sorted(k for k, v in lineage.labels.items() if v == manifest.version),
            default=manifest.version == default,
            computed_from=stored,
            warnings=warnings[manifest.version],
            checked=[name for name, done in files.get(manifest.version, {}).items() if done],
            unchecked=[name for name, done in files.get(manifest.version, {}).items() if not done],
        )
        for manifest in lineage.versions
        if manifest.version in readable
    ]
    first = state.reader.default_side
    sides = sorted(state.reader.sides, key=lambda side: (side != first, side))
    return VersionsAnswer(object="list", name=lineage.name, sides=sides, data=answers)


def models(state: ServedState, access: Access) -> ModelsAnswer:
    """Return the versions as OpenAI lists models: by number, by label, and by the bare name."""
    lineage = state.lineage
    readable = access.readable(lineage)
    models = [
        _model(f"{lineage.name}@v{m.version}", m) for m in lineage.versions if m.version in readable
    ]
    models += [
        _model(f"{lineage.name}@{label}", lineage.manifest(version))
        for label, version in sorted(lineage.labels.items())
        if version in readable
    ]
    default = _default(lineage, access)
    if default is not None:
        models.append(_model(lineage.name, lineage.manifest(default)))
    return ModelsAnswer(object="list", data=models)


def model(state: ServedState, access: Access, name: str) -> ModelAnswer:
    """Return one model. Raises: RefusedError: it does not exist, or may not be read."""
    for listed in models(state, access).data:
        if listed.id == name:
            return listed
    raise RefusedError(
        404, "unknown_version", f"There is no model {name[:80]!r}; /v1/models lists them.", "model"
    )


def consumers(state: ServedState, access: Access) -> ConsumersAnswer:
    """Return the consumers without their tokens. Raises: RefusedError: a consumer asks."""
    access.require_admin("The list of consumers")
    answers = []
    for consumer in state.consumers.list():
        version = None
        with suppress(LineageError):
            version = state.lineage.resolve(consumer.pinned)
        facts = {name: getattr(consumer, name) for name in ("name", "pinned", "since")}
        answers.append(ConsumerAnswer(version=version, allowed=list(consumer.allowed), **facts))
    return ConsumersAnswer(object="list", data=answers)


def _default(lineage: Lineage, access: Access) -> int | None:
    try:
        return access.version(lineage, None)
    except (LineageError, RefusedError):
        return None


def _model(name: str, manifest: Manifest) -> ModelAnswer:
    created = int(datetime.fromisoformat(manifest.created).timestamp())
    return ModelAnswer(id=name, object="model", created=created, owned_by="evergram")
