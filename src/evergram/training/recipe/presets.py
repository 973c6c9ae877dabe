"""Presets: settings that a recipe has where it does not write its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

PresetName = Literal["paper"]

# [BC]'s experiments as its authors' code runs them (recsys/shared.py, generate_embeddings.py and
# train_model.py of snap-stanford/bc-emb); docs/compare.md has what no key can say.
PAPER: dict[str, Any] = {
    "metrics": ["recall@50"],
    "data": {"minimum_products": 5, "described_only": True},
    "split": {
        "kind": "time",
        "versions": [0.5, 0.6, 0.7, 0.8, 0.9],
        "selection": "paper",
    },
    "model": {
        "kind": "graphsage",
        "layers": [2, 2, 3, 3, 3],
        "dim": [256, 320, 384, 448, 512],
        "scale": 1.0,
        "shared_scale": 0.1,
        "repeats": True,
    },
    "task": {"kind": "bpr", "penalty": 0.0, "l2": 0.005},
    "training": {
        "epochs": 500,
        "patience": 0,
        "batch_size": 2048,
        "short_batch": True,
        "layer_rate": 1e-3,
        "evaluate_every": 10,
        "metric": "recall@50",
    },
    "upgrade": {
        "method": "bc-aligner",
        "weight": 16.0,
        "unit": "paper",
        "objects": "paper-code",
        "transform_rate": 1e-3,
        "transform_start": "uniform",
        "fit_epochs": 200,
        # As few objects as a certificate needs; theirs holds none out.
        "held_out": 1e-6,
        "select_after": 50,
    },
    "compare": {
        "hidden": [128, 256, 512, 1024],
        "dropout": [0.0, 0.25, 0.5],
        "consumers": 10,
        "epochs": 300,
    },
}
PRESETS: dict[str, dict[str, Any]] = {"paper": PAPER}


def with_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's values with those of its `preset` for every key that it does not write.

    Values of the wrong type stay as they are: the recipe's fields say what is wrong with them.
    """
    merged, name = dict(values), values.get("preset")
    if not isinstance(name, str) or name not in PRESETS:
        return merged
    for key, preset in PRESETS[name].items():
        written = values.get(key)
        if not isinstance(preset, dict):
            merged.setdefault(key, preset)
        elif written is None or isinstance(written, Mapping):
            merged[key] = {**preset, **(written or {})}
    return merged
