"""Parts of an HTML page that loads nothing from elsewhere: sections, tables, lists."""

from __future__ import annotations

import html
from collections.abc import Sequence

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --page: #fff; --line: #d8dee4;
  --dim: #57606a; --one: #0550ae; --two: #a03c00; --mark: #fff4d6; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0d1117; --line: #30363d;
  --dim: #9da7b3; --one: #79c0ff; --two: #ffa657; --mark: #3a2d0b; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--text); background: var(--page); overflow-wrap: anywhere; }
h1, h2 { line-height: 1.25; } h2 { margin-top: 2.5rem; } .dim { color: var(--dim); }
.wide { overflow-x: auto; margin: 1rem 0; } .wide:focus-visible { outline: 2px solid var(--one); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th:first-child, th.words, td.words { text-align: left; } tbody th { font-weight: 400; }
.not-measured, .warnings { background: var(--mark); padding: .5rem .8rem; }
.warnings li { margin-left: 1rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr));
  gap: 1rem; }
figure { margin: 0; } figure svg { width: 100%; max-width: 30rem; height: auto; display: block; }
figcaption { font-weight: 600; } svg text { fill: var(--text); font: 11px system-ui, sans-serif; }
.grid { stroke: var(--line); } .one { stroke: var(--one); } .two { stroke: var(--two); }
.two-dashed { stroke: var(--two); stroke-dasharray: 5 3; } .curve { fill: none; stroke-width: 2; }
.area-one { fill: var(--one); opacity: .25; } .area-two { fill: var(--two); opacity: .25; }
.chosen { stroke: var(--text); stroke-dasharray: 2 3; } .dot { fill: var(--one); }
"""

NONE = "not measured"


def page(title: str, body: Sequence[str]) -> str:
    """Return a whole page; the parts of its body are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f"<title>{html.escape(title)}</title>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n<body><main>\n<h1>{html.escape(title)}</h1>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Return a section under a heading; the parts are HTML."""
    return "\n".join([f"<section>\n<h2>{html.escape(title)}</h2>", *parts, "</section>"])


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of text.

    Args:
        kind: its class.
    """
    of_kind = f' class="{kind}"' if kind else ""
    return f"<p{of_kind}>{html.escape(text)}</p>"


def not_measured(what: str, why: str) -> str:
    """Return the paragraph that stands in the place of a measure."""
    return paragraph(f"{what}: {NONE}. {why}", "not-measured")


def warning_list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="warnings">{items}</ul>'


def table(
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    words: Sequence[int] = (),
) -> str:
    """Return a table of texts with a caption; the first cell of a row is its header.

    A table that is wider than the screen scrolls, also by the keyboard.

    Args:
        words: columns of text, which stand to the left.
    """
    of_words = [' class="words"' if place in words else "" for place in range(len(header))]
    # A header without words is none.
    head = "".join(
        f'<th scope="col"{kind}>{html.escape(name)}</th>' if name else "<td></td>"
        for kind, name in zip(of_words, header, strict=True)
    )
    body = []
    for first, *cells in rows:
        line = [f'<th scope="row">{html.escape(first)}</th>']
        cells_of = zip(of_words[1:], cells, strict=True)
        line += [f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in cells_of]
        body.append(f"<tr>{''.join(line)}</tr>")
    name = html.escape(caption)
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{name}"><table>'
        f"<caption>{name}</caption><thead><tr>{head}</tr></thead>\n<tbody>"
        + "\n".join(body)
        + "</tbody></table></div>"
    )
