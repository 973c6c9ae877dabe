"""A lineage: a folder of immutable versions, each with its transform back to the one before.

Read in this order:

1. `record`: `lineage.json` with every change of it as a pure function, and a version's manifest
   (`docs/lineage.md`).
2. `artefact`: the contents of a version, as they are given and as files.
3. `lineage`: `Lineage`, everything that is read and changed. `view`: embeddings read as a past
   version, and vectors of new queries.
4. `publication`: the gate, and the writing of a version, with the objects that every version keeps.
5. `diagnosis`: how well each version is read, and what its readers should know.
6. `consumers`: who reads which version. `score_maps`: scores as a version gave them.
7. `locks` and `remote`: one writer at a time, links and permissions; lineages at `s3://…` and the
   like.

[BC]: Hu et al., *Learning backward compatible embeddings*, KDD 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.lineage.artefact import Artefact as Artefact
    from evergram.lineage.consumers import ConsumerRegistry as ConsumerRegistry
    from evergram.lineage.diagnosis import Reading as Reading
    from evergram.lineage.diagnosis import past_limits as past_limits
    from evergram.lineage.lineage import Lineage as Lineage
    from evergram.lineage.record import Manifest as Manifest
    from evergram.lineage.view import View as View

export_lazily(__name__)
