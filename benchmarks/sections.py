"""The sections of the benchmarks: what measures each, and how its figures are shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import (
    by_command,
    defaults,
    fold_in,
    large_run,
    migrations,
    pinned,
    published_splits,
    serving,
    skew,
    steps,
    time_to_als,
    upgraded_scores,
    verdicts,
    walks,
    which_loss,
)


@dataclass(frozen=True)
class Section:
    """A measurement, and how its figures are shown."""

    measure: Callable[[], Any]  # takes the measurement and returns its figures
    tiny: Callable[[], Any]  # the same in seconds on small made-up data, to check that it runs
    table: Callable[[Any], str] = str  # makes a table in Markdown of the figures of either
    needs_data: bool = False  # whether it reads real data
    # Returns pictures for docs/, by name.
    pictures: Callable[[Any], dict[str, bytes]] = lambda _: {}


SECTIONS = {
    "walks": Section(walks.walked, walks.walked, walks.table),
    "steps": Section(steps.step_ratios, steps.tiny, steps.table),
    "large-run": Section(large_run.measure, large_run.tiny, large_run.table),
    "plan": Section(large_run.planned, large_run.planned),
    "entities": Section(
        large_run.measure_entities, large_run.tiny_entities, large_run.entity_table
    ),
    "serving-fetch": Section(serving.fetches, serving.tiny_fetches, serving.fetch_table),
    "serving-search": Section(serving.searches, serving.tiny_searches, serving.search_table),
    "pinned": Section(pinned.measure, pinned.tiny, pinned.table, needs_data=True),
    "demo": Section(
        by_command.demo,
        by_command.tiny_demo,
        by_command.demo_table,
        pictures=lambda versions: {"demo.png": by_command.picture(versions)},
    ),
    "defaults": Section(defaults.measure, defaults.tiny, defaults.table, needs_data=True),
    "fold-in": Section(fold_in.measure, fold_in.tiny, fold_in.table, needs_data=True),
    "time-to-als": Section(
        time_to_als.measure, time_to_als.tiny, time_to_als.table, needs_data=True
    ),
    "published-splits": Section(
        published_splits.published_splits,
        published_splits.tiny,
        published_splits.table,
        needs_data=True,
    ),
    "which-loss": Section(which_loss.measure, which_loss.tiny, which_loss.table, needs_data=True),
    "migrations": Section(migrations.measure, migrations.tiny, migrations.table, needs_data=True),
    "verdicts": Section(verdicts.measure, verdicts.tiny, verdicts.table, needs_data=True),
    "skew": Section(skew.measure, skew.tiny, skew.table, needs_data=True),
    "upgraded-scores": Section(
        upgraded_scores.measure, upgraded_scores.tiny, upgraded_scores.table, needs_data=True
    ),
}


def listing(sections: Mapping[str, Section]) -> str:
    """Return a line for each section: its name, what it measures, and what it needs."""
    lines = []
    for name, section in sections.items():
        about = (sys.modules[section.measure.__module__].__doc__ or "").strip().splitlines()[0]
        lines.append(f"{name:20} {about}{' [real data]' if section.needs_data else ''}")
    return "\n".join(lines)
