"""From a trained model, or from two files of vectors, to a published version.

Read in this order:

1. `upgrade`: train a version, and the next one together with its backward transform. The two
   papers, which know nothing of each other, meet here. `backward_transform` fits the transform;
   `past_versions`: what past versions know, and the new one read as each.
2. `publish`: the one gate, by limits and by every consumer's probe (`probes`: a consumer's own
   model on the embeddings that it would read).
   `evaluate`: metrics of a lineage's stored embeddings; `skew`: their loss while rows are stale.
3. `align`, `past_file`: files of vectors of models that are not ours.
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
