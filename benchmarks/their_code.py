"""The alignment error of [BC]'s own code and of ours, on the same split of a part of Amazon Beauty.

Their code was run outside this repository, with three changes: the last epoch is kept, a batch is
looked up at once rather than edge by edge, and the sparse products are ours, with equal results.
The runs are in `their_code.json`, which `table` shows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RUNS = Path(__file__).with_suffix(".json")
Key = tuple[str, list[str], list[str]]
# What ours takes over from theirs beyond the values of reproduction/bc/recipes/table3-paper.toml.
FOUR = ["w", "shared", "last", "cold"]
WHOLE: dict[str, Key] = {
    "their code": ("theirs", [], []),
    "ours with their values": ("ours", [], []),
    "ours with their values and the four starts and habits": ("ours", FOUR, []),
}
ONE_AT_A_TIME: dict[str, Key] = {
    "W starts uniform": ("ours", ["w"], []),
    "the shared vector starts with 0.1": ("ours", ["shared"], []),
    "the short batch is trained on": ("ours", ["last"], []),
    "items without an interaction are nodes": ("ours", ["cold"], []),
    "W's rate is 3e-3": ("ours", [], ["upgrade.transform_rate=0.003"]),
    "a twentieth of the objects is held out": ("ours", [], ["upgrade.held_out=0.05"]),
    "a batch's pairs alone are aligned": (
        "ours", [], ["upgrade.objects=batch", "upgrade.rows=1024"],
    ),
    "`model.scale` is 0.1": ("ours", [], ["model.scale=0.1"]),
}  # fmt: skip


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return both tables in Markdown: mean ‖z̃_0 − z_0‖₂, and that over mean ‖z_0‖₂."""
    lines = ["| a quarter of the users | seed | version 1 | version 2 |", "|---|---|---|---|"]
    for seed in sorted({run["seed"] for run in runs if run["slice"] == "4"}):
        for name, key in WHOLE.items():
            run = _find(runs, "4", seed, key)
            if run is not None:
                cells = " | ".join(_cell(version) for version in run["versions"][1:])
                lines.append(f"| {name} | {seed} | {cells} |")
    base = _find(runs, "8", 0, WHOLE["ours with their values"])
    assert base is not None
    lines += ["", "| an eighth of the users | version 1 | change |", "|---|---|---|"]
    for name, key in (WHOLE | ONE_AT_A_TIME).items():
        run = _find(runs, "8", 0, key)
        if run is not None:
            lines.append(f"| {name} | {_cell(run['versions'][1])} | {_change(run, base)} |")
    return "\n".join(lines)


def _find(runs: Sequence[dict[str, Any]], part: str, seed: int, key: Key) -> dict[str, Any] | None:
    wanted = (part, seed, *key)
    for run in runs:
        own = (run["slice"], run["seed"], run["who"], run["switches"], run["over"])
        if own == wanted:
            return run
    return None


def _cell(version: dict[str, float]) -> str:
    return f"{version['warm']:.3f} ({version['warm'] / version['norm']:.3f})"


def _change(run: dict[str, Any], base: dict[str, Any]) -> str:
    if run is base:
        return ""
    mine, other = run["versions"][1], base["versions"][1]
    share = mine["warm"] / other["warm"]
    relative = share * other["norm"] / mine["norm"]
    return f"{100 * (share - 1):+.1f} % ({100 * (relative - 1):+.1f} %)"


def load() -> list[dict[str, Any]]:
    """Return the runs that are kept."""
    runs: list[dict[str, Any]] = json.loads(RUNS.read_text())
    return runs
