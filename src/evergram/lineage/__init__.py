"""A lineage: a folder of immutable versions, each with its transform back to the one before.

Read in this order:

1. `disk/`: `lineage.json` and the manifests, with their checksums and the one rule of names
   (`docs/lineage.md`).
2. `artefact`: everything that one version is. `version_reader`: one version, each file checked.
3. `record_changes`: every change, as a function from one record to the next. `catalog`: versions by
   number and by label.
4. `version_chain`: from one version to another. `stored_embeddings`: what a version published.
   `publishing/`: adds a version.
5. `lineage`: `Lineage`, which puts these together. `view`: embeddings read as a past version.
6. `canary_check` and `version_warnings`: what is known of the versions that are there.
   `consumers/`: who reads which version.
7. `locks/` and `remote/`: one writer at a time; lineages at `s3://…` and the like.

[BC]: Hu et al., *Learning backward compatible embeddings*, KDD 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.lineage.artefact import Artefact, EncoderParts
    from evergram.lineage.canary_check import (
        CompatibilityLimits,
        Reading,
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
    "EncoderParts",
    "Lineage",
    "Manifest",
    "Reading",
    "View",
    "diagnose_lineage",
    "past_limits",
]

export_lazily(
    __name__,
    {
        "artefact": "Artefact EncoderParts",
        "canary_check": "CompatibilityLimits Reading diagnose_lineage past_limits",
        "consumers.registry": "ConsumerRegistry",
        "disk.manifest": "Manifest",
        "lineage": "Lineage",
        "view": "View",
    },
)
