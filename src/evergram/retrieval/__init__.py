"""Read stored embeddings at any version: by id, by search, or as given vectors.

Read in this order:

1. `reader`: `Reader`, a lineage and its stores.
2. `version_maps`: map rows from their version to the requested one.
   `metric_search`: distance and cosine on an inner-product index.
3. `fill`: fill, check and open stores. `backfill`: refresh a store's older rows, worst first.
   `version_sidecar`: read rows at an old version more exactly, by a few bytes per old vector.

Why one index serves all versions: `docs/method.md`, *One index for all versions*.
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
