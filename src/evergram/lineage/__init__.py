"""A lineage: a folder of immutable versions, each with its transform back to the one before.

Read in this order:

1. `disk/`: `lineage.json` and the manifests, and how files are written (`docs/lineage.md`).
2. `artefact`: everything that one version is. `version_reader`: one version, each file checked.
3. `record_changes` and `catalog`: versions by number and by label, and every change of labels.
4. `lineage`: `Lineage`, which publishes and reads. `view`: embeddings read as a past version.
5. `canary_check`: what is known of every past version. `consumers/`: who reads which version.
6. `locks/` and `remote/`: one writer at a time; lineages at `s3://…` and the like.

[BC]: Hu et al., *Learning backward compatible embeddings*, KDD 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.lineage.artefact import Artefact, EncoderParts
    from evergram.lineage.canary_check import Reading, diagnose_lineage
    from evergram.lineage.lineage import Lineage
    from evergram.lineage.view import View

__all__ = [
    "Artefact",
    "EncoderParts",
    "Lineage",
    "Reading",
    "View",
    "diagnose_lineage",
]

export_lazily(
    __name__,
    {
        "artefact": "Artefact EncoderParts",
        "canary_check": "Reading diagnose_lineage",
        "lineage": "Lineage",
        "view": "View",
    },
)
