"""Tables that the command itself makes: MovieLens and the demo."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import gowalla
from benchmarks.tiny import recipes


def run(*arguments: str) -> dict[str, Any]:
    """Run the command as a user does, and return its JSON."""
    code = "from evergram.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--json"],
        cwd=gowalla.ROOT, stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def movielens_section(
    recipe: Path | str = "recipes/movielens.toml", seeds: range = range(3)
) -> str:
    """Return a table of version 0, its upgrade, and how well version 1 is read as version 0, by
    seed."""
    lines = [
        "| seed | version 0 | popularity | version 1 | trained alone | popularity "
        "| v0 itself | v1 through the chain | own queries × v1, chain | own queries × v1, raw "
        "| v1 raw on both sides | seconds |",
        "|" + "---|" * 12,
    ]
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            common = (str(recipe), "--lineage", folder + "/l", "--set", f"seed={seed}")
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


def tiny_movielens() -> str:
    with recipes() as folder:
        return movielens_section(folder / "random.toml", range(1))


@dataclass(frozen=True)
class Demo:
    """The JSON that `evergram demo` reports, and its picture."""

    report: dict[str, Any]
    picture: bytes


def demo(settings: Sequence[str] = ()) -> Demo:
    overrides = [part for setting in settings for part in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        answer = run("demo", "--out", folder, *overrides)
        return Demo(answer, _picture(answer["versions"]))


def _picture(versions: Sequence[Mapping[str, Any]]) -> bytes:
    """Draw the figure of the README as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    quality, consumer, error = figure.subplots(1, 3)
    for who, label, style in (
        ("model", "this version", "o-"),
        ("alone", "same model, trained alone", "s--"),
        ("popularity", "popularity", "^:"),
    ):
        of = [
            (v["version"], v["metrics"][who]["recall@20"]) for v in versions if who in v["metrics"]
        ]
        if of:
            quality.plot(*zip(*of, strict=True), style, label=label)
    x = [v["version"] for v in versions]
    consumer.plot(x, [v["consumer"]["auc_chain"] for v in versions], "o-", label="with chain")
    consumer.plot(x, [v["consumer"]["auc_raw"] for v in versions], "x--", label="without")
    consumer.axhline(0.5, color="grey", linewidth=0.8, linestyle=":", label="chance")
    error.plot(x, [v["drift_relative"] for v in versions], "o-", label="held-out objects")
    titles = (
        "Intended task: recall@20",
        "Version-0 consumer: ROC-AUC",
        "Alignment error to version 0",
    )
    for axes, title in zip((quality, consumer, error), titles, strict=True):
        axes.set(title=title, xlabel="version", xticks=x)
        axes.grid(alpha=0.3)
        axes.legend()
    quality.set_ylim(bottom=0)
    error.set_ylim(bottom=0)
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=110)
    return target.getvalue()


def tiny_demo() -> Demo:
    return demo(["data.interactions=8000", "split.versions=[0.6, 0.8]", "training.epochs=2"])


def demo_table(measured: Demo) -> str:
    lines = [
        "| version | dim | Recall@20 | trained alone | popularity | consumer AUC, chain "
        "| consumer AUC, raw |",
        "|" + "---|" * 7,
    ]
    for v in measured.report["versions"]:
        metrics, consumer = v["metrics"], v["consumer"]
        alone = f"{metrics['alone']['recall@20']:.4f}" if "alone" in metrics else "–"
        lines.append(
            f"| {v['version']} | {v['dim']} | {metrics['model']['recall@20']:.4f} | {alone} | "
            f"{metrics['popularity']['recall@20']:.4f} | {consumer['auc_chain']:.4f} | "
            f"{consumer['auc_raw']:.4f} |"
        )
    return "\n".join(lines)
