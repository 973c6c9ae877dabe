"""Benchmarks that run the command line: the demo."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks import ROOT

COMMAND = (sys.executable, "-m", "evergram")


def run(*arguments: str) -> dict[str, Any]:
    """Run the command as a user would, and return its JSON."""
    done = subprocess.run(
        [*COMMAND, *arguments, "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def served(lineage: Path) -> AbstractContextManager[str]:
    """Run `evergram serve` in a subprocess, and yield its address."""
    return listening(*COMMAND, "serve", str(lineage), "--port")


@contextmanager
def listening(*command: str) -> Iterator[str]:
    """Run a service in a subprocess, with a free port as last argument, and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*command, str(port)], cwd=ROOT)
    try:
        await_ready(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=60)


def await_ready(url: str, version: int | None = None) -> None:
    """Wait until a service is ready, and serves `version` if one is given."""
    for _ in range(600):
        try:
            answer = httpx.get(f"{url}/readyz")
            if answer.status_code == 200 and version in (None, answer.json().get("version")):
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{url} was not ready within a minute")


def demo(settings: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the versions that `evergram demo` reports."""
    overrides = [part for setting in settings for part in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        versions: list[dict[str, Any]] = run("demo", "--out", folder, *overrides)["versions"]
        return versions


def picture(versions: Sequence[Mapping[str, Any]]) -> bytes:
    """Draw the README's figure as PNG."""
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


def tiny_demo() -> list[dict[str, Any]]:
    return demo(["data.interactions=8000", "split.versions=[0.6, 0.8]", "training.epochs=2"])


def demo_table(versions: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| version | dim | Recall@20 | trained alone | popularity | consumer AUC, chain "
        "| consumer AUC, raw |",
        "|" + "---|" * 7,
    ]
    for v in versions:
        metrics, consumer = v["metrics"], v["consumer"]
        alone = f"{metrics['alone']['recall@20']:.4f}" if "alone" in metrics else "–"
        lines.append(
            f"| {v['version']} | {v['dim']} | {metrics['model']['recall@20']:.4f} | {alone} | "
            f"{metrics['popularity']['recall@20']:.4f} | {consumer['auc_chain']:.4f} | "
            f"{consumer['auc_raw']:.4f} |"
        )
    return "\n".join(lines)
