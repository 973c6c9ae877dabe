"""`make bench`: measure, print, and with --write put the figures where the documents show them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import (
    alignment,
    alignment_objects,
    by_command,
    candidates,
    crossover,
    defaults,
    dumps,
    errors,
    fast_paths,
    gowalla,
    graphs,
    growth,
    known_consumers,
    losses,
    measure,
    pinned,
    plots,
    postgres_fast_path,
    quality,
    ranking_memory,
    rewriting,
    serving,
    snapshot_engine,
    steps,
    table3,
    text,
    towers,
)

ROOT = gowalla.ROOT


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
    """

    measure: Callable[[], Any]
    tiny: Callable[[], Any]
    table: Callable[[Any], str] = str
    drawn: bool = False
    needs_data: bool = False
    pictures: Callable[[Any], dict[str, bytes]] = lambda _: {}


def _quality(name: str, kind: str) -> Section:
    return Section(
        partial(quality.quality, name),
        partial(quality.tiny, kind),
        quality.table,
        drawn=True,
        needs_data=True,
    )


SECTIONS = {
    "timing": Section(
        measure.view_throughput, partial(measure.view_throughput, (8,), 1000), measure.table
    ),
    "steps": Section(steps.step_ratios, steps.tiny, steps.table),
    "alignment": Section(alignment.measure, alignment.tiny, alignment.table),
    "candidates": Section(candidates.measure, candidates.tiny, candidates.table, needs_data=True),
    "growth": Section(growth.growth, growth.tiny, growth.table, drawn=True),
    "ranking-memory": Section(ranking_memory.measure, ranking_memory.tiny, ranking_memory.table),
    "crossover": Section(crossover.crossover, crossover.tiny, crossover.table, drawn=True),
    "serving-transform": Section(
        serving.transform_rates, serving.tiny_transform, serving.transform_table
    ),
    "serving-fetch": Section(serving.fetches, serving.tiny_fetches, serving.fetch_table),
    "serving-fast-paths": Section(
        fast_paths.fast_paths, fast_paths.tiny_fast_paths, fast_paths.table
    ),
    "serving-search": Section(serving.searches, serving.tiny_searches, serving.search_table),
    "snapshot-engine": Section(
        snapshot_engine.measure, snapshot_engine.tiny, snapshot_engine.table
    ),
    "fast-paths": Section(
        postgres_fast_path.measure, postgres_fast_path.tiny, postgres_fast_path.table
    ),
    "pinned": Section(pinned.measure, pinned.tiny, pinned.table, needs_data=True),
    "transform": Section(rewriting.measure, rewriting.tiny, rewriting.table),
    "errors": Section(errors.errors, errors.tiny, errors.table, drawn=True),
    "dumps": Section(dumps.measure, dumps.tiny, dumps.table),
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
    "defaults-large": Section(
        defaults.measure_large, defaults.tiny, defaults.table, needs_data=True
    ),
    "losses": Section(losses.measure, losses.tiny, losses.table, needs_data=True),
    "quality-movielens": _quality("movielens", "random"),
    "quality-gowalla": _quality("gowalla", "given"),
    "towers": Section(towers.section, towers.tiny, needs_data=True),
    "graph-steps": Section(graphs.steps_section, graphs.tiny_steps, needs_data=True),
    "graph-quality": Section(graphs.quality_section, graphs.tiny_quality, needs_data=True),
    "alignment-objects": Section(
        alignment_objects.measure, alignment_objects.tiny, alignment_objects.table, needs_data=True
    ),
    "known-consumers": Section(
        known_consumers.measure, known_consumers.tiny, known_consumers.table, needs_data=True
    ),
    "table3": Section(table3.section, table3.tiny, needs_data=True),
    "text": Section(text.measure, text.tiny, text.table, needs_data=True),
}
DOCUMENTS = [ROOT / "README.md"] + [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "align",
        "results",
        "training",
        "two-tower",
        "graph",
        "upgrading",
        "compare",
        "serving",
        "snapshot-engine",
        "stores",
        "wikipedia",
    )
]


def put(name: str, text: str) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- end name -->` in the documents."""
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    for path in DOCUMENTS:
        document = path.read_text()
        if start in document:
            before, rest = document.split(start)
            _, after = rest.split(end)
            path.write_text(f"{before}{start}\n{text}\n{end}{after}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run sections and return the exit code: 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--write", action="store_true", help="put the figures into the documents")
    parser.add_argument(
        "--tiny", action="store_true", help="show in seconds that a section runs; no real data"
    )
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {sorted(unknown)[0]}; there are {', '.join(SECTIONS)}")
    if chosen.tiny and chosen.write:
        parser.error("--tiny shows that a section runs; its figures are not for the documents")
    failed, left_out = [], []
    for name in chosen.sections or SECTIONS:
        if SECTIONS[name].needs_data and not chosen.tiny and not gowalla.available():
            left_out.append(name)
            continue
        try:
            show(name, tiny=chosen.tiny, write=chosen.write)
        except Exception:
            # One section's failure is not the next one's.
            failed.append(name)
            print(f"\n## {name}\n\nfailed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    if left_out:
        print(f"\nLeft out, as real data is not at {gowalla.DATA}: {', '.join(left_out)}.")
    if failed:
        print(f"\nFailed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


def show(name: str, *, tiny: bool, write: bool) -> None:
    """Measure a section, print its table, and with `write` put it into the documents."""
    section = SECTIONS[name]
    figures = section.tiny() if tiny else section.measure()
    text = section.table(figures)
    print(f"\n## {name}\n\n{text}", flush=True)
    if section.drawn and (tiny or write):
        with tempfile.TemporaryDirectory() as folder:
            plots.draw([figures], Path(folder) if tiny else ROOT / "docs")
    pictures = section.pictures(figures) if write else {}
    if write:
        put(name, text)
    for picture, content in pictures.items():
        (ROOT / "docs" / picture).write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
