"""An upgrade of two image encoders, post hoc and with a head trained jointly. [BC] §6."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import fmean
from typing import Any

from reproduction.bc import methods
from reproduction.bc.columns import Read, of_corpus
from reproduction.bc.images.roles import CLASSES_UNSEEN, SEEN, TASKS, UNSEEN
from reproduction.bc.images.upgrades import (
    ENCODERS,
    HEADS,
    POST_ORTHOGONAL,
    SMALL,
    TINY,
)
from reproduction.bc.methods import (
    EVERGRAM,
    FIX,
    KEEP_ALL,
    NAMES,
    NON_BC,
    POST_CLOSED,
    RECIPES,
)
from reproduction.claims import Claim
from reproduction.experiment import Experiment, Panel, Preset, Runs, Table, Training
from reproduction.intervals import gain, shown
from reproduction.results import Result

GROUPS = (SEEN, UNSEEN)
WAYS = {
    ENCODERS: "The encoders' own vectors",
    HEADS: "A head on each encoder",
}
SEARCHES = {"own": "own search", "old index": "search of the old index", "itself": "finds itself"}
# What joint training may cost the intended task, in percent.
TOLERATED = 1.0


def figure(result: Result, way: str, method: str, measure: str, group: str) -> float:
    """Return a method's measure, in percent.

    Args:
        measure: a key of `SEARCHES`.
    """
    return 100 * float(_measured(result, way, method)[measure][group])


def error(result: Result, way: str, method: str, group: str) -> float:
    """Return [BC] metric (3), over the mean length of version 0's vectors, in percent."""
    return 100 * float(_measured(result, way, method)["error"][group]["relative"])


def auc(result: Result, way: str, method: str, task: str) -> float:
    """Return the ROC-AUC of a task's consumers, in percent."""
    return 100 * float(_measured(result, way, method)["consumers"][task])


def unintended(result: Result, way: str, method: str) -> float:
    """Return [BC] metric (2): the change of the consumers' mean ROC-AUC from Keep-All's, %."""
    own, kept = (fmean(auc(result, way, m, task) for task in TASKS) for m in (method, KEEP_ALL))
    return gain(own, kept)


def intended(result: Result, way: str, method: str) -> float:
    """Return [BC] metric (1): the change of the MAP@10 of own searches from Keep-All's, %."""
    own, kept = (figure(result, way, m, "own", SEEN) for m in (method, KEEP_ALL))
    return gain(own, kept)


def _measured(result: Result, way: str, method: str) -> Mapping[str, Any]:
    measured: Mapping[str, Any] = result.series[way][method]
    return measured


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
        of_method = {"way": way, "method": method}
        reads: list[Read] = [partial(auc, **of_method, task=task) for task in TASKS]
        reads.append(partial(unintended, **of_method))
        reads += [partial(error, **of_method, group=group) for group in GROUPS]
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


def transform_helps(result: Result) -> float:
    return unintended(result, ENCODERS, POST_CLOSED) - unintended(result, ENCODERS, NON_BC)


def new_is_better(result: Result) -> float:
    return figure(result, ENCODERS, KEEP_ALL, "own", SEEN) - figure(
        result, ENCODERS, FIX, "own", SEEN
    )


def carried_back(result: Result, way: str, method: str, group: str) -> float:
    """Return how much more queries of version 1 find in the old index than version 0's, points."""
    return figure(result, way, method, "old index", group) - figure(
        result, way, FIX, "old index", group
    )


def linear_beats_orthogonal(result: Result) -> float:
    return unintended(result, ENCODERS, POST_CLOSED) - unintended(result, ENCODERS, POST_ORTHOGONAL)


def joint_costs_less(result: Result) -> float:
    return unintended(result, HEADS, EVERGRAM) - unintended(result, HEADS, POST_CLOSED)


def joint_costs_less_on_unseen(result: Result) -> float:
    own, other = (auc(result, HEADS, m, CLASSES_UNSEEN) for m in (EVERGRAM, POST_CLOSED))
    return own - other


def joint_is_closer(result: Result) -> float:
    own, other = (error(result, HEADS, m, SEEN) for m in (EVERGRAM, POST_CLOSED))
    return -gain(own, other)


def joint_is_as_good(result: Result) -> float:
    return TOLERATED + intended(result, HEADS, EVERGRAM)


def head_is_better(result: Result, group: str) -> float:
    """Return how much more a head trained alone finds than the encoder without one, points."""
    return figure(result, HEADS, KEEP_ALL, "own", group) - figure(
        result, ENCODERS, KEEP_ALL, "own", group
    )


