"""The methods of [BC] by name: each is four settings of one trainer."""

from __future__ import annotations

# fit: the transform is trained together with the model, afterwards, or not at all.
# start: the model is new, goes on from the version before, or is the version before.
METHODS: dict[str, dict[str, str]] = {
    # Consumers of a past version read that very model's embeddings; the trainer is Non-BC's.
    "keep-all": {"fit": "none", "transform": "truncate", "steps": "single", "start": "fresh"},
    "fix-m0": {"fit": "none", "transform": "truncate", "steps": "single", "start": "frozen"},
    "finetune-m0": {"fit": "none", "transform": "truncate", "steps": "single", "start": "previous"},
    "non-bc": {"fit": "none", "transform": "truncate", "steps": "single", "start": "fresh"},
    "post-lin-sloss": {
        "fit": "posthoc",
        "transform": "linear",
        "steps": "single",
        "start": "fresh",
    },
    "post-lin-mloss": {"fit": "posthoc", "transform": "linear", "steps": "multi", "start": "fresh"},
    "joint-notrans": {"fit": "joint", "transform": "truncate", "steps": "single", "start": "fresh"},
    "joint-lin-sloss": {"fit": "joint", "transform": "linear", "steps": "single", "start": "fresh"},
    "bc-aligner": {"fit": "joint", "transform": "linear", "steps": "multi", "start": "fresh"},
}
