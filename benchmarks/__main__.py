"""`make bench`: measure, print, and with --write put the figures where the documents show them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import (
    alignment,
    candidates,
    crossover,
    dumps,
    errors,
    gowalla,
    graphs,
    growth,
    measure,
    pinned,
    plots,
    quality,
    rewriting,
    serving,
    steps,
    table3,
    text,
    towers,
)

ROOT = gowalla.ROOT


def run(*arguments: str) -> dict[str, Any]:
    """The command, as a person runs it; its JSON."""
    code = "from evergram.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def movielens_section(recipe: str = "movielens", seeds: range = range(3)) -> str:
    """Version 0, its upgrade, and what reading version 1 as version 0 keeps, for some seeds."""
    lines = [
        "| seed | version 0 | popularity | version 1 | trained alone | popularity "
        "| v0 itself | v1 through the chain | own queries × v1, chain | own queries × v1, raw "
        "| v1 raw on both sides | seconds |",
        "|" + "---|" * 12,
    ]
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            common = (f"recipes/{recipe}.toml", "--lineage", folder + "/l", "--seed", str(seed))
            first, second = run("train", *common), run("upgrade", *common)
        ranking = second["compatibility"]["0"]["ranking"]
        names = ("past", "chain", "chain_candidates", "raw_candidates", "raw")
        seconds = first["training"]["seconds"] + second["training"]["seconds"]
        cells = [
            first["metrics"]["model"],
            first["metrics"]["popularity"],
            second["metrics"]["model"],
            second["metrics"]["alone"],
            second["metrics"]["popularity"],
            *(ranking[name] for name in names),
        ]
        values = " | ".join(f"{c['recall@20']:.4f}" for c in cells)
        lines.append(f"| {seed} | {values} | {seconds:.0f} |")
    return "\n".join(lines)


def gowalla_section() -> str:
    gowalla.convert()
    with tempfile.TemporaryDirectory() as folder:
        found = run("train", "recipes/gowalla.toml", "--lineage", folder + "/l")
    model, popularity = found["metrics"]["model"], found["metrics"]["popularity"]
    lines = ["| | Recall@20 | NDCG@20 | seconds of training |", "|---|---|---|---|"]
    for name, values, seconds in (
        ("Evergram, 64-d factorization, SOGram", model, f"{found['training']['seconds']:.0f}"),
        ("popularity", popularity, "–"),
    ):
        lines.append(
            f"| {name} | {values['recall@20']:.4f} | {values['ndcg@20']:.4f} | {seconds} |"
        )
    return "\n".join(lines)


def timing_section() -> str:
    lines = [
        "| transform through a chain of three | rate over a bare matrix product |",
        "|---|---|",
    ]
    lines += [f"| {name} | {ratio:.2f} |" for name, ratio in measure.view_throughput().items()]
    return "\n".join(lines)


def demo_section() -> str:
    """Run the demo and keep its picture for the README."""
    with tempfile.TemporaryDirectory() as folder:
        found = run("demo", "--out", folder)
        picture = Path(folder) / "report.png"
        (ROOT / "docs" / "demo.png").write_bytes(picture.read_bytes())
    lines = [
        "| version | dim | Recall@20 | popularity | consumer AUC, chain | consumer AUC, raw |",
        "|---|---|---|---|---|---|",
    ]
    for v in found["versions"]:
        metrics, consumer = v["metrics"], v["consumer"]
        lines.append(
            f"| {v['version']} | {v['dim']} | {metrics['model']['recall@20']:.4f} | "
            f"{metrics['popularity']['recall@20']:.4f} | {consumer['auc_chain']:.4f} | "
            f"{consumer['auc_raw']:.4f} |"
        )
    return "\n".join(lines)


@dataclass(frozen=True)
class Section:
    """What is measured, and the table of it; what can be drawn is, with --write."""

    measure: Callable[[], Any]
    table: Callable[[Any], str] = str
    drawn: bool = False
    needs_data: bool = False
    # Pictures for docs/, by name.
    pictures: Callable[[], dict[str, bytes]] = dict


SECTIONS = {
    "timing": Section(timing_section),
    "steps": Section(steps.steps_section),
    "alignment": Section(alignment.section),
    "candidates": Section(candidates.section, needs_data=True),
    "growth": Section(growth.growth, growth.table, drawn=True),
    "crossover": Section(crossover.crossover, crossover.table, drawn=True),
    "serving-transform": Section(serving.transform_rates, serving.transform_table),
    "serving-fetch": Section(serving.fetches, serving.fetch_table),
    "serving-search": Section(serving.searches, serving.search_table),
    "pinned": Section(pinned.measure, pinned.table, needs_data=True),
    "transform": Section(rewriting.measure, rewriting.table),
    "errors": Section(errors.errors, errors.table, drawn=True),
    "dumps": Section(dumps.section),
    "demo": Section(demo_section),
    "movielens": Section(movielens_section, needs_data=True),
    "movielens-growing": Section(partial(movielens_section, "movielens-growing"), needs_data=True),
    "gowalla": Section(gowalla_section, needs_data=True),
    "quality-movielens": Section(
        partial(quality.quality, "movielens"), quality.table, drawn=True, needs_data=True
    ),
    "quality-gowalla": Section(
        partial(quality.quality, "gowalla"), quality.table, drawn=True, needs_data=True
    ),
    "towers": Section(towers.section, needs_data=True),
    "graph-steps": Section(graphs.steps_section, needs_data=True),
    "graph-quality": Section(graphs.quality_section, needs_data=True),
    "table3": Section(
        partial(table3.section, "table3-movielens"),
        needs_data=True,
        pictures=partial(table3.figures, "table3-movielens"),
    ),
    "table3-factorization": Section(
        partial(table3.section, "table3-factorization"),
        needs_data=True,
        pictures=partial(table3.figures, "table3-factorization"),
    ),
    "text": Section(text.measure, text.table, needs_data=True),
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--write", action="store_true", help="put the figures into the documents")
    chosen = parser.parse_args()
    unknown = set(chosen.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {sorted(unknown)[0]}; there are {', '.join(SECTIONS)}")
    for name in chosen.sections or SECTIONS:
        section = SECTIONS[name]
        if section.needs_data and not gowalla.available():
            print(f"\n{name}: left out, real data is not at {gowalla.DATA}")
            continue
        found = section.measure()
        text = section.table(found)
        print(f"\n## {name}\n\n{text}", flush=True)
        if chosen.write:
            put(name, text)
            if section.drawn:
                plots.draw([found], ROOT / "docs")
            for name, picture in section.pictures().items():
                (ROOT / "docs" / name).write_bytes(picture)


if __name__ == "__main__":
    main()
