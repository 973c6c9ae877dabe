"""A lineage: the versions of one model in a folder, each immutable, with the chain between them.

`Lineage` opens a folder or an address such as `s3://bucket/shop`; `View` is what it reads as
another version, `Artefact` what it publishes, `ConsumerRegistry` who reads it. What is on disk, and
what each change may do, is in `docs/lineage.md`.

To read the room, begin with `disk/` (the records, their checksums, the one rule of names) and
`record_changes` (every change as a function from one record to the next). Then `catalog` (the
versions by number and label), `version_reader` (the files of one), `version_chain` (from one to
another), `stored_embeddings`, and `publishing/`, which adds one; `lineage` puts them together.
`locks/` and `remote/` keep two writers apart, here and elsewhere. `canary_check` and
`version_warnings` say what is known of the versions that are there.

The chain is of [BC]: Hu et al., *Learning backward compatible embeddings*, KDD 2022.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evergram.lineage.artefact import Artefact
    from evergram.lineage.canary_check import (
        CompatibilityLimits,
        diagnose_lineage,
        past_limits,
    )
    from evergram.lineage.consumers.registry import ConsumerRegistry
    from evergram.lineage.disk.manifest import Manifest
    from evergram.lineage.lineage import Lineage
    from evergram.lineage.view import View

__all__ = [
    "Artefact",
    "CompatibilityLimits",
    "ConsumerRegistry",
    "Lineage",
    "Manifest",
    "View",
    "diagnose_lineage",
    "past_limits",
]

# Imported when first used: the records on disk are read without torch.
_HOME = {
    "Artefact": "artefact",
    "CompatibilityLimits": "canary_check",
    "ConsumerRegistry": "consumers.registry",
    "Lineage": "lineage",
    "Manifest": "disk.manifest",
    "View": "view",
    "diagnose_lineage": "canary_check",
    "past_limits": "canary_check",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
