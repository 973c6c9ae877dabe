"""The methods of [BC] by name, and ours: how a transform is fitted, and on which model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fit = Literal["joint", "posthoc", "none"]
Start = Literal["fresh", "previous", "frozen"]


@dataclass(frozen=True)
class Method:
    """[BC] §4, Table 1.

    Args:
        fit: the transform is trained together with the model, afterwards, or not at all.
        start, transform: the defaults of these keys of [upgrade].
        steps: the alignment loss counts errors at all past versions or at the one before.
        solver: the transform is trained by Adam, or solved for in closed form; of joint methods
            afterwards, where the closed form has the smaller error.
    """

    fit: Fit
    start: Start = "fresh"
    transform: Literal["linear", "truncate"] = "linear"
    steps: Literal["multi", "single"] = "multi"
    solver: Literal["gradient", "closed"] = "gradient"


_ALONE = Method("none", transform="truncate")

METHODS: dict[str, Method] = {
    # Consumers of a past version keep reading that model; it is trained like Non-BC.
    "keep-all": _ALONE,
    "fix-m0": Method("none", "frozen", "truncate"),
    "finetune-m0": Method("none", "previous", "truncate"),
    "non-bc": _ALONE,
    "post-lin-sloss": Method("posthoc", steps="single"),
    "post-lin-mloss": Method("posthoc"),
    "joint-notrans": Method("joint", transform="truncate", steps="single"),
    "joint-lin-sloss": Method("joint", steps="single"),
    "bc-aligner": Method("joint"),
    # Ours: a post-hoc transform in closed form, and BC-Aligner with a closed form at the end, which
    # is the default.
    "post-closed": Method("posthoc", solver="closed"),
    "evergram": Method("joint", solver="closed"),
}
