"""Train or align a new version, and publish it.

Read in this order:

1. `upgrade`: train a version together with its backward transform. `backward_transform` fits the
   transform; `past_versions` measures the new version read as each past one.
2. `publish`: check limits and run every consumer's probe (`probes`).
   `evaluate`: metrics of stored embeddings; `skew`: quality lost while rows are stale.
3. `align`, `past_file`: vector files from other models.
4. `demo`: a version, upgrades and a consumer.

[BC]: Hu et al., *Learning backward compatible embeddings*, KDD 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.releasing.align import AlignSettings as AlignSettings
    from evergram.releasing.align import align as align
    from evergram.releasing.evaluate import evaluate as evaluate
    from evergram.releasing.past_file import import_embeddings as import_embeddings
    from evergram.releasing.past_file import transform_file as transform_file
    from evergram.releasing.probes import run_probes as run_probes
    from evergram.releasing.publish import Published as Published
    from evergram.releasing.publish import publish as publish
    from evergram.releasing.skew import SkewReading as SkewReading
    from evergram.releasing.skew import SkewReport as SkewReport
    from evergram.releasing.skew import skew as skew
    from evergram.releasing.upgrade import train as train
    from evergram.releasing.upgrade import upgrade as upgrade

export_lazily(__name__)