OURS = "ours, no claim of [BC]"


def _claim(sentence: str, measured: str, read: Read, source: str = OURS, remark: str = "") -> Claim:
    return Claim(
        sentence, source, measured, lambda runs: of_corpus(runs, runs.labels[0], read), remark
    )


CLAIMS = (
    _claim(
        "It is useful to apply the framework to image embeddings.",
        "how much higher (2) is with a transform fitted post hoc than without one, points, of the "
        "encoders' own vectors, paired",
        transform_helps,
        "[BC] §6",
    ),
    _claim(
        "The newer image encoder is better at the intended task.",
        "MAP@10 of its searches less that of the older one's, points, seen classes",
        new_is_better,
    ),
    _claim(
        "Queries of the newer encoder, carried back, find more in an index of old vectors than old "
        "queries do.",
        "MAP@10 with queries carried back less that with old ones, points, seen classes",
        partial(carried_back, way=ENCODERS, method=POST_CLOSED, group=SEEN),
    ),
    _claim(
        "They also find more images of classes that the transform was not fitted to.",
        "the same, unseen classes",
        partial(carried_back, way=ENCODERS, method=POST_CLOSED, group=UNSEEN),
    ),
    _claim(
        "A linear transform costs consumers less than an orthogonal one.",
        "how much higher its (2) is, points, of the encoders' own vectors, paired",
        linear_beats_orthogonal,
    ),
    _claim(
        "A head trained jointly costs consumers less than a transform fitted post hoc.",
        "how much higher its (2) is, points, of heads, paired",
        joint_costs_less,
    ),
    _claim(
        "It also costs consumers less that tell classes apart which no head has seen.",
        "how much higher their ROC-AUC is, points, paired",
        joint_costs_less_on_unseen,
    ),
    _claim(
        "A head trained jointly has a smaller error than a transform fitted post hoc.",
        "how much smaller its (3) is, %, of heads, seen classes, paired",
        joint_is_closer,
    ),
    _claim(
        f"A head trained jointly costs the intended task less than {TOLERATED:g} %.",
        f"{TOLERATED:g} % less how much lower its MAP@10 is than that of a head trained alone, %, "
        "seen classes",
        joint_is_as_good,
    ),
    _claim(
        "A head finds more images of classes that it was not trained on than the encoder alone.",
        "MAP@10 of the newer encoder's head less that of its own vectors, points, unseen classes",
        partial(head_is_better, group=UNSEEN),
    ),
)
SMALL_NOTE = (
    "CIFAR-10 as JPEG files, 1,000 training and 500 test images of each class, of which each seed "
    "leaves out two classes (each once in five seeds). Version 0 is EfficientNet-Lite0, shown the "
    "images at 128 pixels, version 1 EfficientNet-Lite2 at 160, both with ImageNet's weights, of "
    "1,280 pooled features. The encoders' own vectors are of length 1. Heads are linear, of 64 and "
    "80 dims, and trained on pairs of images of the same class with the penalty on all pairs; an "
    "upgrade is `evergram.upgrade` of a lineage, λ = 16 in the unit of the paper's code. All "
    "figures are of test images, which no head, transform or consumer has seen; a search is for "
    "images of a query's class among the test images of seen, or of unseen, classes. Consumers of "
    "version 0 learn from up to 4,000 training images: whether an image's brightness, its warmth "
    "(red less blue), or its contrast is above the median, and which of two classes it is of."
)
EXPERIMENT = Experiment(
    "bc/images",
    {"BC": "§6"},
    "An upgrade of two image encoders",
    "The paper names image embeddings as future work and has not run them. Own search: MAP@10 of "
    "searching, with vectors of the newest version, for images of the same class. Search of the "
    "old index: the same with queries of the newest version, carried back, in an index of version "
    "0's vectors. Finds itself: the share of images whose nearest vector in the old index is their "
    "own. (2) is the change of the consumers' mean ROC-AUC from Keep-All's, in percent.",
    {
        "tiny": Preset(
            (Training("made-up images", RECIPES / "images-tiny.toml", program=TINY),),
            methods.TINY_NOTE,
        ),
        "small": Preset(
            (Training("CIFAR-10", RECIPES / "images-small.toml", program=SMALL),), SMALL_NOTE, 3
        ),
    },
    tables,
    panels,
    CLAIMS,
)
