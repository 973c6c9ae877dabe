"""Show how long the models of a comparison were trained: a table, and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evergram.evaluation.training_budget import LAST, PLATEAU


def budget_sentences(results: Mapping[str, Any]) -> list[str]:
    """Return what share of [BC]'s budget the models had, and how many ended on a plateau."""
    lengths = [length for models in _models(results).values() for length in models]
    if not lengths:
        return ["How long the models were trained was not recorded."]
    reference = results["reference_budget"]
    passes = _range((length["passes"] for length in lengths), "")
    shares = [
        _range((100 * length[key] for length in lengths), " %")
        for key in ("share_of_passes", "share_of_steps")
    ]
    flat = sum(length["on_plateau"] is True for length in lengths)
    rising = sum(length["on_plateau"] is False for length in lengths)
    return [
        f"A model was trained for {passes} passes over its interactions: {shares[0]} of the "
        f"{reference['epochs']} of [BC]'s code, and {shares[1]} of its steps, which are of "
        f"{reference['batch_size']:,} pairs.",
        f"Over the last fifth of training the selection metric gained less than {PLATEAU:.0%} for "
        f"{flat} of {len(lengths)} models, which end on a plateau; {rising} do not, and of "
        f"{len(lengths) - flat - rising} it is not measured.",
    ]


def budget_table(results: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table in Markdown: for each method that trains models of its own, their
    passes, and for each version the largest gain over the last fifth of any seed."""
    versions = range(len(results["times"]))
    lines = [
        f"| gain over the last {LAST:.0%} | passes | {' | '.join(f'M_{k}' for k in versions)} |",
        "|---" + "|---:" * (1 + len(versions)) + "|",
    ]
    for name, models in _models(results).items():
        cells = [_gain([m for m in models if m["version"] == k]) for k in versions]
        passes = _range((model["passes"] for model in models), "")
        lines.append(f"| {name} | {passes} | {' | '.join(cells)} |")
    return lines if len(lines) > 2 else []


def _models(results: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the models that each run has trained itself, of all seeds, by the run's name."""
    models: dict[str, list[dict[str, Any]]] = {}
    for runs in results["runs"].values():
        for name, run in runs.items():
            for version, length in run["trained"].items():
                models.setdefault(name, []).append({"version": int(version), **length})
    return models


def _gain(models: list[dict[str, Any]]) -> str:
    if not models:
        return ""
    gains = [model["last_gain"] for model in models]
    return "not measured" if None in gains else f"{100 * max(gains):.1f} %"


def _range(values: Iterable[float], unit: str) -> str:
    shown = [f"{value:.2g}" if value < 10 else f"{value:,.0f}" for value in sorted(values)]
    return f"{shown[0]}{unit}" if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}{unit}"
