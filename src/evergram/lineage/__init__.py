"""A lineage: a folder of immutable versions, each with a transform back to the previous one.

Read in this order:

1. `record`: `lineage.json`, with every change to it as a pure function, and a version's manifest
   (`docs/lineage.md`).
2. `artefact`: the contents of a version, in memory and as files.
3. `lineage`: `Lineage`, with all reads and changes. `view`: embeddings read as a past version, and
   vectors of new queries.
4. `publication`: checks a version and writes it, including the canaries.
5. `diagnosis`: how well each version can be read, and warnings for its readers.
6. `consumers`: who reads which version. `score_maps`: scores on a past version's scale.
7. `locks` and `remote`: one writer at a time, symbolic links and permissions; lineages in object
   stores (`s3://…`).

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
