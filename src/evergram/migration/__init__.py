"""Migrate from one embedding model to another.

`migration_plan` measures the possible ways and recommends one. `cascade` re-ranks old hits by new
vectors. `make_sidecar` adds a few bytes to each new vector for old readers. `encoded_files` encodes
the texts that are left at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.migration.cascade import KeptVectors as KeptVectors
    from evergram.migration.cascade import cascade as cascade
    from evergram.migration.cascade import reranked_search as reranked_search
    from evergram.migration.encoded_files import Texts as Texts
    from evergram.migration.encoded_files import encode_file as encode_file
    from evergram.migration.migration_plan import plan_migration as plan_migration
    from evergram.retrieval.version_sidecar import make_sidecar as make_sidecar

export_lazily(__name__)
