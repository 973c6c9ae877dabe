"""Sentences on the upgrade, each with the number that judges it."""

from __future__ import annotations

from functools import partial

from reproduction.bc.columns import Read, of_corpus
from reproduction.bc.images.columns import auc, error, figure, intended, unintended
from reproduction.bc.images.roles import CLASSES_UNSEEN, SEEN, UNSEEN
from reproduction.bc.images.upgrades import ENCODERS, HEADS, POST_ORTHOGONAL
from reproduction.bc.methods import EVERGRAM, FIX, KEEP_ALL, NO_TRANS, NON_BC, POST_CLOSED
from reproduction.claims import Claim
from reproduction.intervals import gain
from reproduction.results import Result

# What joint training may cost the intended task, in percent.
TOLERATED = 1.0


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


def cascade_is_as_good(result: Result, group: str) -> float:
    """Return `TOLERATED` less how much lower a cascade's MAP@10 is than a whole new index's, %."""
    found = figure(result, ENCODERS, POST_CLOSED, "cascade", group)
    return TOLERATED + gain(found, figure(result, ENCODERS, POST_CLOSED, "own", group))


def linear_beats_orthogonal(result: Result) -> float:
    return unintended(result, ENCODERS, POST_CLOSED) - unintended(result, ENCODERS, POST_ORTHOGONAL)


def joint_costs_less(result: Result) -> float:
    return unintended(result, HEADS, EVERGRAM) - unintended(result, HEADS, POST_CLOSED)


def joint_costs_less_on_unseen(result: Result) -> float:
    own, other = (auc(result, HEADS, m, CLASSES_UNSEEN) for m in (EVERGRAM, POST_CLOSED))
    return own - other


def transform_beats_coordinates(result: Result) -> float:
    return unintended(result, HEADS, EVERGRAM) - unintended(result, HEADS, NO_TRANS)


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
        "A head trained jointly with a transform costs consumers less than one whose first "
        "coordinates are held to version 0's.",
        "how much higher its (2) is than that of Joint-NoTrans, points, paired",
        transform_beats_coordinates,
        remark="Joint-NoTrans pays for it in MAP@10 of its own searches, as the table shows.",
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
        remark="It is trained to tell the seen classes apart, and keeps little else, we think.",
    ),
    *(
        _claim(
            f"A cascade of 200 finds at most {TOLERATED:g} % less than a whole new index: {group} "
            "classes.",
            f"{TOLERATED:g} % less how much lower its MAP@10 is, %, of the encoders' own vectors",
            partial(cascade_is_as_good, group=group),
        )
        for group in (SEEN, UNSEEN)
    ),
)
