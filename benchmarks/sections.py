"""The sections of the benchmarks: what measures each, and how its figures are shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import (
    alignment,
    alignment_objects,
    by_command,
    candidates,
    checkpoints,
    cluster_bias,
    cluster_growth,
    crossover,
    defaults,
    errors,
    evaluation_speed,
    fold_in,
    graphs,
    growth,
    heads,
    index_codes,
    kept_memory,
    known_consumers,
    large_run,
    last_epochs,
    losses,
    measure,
    migrations,
    partition_cost,
    pinned,
    postgres_fast_path,
    predictions,
    preparing,
    processes,
    published_splits,
    quality,
    query_means,
    ranking_memory,
    rewriting,
    scale_runs,
    selection_protocols,
    serving,
    sharded_tables,
    share_limits,
    sidecar_rounding,
    sidecar_searches,
    snapshot_engine,
    sql_functions,
    steps,
    streaming,
    table3,
    table_memory,
    text,
    text_serving,
    time_to_als,
    towers,
    training_rate,
    upgraded_scores,
    verdicts,
    walks,
    which_loss,
    which_loss_tuned,
)
from benchmarks.instrument.figures import Figure


@dataclass(frozen=True)
class Section:
    """A measurement, and how its figures are shown.

    Args:
        measure: takes the measurement and returns its figures.
        tiny: the same in seconds on small made-up data, to check that it runs.
        table: makes a table in Markdown of the figures of either.
        drawn: whether `plots.draw` makes a picture of the figures.
        needs_data: whether it reads real data.
        pictures: returns other pictures for docs/, by name.
        figures: returns the figures with their repeated measurements; None reads the table.
    """

    measure: Callable[[], Any]
    tiny: Callable[[], Any]
    table: Callable[[Any], str] = str
    drawn: bool = False
    needs_data: bool = False
    pictures: Callable[[Any], dict[str, bytes]] = lambda _: {}
    figures: Callable[[Any], list[Figure]] | None = None


def _quality(name: str, kind: str) -> Section:
    return Section(
        partial(quality.quality, name),
        partial(quality.tiny, kind),
        quality.table,
        drawn=True,
        needs_data=True,
    )


SECTIONS = {
    "walks": Section(walks.walked, walks.walked, walks.table),
    "timing": Section(
        measure.view_throughput, partial(measure.view_throughput, (8,), 1000), measure.table
    ),
    "steps": Section(steps.step_ratios, steps.tiny, steps.table),
    "steps-work": Section(steps.work_ratios, steps.tiny_work, steps.work_table),
    "training-rate": Section(
        training_rate.measure,
        training_rate.tiny,
        training_rate.table,
        figures=training_rate.figures,
    ),
    "scale-model": Section(
        scale_runs.measure, scale_runs.tiny, scale_runs.table, figures=scale_runs.figures
    ),
    "alignment": Section(alignment.measure, alignment.tiny, alignment.table),
    "candidates": Section(candidates.measure, candidates.tiny, candidates.table, needs_data=True),
    "processes": Section(processes.measure, processes.tiny, processes.table),
    "sharded-tables": Section(sharded_tables.measure, sharded_tables.tiny, sharded_tables.table),
    "growth": Section(growth.growth, growth.tiny, growth.table, drawn=True),
    "cluster-bias": Section(
        cluster_bias.measure, cluster_bias.tiny, cluster_bias.table, drawn=True
    ),
    "cluster-growth": Section(cluster_growth.measure, cluster_growth.tiny, cluster_growth.table),
    "ranking-memory": Section(ranking_memory.measure, ranking_memory.tiny, ranking_memory.table),
    "evaluation-speed": Section(
        evaluation_speed.measure, evaluation_speed.tiny, evaluation_speed.table
    ),
    "checkpoints": Section(checkpoints.measure, checkpoints.tiny, checkpoints.table),
    "preparing": Section(preparing.measure, preparing.tiny, preparing.table),
    "streaming": Section(streaming.measure, streaming.tiny, streaming.table),
    "large-run": Section(large_run.measure, large_run.tiny, large_run.table),
    "table-memory": Section(table_memory.measure, table_memory.tiny, table_memory.table),
    "crossover": Section(crossover.crossover, crossover.tiny, crossover.table, drawn=True),
    "serving-transform": Section(
        serving.transform_rates, serving.tiny_transform, serving.transform_table
    ),
    "serving-fetch": Section(serving.fetches, serving.tiny_fetches, serving.fetch_table),
    "serving-search": Section(serving.searches, serving.tiny_searches, serving.search_table),
    "snapshot-engine": Section(
        snapshot_engine.measure, snapshot_engine.tiny, snapshot_engine.table
    ),
    "index-codes": Section(
        index_codes.measure, index_codes.tiny, index_codes.table, needs_data=True
    ),
    "fast-paths": Section(
        postgres_fast_path.measure, postgres_fast_path.tiny, postgres_fast_path.table
    ),
    "pinned": Section(pinned.measure, pinned.tiny, pinned.table, needs_data=True),
    "transform": Section(rewriting.measure, rewriting.tiny, rewriting.table),
    "errors": Section(errors.errors, errors.tiny, errors.table, drawn=True),
    "demo": Section(
        by_command.demo,
        by_command.tiny_demo,
        by_command.demo_table,
        pictures=lambda demo: {"demo.png": demo.picture},
    ),
    "movielens": Section(
        by_command.movielens_section, partial(by_command.tiny_movielens, "random"), needs_data=True
    ),
    "movielens-growing": Section(
        partial(by_command.movielens_section, "recipes/movielens-growing.toml"),
        partial(by_command.tiny_movielens, "growing"),
        needs_data=True,
    ),
    "gowalla": Section(by_command.gowalla_section, by_command.tiny_gowalla, needs_data=True),
    "defaults": Section(defaults.measure, defaults.tiny, defaults.table, needs_data=True),
    "fold-in": Section(fold_in.measure, fold_in.tiny, fold_in.table, needs_data=True),
    "losses": Section(losses.measure, losses.tiny, losses.table, needs_data=True),
    "quality-movielens": _quality("movielens", "random"),
    "quality-gowalla": _quality("gowalla", "given"),
    "time-to-als": Section(
        time_to_als.measure, time_to_als.tiny, time_to_als.table, needs_data=True
    ),
    "published-splits": Section(
        published_splits.published_splits,
        published_splits.tiny,
        published_splits.table,
        needs_data=True,
    ),
    "selection-protocols": Section(
        selection_protocols.selection_protocols,
        selection_protocols.tiny,
        selection_protocols.table,
        needs_data=True,
    ),
    "kept-memory": Section(
        kept_memory.measure, kept_memory.tiny, kept_memory.table, needs_data=True
    ),
    "partition-cost": Section(
        partition_cost.partition_cost, partition_cost.tiny, partition_cost.table
    ),
    "sql-functions": Section(sql_functions.measure, sql_functions.tiny, sql_functions.table),
    "share-limits": Section(
        share_limits.share_limits, share_limits.tiny, share_limits.table, needs_data=True
    ),
    "last-epochs": Section(
        last_epochs.last_epochs, last_epochs.tiny, last_epochs.table, needs_data=True
    ),
    "which-loss": Section(which_loss.measure, which_loss.tiny, which_loss.table, needs_data=True),
    "which-loss-tuned": Section(
        which_loss_tuned.measure, which_loss_tuned.tiny, which_loss_tuned.table, needs_data=True
    ),
    "towers": Section(towers.section, towers.tiny, needs_data=True),
    "graph-steps": Section(graphs.steps_section, graphs.tiny_steps, needs_data=True),
    "graph-quality": Section(graphs.quality_section, graphs.tiny_quality, needs_data=True),
    "query-means": Section(query_means.section, query_means.tiny, needs_data=True),
    "alignment-objects": Section(
        alignment_objects.measure, alignment_objects.tiny, alignment_objects.table, needs_data=True
    ),
    "known-consumers": Section(
        known_consumers.measure, known_consumers.tiny, known_consumers.table, needs_data=True
    ),
    "table3": Section(table3.section, table3.tiny, needs_data=True),
    "sidecar-rounding": Section(
        sidecar_rounding.measure, sidecar_rounding.tiny, sidecar_rounding.table, needs_data=True
    ),
    "sidecar-searches": Section(
        sidecar_searches.measure, sidecar_searches.tiny, sidecar_searches.table, needs_data=True
    ),
    "migrations": Section(migrations.measure, migrations.tiny, migrations.table, needs_data=True),
    "verdicts": Section(verdicts.measure, verdicts.tiny, verdicts.table, needs_data=True),
    "heads": Section(heads.measure, heads.tiny, heads.table, needs_data=True),
    "predictions": Section(
        predictions.measure, predictions.tiny, predictions.table, needs_data=True
    ),
    "upgraded-scores": Section(
        upgraded_scores.measure, upgraded_scores.tiny, upgraded_scores.table, needs_data=True
    ),
    "text": Section(text.measure, text.tiny, text.table, needs_data=True),
    "text-serving": Section(
        text_serving.measure, text_serving.tiny, text_serving.table, needs_data=True
    ),
}


def listing(sections: Mapping[str, Section]) -> str:
    """Return a line for each section: its name, what it measures, and what it needs."""
    lines = []
    for name, section in sections.items():
        inner: Any = section.measure
        while isinstance(inner, partial):
            inner = inner.func
        about = (sys.modules[inner.__module__].__doc__ or "").strip().splitlines()[0]
        lines.append(f"{name:20} {about}{' [real data]' if section.needs_data else ''}")
    return "\n".join(lines)
