"""Train embeddings without negative sampling, and ship new versions without breaking anyone.

Start with `Recipe`, `load_corpus`, `train`, `upgrade` and `publish`. A `Lineage` stores versions; a
`View` or `Reader` reads the newest embeddings as any past version. `docs/architecture.md` describes
the package's folders and the order to read them in.

Sources:

- [G1] Krichene et al., *Efficient training on very large corpora via Gramian estimation*, 2018.
- [G2] the same, ICLR 2019.
- [BC] Hu et al., *Learning backward compatible embeddings*, KDD 2022.

`docs/method.md` explains their methods in one notation, with derivations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram import compatibility as compatibility
    from evergram import data as data
    from evergram import encoders as encoders
    from evergram import evaluation as evaluation
    from evergram import exporting as exporting
    from evergram import gramian as gramian
    from evergram import lineage as lineage
    from evergram import migration as migration
    from evergram import releasing as releasing
    from evergram import retrieval as retrieval
    from evergram import serving as serving
    from evergram import stores as stores
    from evergram import tasks as tasks
    from evergram import texts as texts
    from evergram import training as training
    from evergram import vector_files as vector_files
    from evergram.compatibility.aligner.aligner import Aligner as Aligner
    from evergram.data.corpus import Corpus as Corpus
    from evergram.data.prepared.prepare import PrepareSettings as PrepareSettings
    from evergram.data.prepared.prepare import prepare as prepare
    from evergram.encoders.module_encoder import EncoderModules as EncoderModules
    from evergram.errors import EvergramError as EvergramError
    from evergram.exporting.pretrained_encoder import PretrainedEncoder as PretrainedEncoder
    from evergram.gramian.gramian_penalty import GramianPenalty as GramianPenalty
    from evergram.lineage.artefact import Artefact as Artefact
    from evergram.lineage.lineage import Lineage as Lineage
    from evergram.lineage.view import View as View
    from evergram.releasing.evaluate import evaluate as evaluate
    from evergram.releasing.publish import publish as publish
    from evergram.releasing.skew import skew as skew
    from evergram.releasing.upgrade import train as train
    from evergram.releasing.upgrade import upgrade as upgrade
    from evergram.retrieval.reader import Reader as Reader
    from evergram.serving.client import Client as Client
    from evergram.training.build import load_corpus as load_corpus
    from evergram.training.build import split_for as split_for
    from evergram.training.checkpoint import load_encoder as load_encoder
    from evergram.training.diagnose import diagnose as diagnose
    from evergram.training.recipe import Recipe as Recipe

__version__ = "0.1.0"

export_lazily(__name__)
