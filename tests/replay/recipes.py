"""The recipes: together they have every encoder, task, estimator, optimiser, placement, prior,
transform and way to fit one that a recipe can name.
"""

from __future__ import annotations

import json
from typing import Any

Tables = dict[str, dict[str, Any]]

_COMMON: Tables = {
    "data": {"kind": "synthetic", "queries": 120, "candidates": 80, "interactions": 2400},
    "split": {"kind": "time", "versions": [0.6, 0.8]},
    "model": {"dim": [8, 10]},
    "training": {"epochs": 3, "batch_size": 64},
}

_CHANGES: dict[str, Tables] = {
    "sogram-joint": {
        "task": {"penalty": 5.0, "l2": 0.1},
        "gramian": {"kind": "sogram", "rate": 0.1},
        "upgrade": {"method": "bc-aligner"},
    },
    "sagram-affine": {
        "task": {"penalty": 5.0, "query_measure": 0.5, "candidate_measure": 1.0},
        "gramian": {"kind": "sagram"},
        "prior": {"kind": "constant", "value": -0.1},
        "training": {"optimizer": "sgd"},
        "upgrade": {"method": "joint-lin-sloss", "transform": "affine"},
    },
    "sogram-low-rank": {
        "task": {"penalty": 5.0, "sparse": "exclude"},
        "gramian": {"kind": "sogram", "sampler": "sqrt"},
        "upgrade": {"transform": "low_rank", "rank": 4, "method": "post-lin-mloss"},
    },
    "sampled-gradient-mlp": {
        "task": {"penalty": 5.0},
        "gramian": {"kind": "sogram", "sampler": "linear", "gradient": "sampled"},
        "training": {"optimizer": "adam"},
        "upgrade": {"transform": "residual_mlp"},
    },
    "als-refit": {
        "model": {"start": "smooth"},
        "task": {"penalty": 0.1, "l2": 0.1},
        "training": {"optimizer": "als", "refit": True, "batch_size": None},
        "upgrade": {"method": "post-lin-mloss", "transform": "orthogonal"},
    },
    "bpr-two-tower": {
        "model": {"kind": "two_tower", "hidden": [16]},
        "task": {"kind": "bpr"},
        "upgrade": {"transform": "lambda_orthogonal", "objects": "batch", "alone": False},
    },
    "softmax-lightgcn": {
        "model": {"kind": "lightgcn", "layers": [2]},
        "task": {"kind": "softmax", "temperature": 0.5, "penalty": 1.0},
        "gramian": {"kind": "sampled"},
        "upgrade": {"start": "previous", "objects": "paper-code"},
    },
    "exact-graphsage": {
        "model": {"kind": "graphsage", "layers": [1, 2]},
        "task": {"penalty": 1.0},
        "gramian": {"kind": "exact"},
        "upgrade": {"method": "post-lin-mloss"},
    },
    "softmax-unit-rows": {
        "model": {"normalize": True},
        "task": {"kind": "softmax", "temperature": 0.2},
        "training": {"optimizer": "adam", "rescale_rows": True},
        "upgrade": {"method": "joint-notrans"},
    },
    "softmax-all": {
        "model": {"kind": "mean_of_candidates", "normalize": True},
        "task": {"kind": "softmax_all", "temperature": 0.2},
        "training": {"batch_size": 256},
    },
    "softmax-mapped": {
        "task": {"kind": "softmax", "penalty": 1.0},
        "training": {"tables": "mapped"},
        "upgrade": {"method": "fix-m0"},
    },
    "pilots": {
        "training": {"epochs": 4, "batch_size": "auto"},
    },
}


def toml_of(name: str) -> str:
    """Return a recipe as TOML. A key that is None is left out."""
    tables = {
        table: {**_COMMON.get(table, {}), **_CHANGES[name].get(table, {})}
        for table in {**_COMMON, **_CHANGES[name]}
    }
    lines = [f'name = "{name}"']
    for table, values in tables.items():
        lines += [
            f"[{table}]",
            *(f"{k} = {json.dumps(v)}" for k, v in values.items() if v is not None),
        ]
    return "\n".join(lines) + "\n"


NAMES = tuple(_CHANGES)
