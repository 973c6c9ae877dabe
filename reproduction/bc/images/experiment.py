"""An upgrade of two image encoders, post hoc and with a head trained jointly. [BC] §6."""

from __future__ import annotations

from functools import partial

from reproduction.bc import methods
from reproduction.bc.columns import Read, of_corpus
from reproduction.bc.images.claims import CLAIMS
from reproduction.bc.images.columns import SEARCHES, auc, error, figure, unintended
from reproduction.bc.images.roles import SEEN, TASKS, UNSEEN
from reproduction.bc.images.upgrades import ENCODERS, HEADS, SMALL, TINY
from reproduction.bc.methods import NAMES, RECIPES
from reproduction.experiment import Experiment, Panel, Preset, Runs, Table, Training
from reproduction.intervals import shown

GROUPS = (SEEN, UNSEEN)
WAYS = {
    ENCODERS: "The encoders' own vectors",
    HEADS: "A head on each encoder",
}


def tables(runs: Runs) -> list[Table]:
    """Return for each way what searches find, and what consumers still get, by method."""
    made = []
    for label in runs.labels:
        for way, title in WAYS.items() if runs.of(label) else ():
            made += [_searches(runs, label, way, title), _consumers(runs, label, way, title)]
    return made


def _searches(runs: Runs, label: str, way: str, title: str) -> Table:
    columns = [(measure, group) for measure in SEARCHES for group in GROUPS]
    rows = [
        [
            _name(method),
            *(
                _cell(runs, label, partial(figure, way=way, method=method, measure=m, group=g))
                for m, g in columns
            ),
        ]
        for method in _methods(runs, label, way)
    ]
    header = ["", *(f"{SEARCHES[measure]}, {group}" for measure, group in columns)]
    return Table(f"{title}: images found, %, of seen and unseen classes", header, rows)


def _consumers(runs: Runs, label: str, way: str, title: str) -> Table:
    rows = []
    for method in _methods(runs, label, way):
        reads: list[Read] = [partial(auc, way=way, method=method, task=task) for task in TASKS]
        reads.append(partial(unintended, way=way, method=method))
        reads += [partial(error, way=way, method=method, group=group) for group in GROUPS]
        rows.append([_name(method), *(_cell(runs, label, read) for read in reads)])
    errors = [f"(3), {group}, % of length" for group in GROUPS]
    header = ["", *TASKS, "(2)", *errors]
    return Table(f"{title}: consumers of version 0, ROC-AUC, %", header, rows)


def _methods(runs: Runs, label: str, way: str) -> list[str]:
    return list(runs.of(label)[0].series[way])


def _name(method: str) -> str:
    return NAMES.get(method, method)


def _cell(runs: Runs, label: str, read: Read) -> str:
    return shown(of_corpus(runs, label, read), 2)


def panels(runs: Runs) -> list[Panel]:
    """Return none: there is one upgrade, and no axis to draw it along."""
    return []


SMALL_NOTE = (
    "CIFAR-10 as JPEG files, 1,000 training and 500 test images of each class, of which each seed "
    "leaves out two classes (each once in five seeds). Version 0 is EfficientNet-Lite0, shown the "
    "images at 128 pixels, version 1 EfficientNet-Lite2 at 160, both with ImageNet's weights, of "
    "1,280 pooled features. The encoders' own vectors are 256 principal components of these, at "
    "length 1, as the training images of seen classes have them. Heads are linear, of 64 and 80 "
    "dims at length 1, trained for six epochs on pairs of images of the same class with the "
    "penalty on all pairs, with settings chosen on training images alone; an upgrade is "
    "`evergram.upgrade` of a lineage, λ = 16 in the unit of the paper's code. All figures are of "
    "test images, which no head, transform or consumer has seen; a search is for images of a "
    "query's class among the test images of seen, or of unseen, classes. Consumers of version 0 "
    "learn from up to 2,000 training images: whether an image's brightness, its warmth (red less "
    "blue), or its contrast is above the median, and which of two classes it is of."
)
EXPERIMENT = Experiment(
    "bc/images",
    {"BC": "§6"},
    "An upgrade of two image encoders",
    "The paper names image embeddings as future work and has not run them. Own search: MAP@10 of "
    "searching, with vectors of the newest version, for images of the same class. Search of the "
    "old index: the same with queries of the newest version, carried back, in an index of version "
    "0's vectors. Cascade: those queries propose 200 images of the old index, and the newest "
    "version's own vectors rank them. Finds itself: the share of images whose nearest vector in "
    "the old index is their own. (2) is the change of the consumers' mean ROC-AUC from Keep-All's, "
    "in percent.",
    {
        "tiny": Preset(
            (Training("made-up images", RECIPES / "images-tiny.toml", program=TINY),),
            methods.TINY_NOTE,
        ),
        "small": Preset(
            (Training("CIFAR-10", RECIPES / "images-small.toml", program=SMALL),), SMALL_NOTE, 1
        ),
    },
    tables,
    panels,
    CLAIMS,
)
