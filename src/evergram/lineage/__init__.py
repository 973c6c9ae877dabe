"""A lineage: a folder of immutable versions, each with its transform back to the one before.

Read in this order:

1. `disk/`: `lineage.json` and the manifests, with their checksums and the one rule of names
   (`docs/lineage.md`).
2. `artefact`: the contents of a version before it is published. `version_reader`: the files of a
   published one, each checked.
3. `catalog/`: versions by number and by label. `record_changes`: each change of them, as a function
   from one record to the next; `catalog_changes` writes it.
4. `version_chain`: from one version to another. `stored_embeddings`: a version's own embeddings.
   `view`: embeddings read as a past version. `pair_history`: the pairs that were trained on.
5. `publishing/`: adds a version.
6. `read_only_lineage` and `lineage`: `Lineage`, which puts these together.
7. `canary_check` and `version_warnings`: how well each version is read, and what its readers should
   know. `consumers/`: who reads which version.
8. `locks/` and `remote/`: one writer at a time; lineages at `s3://…` and the like.

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
