"""What a result says of a method, in percent, and [BC]'s metrics (1) and (2)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from reproduction.bc.images.roles import SEEN, TASKS
from reproduction.bc.methods import KEEP_ALL
from reproduction.intervals import gain
from reproduction.results import Result

SEARCHES = {
    "own": "own search",
    "old index": "search of the old index",
    "cascade": "cascade",
    "itself": "finds itself",
}


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
