"""Stores of embeddings, each row at the version that it was made with.

Read in this order:

1. `store`: what stores take and give; `ReadableStore` and `Store`, the interface.
2. `open_store`: from an address to a store.
3. The stores: `snapshot_store` (immutable files, mapped into memory), `pgvector_store`, and
   `lance_store`, `qdrant_store` and `sqlite_store`, which keep one table a version
   (`table_per_version`).
4. `adopted_store`: a reader of the user's own tables, from which classes in `pgvector_store`,
   `lance_store` and `qdrant_store` derive.

A store knows nothing of transforms. `evergram.retrieval.Reader` reads it at any version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.stores.open_store import open_store as open_store
    from evergram.stores.store import Hits as Hits
    from evergram.stores.store import ReadableStore as ReadableStore
    from evergram.stores.store import Rows as Rows
    from evergram.stores.store import Space as Space
    from evergram.stores.store import Store as Store

export_lazily(__name__)
