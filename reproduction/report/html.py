"""The report as one self-contained page of HTML, with its figures inside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from reproduction.experiment import Table
from reproduction.report.content import Content, Section
from reproduction.report.markdown import CLAIM_HEADER, claim_rows

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; }
body { padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; margin: .8rem 0; font-size: 13px; }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; }
th, td { text-align: left; vertical-align: top; }
thead > tr > * { border-bottom: 2px solid #888; }
figure { margin: 1rem 0; overflow-x: auto; }
svg { max-width: 100%; height: auto; }
.confirmed { color: #00654a; font-weight: 600; } .refuted { color: #a33c00; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: 13px; }
dt { color: #555; } dd { margin: 0; }
"""


def page(content: Content) -> str:
    """Return docs/reproduction.html."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>The papers’ tables and figures, beside ours</title><style>{STYLE}</style></head>",
        "<body><main><h1>The papers’ tables and figures, theirs beside ours</h1>",
        "<p>Made by <code>evergram reproduce report</code> from the kept results, never by hand. "
        "Solid lines are the papers’ methods, dashed ones baselines or the papers’ own figures; "
        "bands are 95 % intervals over seeds, where there are three or more.</p>",
        "<h2>What there is</h2>",
        _list(content),
        "<h2>Claims</h2>",
        _table(CLAIM_HEADER, claim_rows(content.sections), verdict=2),
        *map(_section, content.sections),
        "</main></body></html>",
    ]
    return "\n".join(parts)


def _list(content: Content) -> str:
    header = ("name", "shows", "", "small preset", "seeds", "the papers’ own setting")
    rows = [
        [
            row.name,
            "; ".join(f"[{paper}] {where}" for paper, where in row.shown.items()),
            row.title,
            row.state,
            str(len(row.seeds)) if row.seeds else "",
            row.paper_state,
        ]
        for row in content.rows
    ]
    return _table(header, rows)


def _section(section: Section) -> str:
    experiment = section.experiment
    shown = "; ".join(f"[{paper}] {where}" for paper, where in experiment.shown.items())
    facts = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in section.facts.items())
    figure = ""
    if section.svg:
        # A reader of the page's text hears the title; the numbers are in the tables.
        named = f'<svg role="img" aria-label="{escape(section.title)}"'
        svg = section.svg.replace("<svg", named, 1)
        figure = f'<figure data-values="{section.fingerprint}">{svg}</figure>'
    tables = "".join(_captioned(table) for table in section.tables)
    remarks = "".join(
        f"<p><em>{escape(j.claim.sentence)}</em> {escape(j.claim.remark)}</p>"
        for j in section.judgements
        if j.claim.remark
    )
    return (
        f"<h2>{escape(section.title)}</h2><p><code>{escape(section.name)}</code>: "
        f"{escape(shown)}. {escape(experiment.caption)}</p><dl>{facts}</dl>"
        f"{figure}{tables}{remarks}"
    )


def _captioned(table: Table) -> str:
    return f"<h3>{escape(table.title)}</h3>{_table(table.header, table.rows)}"


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, verdict: int | None = None
) -> str:
    """Return a table.

    Args:
        verdict: the column whose first word is the class of its cells.
    """
    # A header without words is none.
    head = "".join(f"<th>{escape(cell)}</th>" if cell else "<td></td>" for cell in header)
    lines = []
    for row in rows:
        cells = (
            f'<td class="{escape(cell.split()[0])}">{escape(cell)}</td>'
            if i == verdict
            else f"<td>{escape(cell)}</td>"
            for i, cell in enumerate(row)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
