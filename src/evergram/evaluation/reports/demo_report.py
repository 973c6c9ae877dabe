"""Write the demo's report: one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evergram.atomic_files import write_bytes

Version = Mapping[str, Any]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1f24; background: #fff; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #d8dee4; }
th { font-weight: 600; }
figure { margin: 1.5rem 0; } figure svg { width: 100%; height: auto; }
"""


def write_report(path: Path, versions: Sequence[Version], metric: str) -> Path:
    """Write the result of `evergram demo`.

    Args:
        versions: one entry a version, as `DemoVersion.as_json` gives them.
        metric: the intended task's metric to plot.
    Returns: path; the figure is beside it as PNG, for places that show no HTML.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing = _draw(versions, metric, "svg").decode()
    svg = drawing[drawing.index("<svg") :]
    body = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Evergram demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{_STYLE}</style></head><body><main>
<h1>One consumer, {len(versions)} versions</h1>
<p>A classifier was trained once, on version 0's embeddings. Each later version was trained together
with a light transform back to the one before; only the newest embeddings are stored. Through the
chain of transforms the classifier keeps working; given the new embeddings as they are, it does
not.</p>
<p>Each version is tested on the interactions that came after its data, so the tests differ:
compare a version's {metric} with that of the same model trained alone, without a transform, on the
same data.</p>
<figure role="img" aria-label="Three plots by version; the table below holds their numbers">{svg}
</figure>
{_table(versions, metric)}
<p>Alignment error: mean ‖z̃₀ − z₀‖ over mean ‖z₀‖, on objects that alignment never saw.</p>
</main></body></html>
"""
    for target, content in (
        (path, body.encode()),
        (path.with_suffix(".png"), _draw(versions, metric, "png")),
    ):
        write_bytes(target, content)
    return path


def _draw(versions: Sequence[Version], metric: str, kind: str) -> bytes:
    # Without pyplot there is no display and no global state.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    x = [v["version"] for v in versions]
    with rc_context({"svg.hashsalt": "evergram", "font.size": 10}):
        figure = Figure(figsize=(12, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        quality, consumer, error = figure.subplots(1, 3)
        for who, label, style in (
            ("model", "this version", "o-"),
            ("alone", "same model, trained alone", "s--"),
            ("popularity", "popularity", "^:"),
        ):
            points = [
                (v["version"], v["metrics"][who][metric]) for v in versions if who in v["metrics"]
            ]
            if points:
                quality.plot(*zip(*points, strict=True), style, label=label)
        quality.set_title(f"Intended task: {metric}")
        consumer.plot(x, [v["consumer"]["auc_chain"] for v in versions], "o-", label="with chain")
        consumer.plot(x, [v["consumer"]["auc_raw"] for v in versions], "x--", label="without")
        consumer.axhline(0.5, color="grey", linewidth=0.8, linestyle=":", label="chance")
        consumer.set_title("Version-0 consumer: ROC-AUC")
        error.plot(x, [v["drift_relative"] for v in versions], "o-", label="held-out objects")
        error.set_title("Alignment error to version 0")
        quality.set_ylim(bottom=0)
        error.set_ylim(bottom=0)
        for axes in (quality, consumer, error):
            axes.set_xlabel("version")
            axes.set_xticks(x)
            axes.grid(alpha=0.3)
            axes.legend()
        target = io.BytesIO()
        figure.savefig(
            target, format=kind, dpi=110, metadata={"Date": None} if kind == "svg" else None
        )
    return target.getvalue()


def _table(versions: Sequence[Version], metric: str) -> str:
    header = [
        "version",
        "dim",
        metric,
        "trained alone",
        "popularity",
        "AUC with chain",
        "AUC without",
        "alignment error",
    ]
    rows = [
        [
            str(v["version"]),
            str(v["dim"]),
            *(
                f"{v['metrics'][who][metric]:.4f}" if who in v["metrics"] else "–"
                for who in ("model", "alone", "popularity")
            ),
            f"{v['consumer']['auc_chain']:.4f}",
            f"{v['consumer']['auc_raw']:.4f}",
            f"{v['drift_relative']:.4f}",
        ]
        for v in versions
    ]
    head = "".join(f'<th scope="col">{html.escape(h)}</th>' for h in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
