"""The methods of [BC] by name, and ours: each is some settings of one trainer."""

from __future__ import annotations

ALONE = {"fit": "none", "transform": "truncate", "start": "fresh"}
LINEAR = {"transform": "linear", "start": "fresh", "solver": "gradient"}
POSTHOC = {**LINEAR, "fit": "posthoc", "steps": "single"}
JOINT = {**LINEAR, "fit": "joint", "steps": "multi"}

# fit: the transform is trained together with the model, afterwards, or not at all.
# start: the model is new, goes on from the version before, or is the version before.
METHODS: dict[str, dict[str, str]] = {
    # Consumers of a past version go on reading that model; the trainer is Non-BC's.
    "keep-all": ALONE,
    "fix-m0": {**ALONE, "start": "frozen"},
    "finetune-m0": {**ALONE, "start": "previous"},
    "non-bc": ALONE,
    "post-lin-sloss": POSTHOC,
    "post-lin-mloss": {**POSTHOC, "steps": "multi"},
    "joint-notrans": {**JOINT, "transform": "truncate", "steps": "single"},
    "joint-lin-sloss": {**JOINT, "steps": "single"},
    "bc-aligner": JOINT,
    # Ours: the post-hoc transform in closed form, and BC-Aligner whose transform is solved for in
    # the end, which is the default.
    "post-closed": {**POSTHOC, "solver": "closed"},
    "evergram": {**JOINT, "solver": "closed"},
}
