"""Read stored embeddings at any version: by id, by search, or as given vectors.

Read in this order:

1. `reader`: `Reader`, a lineage and its stores.
2. `version_maps`: from the version that a row was made with to the one that is asked for.
   `metric_search`: distance and cosine on an index that knows inner products alone. `norm_fits`:
   what stands for lengths that are not stored.
3. `fill`: the stores of a lineage are filled, checked and opened. `backfill`: refresh a store's
   older rows, worst first. `version_sidecar`: rows and hits at an old version, by a few bytes of
   each old vector.

[BC]: Hu et al., *Learning backward compatible embeddings*, KDD 2022. Why one index serves all
versions: `docs/method.md`, *One index for all versions*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.retrieval.backfill import Backfill as Backfill
    from evergram.retrieval.fill import fill as fill
    from evergram.retrieval.reader import Reader as Reader
    from evergram.stores.store import Embedded as Embedded

export_lazily(__name__)
