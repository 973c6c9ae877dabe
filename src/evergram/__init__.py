"""Train embeddings without negative sampling, and ship new versions without breaking anyone.

Begin with `Recipe`, `load_corpus`, `train`, `upgrade` and `publish`. A `Lineage` keeps versions;
a `View` or a `Reader` reads the newest embeddings as any past version. `docs/architecture.md` shows
the rooms that the package is made of and the order to read them in.

Sources, cited throughout by their letters:

- [G1] Krichene et al., *Efficient training on very large corpora via Gramian estimation*, 2018.
- [G2] the same, ICLR 2019.
- [BC] Hu et al., *Learning backward compatible embeddings*, KDD 2022.

What they define, in one notation and with derivations, is `docs/method.md`.
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
    from evergram.compatibility.aligner.aligner import Aligner
    from evergram.data.corpus import Corpus
    from evergram.data.prepared.prepare import prepare
    from evergram.data.prepared.settings import PrepareSettings
    from evergram.encoders.encoder_modules import EncoderModules
    from evergram.errors import EvergramError
    from evergram.exporting.pretrained_encoder import PretrainedEncoder
    from evergram.gramian.gramian_penalty.gramian_penalty import GramianPenalty
    from evergram.lineage.artefact import Artefact
    from evergram.lineage.lineage import Lineage
    from evergram.lineage.view import View
    from evergram.releasing.comparison.compare import compare
    from evergram.releasing.evaluate import evaluate
    from evergram.releasing.publish import publish
    from evergram.releasing.upgrade import train, upgrade
    from evergram.retrieval.reader import Reader
    from evergram.serving.client import Client
    from evergram.training.checkpoint import load_encoder
    from evergram.training.corpora import load_corpus, split_for
    from evergram.training.diagnose import diagnose
    from evergram.training.recipe import Recipe

__version__ = "0.1.0"

__all__ = [
    "Aligner",
    "Artefact",
    "Client",
    "Corpus",
    "EncoderModules",
    "EvergramError",
    "GramianPenalty",
    "Lineage",
    "PrepareSettings",
    "PretrainedEncoder",
    "Reader",
    "Recipe",
    "View",
    "compare",
    "diagnose",
    "evaluate",
    "load_corpus",
    "load_encoder",
    "prepare",
    "publish",
    "split_for",
    "train",
    "upgrade",
]

export_lazily(
    __name__,
    {
        "compatibility.aligner.aligner": "Aligner",
        "data.corpus": "Corpus",
        "data.prepared.prepare": "prepare",
        "data.prepared.settings": "PrepareSettings",
        "encoders.encoder_modules": "EncoderModules",
        "errors": "EvergramError",
        "gramian.gramian_penalty.gramian_penalty": "GramianPenalty",
        "lineage.artefact": "Artefact",
        "lineage.lineage": "Lineage",
        "lineage.view": "View",
        "releasing.comparison.compare": "compare",
        "releasing.evaluate": "evaluate",
        "releasing.publish": "publish",
        "releasing.upgrade": "train upgrade",
        "exporting.pretrained_encoder": "PretrainedEncoder",
        "retrieval.reader": "Reader",
        "serving.client": "Client",
        "training.checkpoint": "load_encoder",
        "training.corpora": "load_corpus split_for",
        "training.diagnose": "diagnose",
        "training.recipe": "Recipe",
    },
    folders="compatibility data encoders evaluation exporting gramian lineage migration releasing "
    "retrieval serving stores tasks texts training vector_files",
    guesses={
        "fit": "evergram.train",
        "Model": "evergram.train(recipe, …), or a loss of your own with evergram.GramianPenalty",
        "Dataset": "evergram.Corpus",
        "load": "evergram.load_corpus, evergram.load_encoder or evergram.Lineage.open",
        "open": "evergram.Lineage.open or evergram.Reader.open",
    },
)
