"""Tables that the command itself makes: MovieLens, Gowalla and the demo."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
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
    recipe: Path | str = "recipes/movielens.toml",
    seeds: range = range(3),
    settings: Sequence[str] = (),
) -> str:
    """Return a table of version 0, its upgrade, and how well version 1 is read as version 0, by
    seed."""
    lines = [
        "| seed | version 0 | popularity | version 1 | trained alone | popularity "
        "| v0 itself | v1 through the chain | own queries × v1, chain | own queries × v1, raw "
        "| v1 raw on both sides | seconds |",
        "|" + "---|" * 12,
    ]
    overrides = [part for setting in settings for part in ("--set", setting)]
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            common = (str(recipe), "--lineage", folder + "/l", "--set", f"seed={seed}", *overrides)
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


def tiny_movielens(kind: str) -> str:
    with recipes() as folder:
        return movielens_section(folder / f"{kind}.toml", range(1))


def gowalla_section() -> str:
    gowalla.convert()
    return gowalla_table(Path("recipes/gowalla.toml"))


def tiny_gowalla() -> str:
    with recipes() as folder:
        return gowalla_table(folder / "given.toml")


def gowalla_table(recipe: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        answer = run("train", str(recipe), "--lineage", folder + "/l")
    model, popularity = answer["metrics"]["model"], answer["metrics"]["popularity"]
    lines = ["| | Recall@20 | NDCG@20 | seconds of training |", "|---|---|---|---|"]
    for name, values, seconds in (
        ("Evergram, 64-d factorization, SOGram", model, f"{answer['training']['seconds']:.0f}"),
        ("popularity", popularity, "–"),
    ):
        lines.append(
            f"| {name} | {values['recall@20']:.4f} | {values['ndcg@20']:.4f} | {seconds} |"
        )
    return "\n".join(lines)


@dataclass(frozen=True)
class Demo:
    """The JSON that `evergram demo` reports, and its picture."""

    report: dict[str, Any]
    picture: bytes


def demo(settings: Sequence[str] = ()) -> Demo:
    overrides = [part for setting in settings for part in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        answer = run("demo", "--out", folder, *overrides)
        return Demo(answer, (Path(folder) / "report.png").read_bytes())


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
