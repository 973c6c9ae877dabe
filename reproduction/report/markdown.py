"""The report as a page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.claims import Judgement
from reproduction.experiment import Table
from reproduction.report.content import Content, Section

HEAD = """# The papers' tables and figures, theirs beside ours

This page and [one file with the figures in it](reproduction.html) are made by
`evergram reproduce report` from the JSON in [reproduction/results](../reproduction/results), never
by hand. `evergram reproduce` lists the experiments, and `evergram reproduce NAME --preset small`
runs one ([commands](commands.md)). [G1], [G2] and [BC] are [the papers](method.md#sources). Small
presets fit two cores; they show whether an effect of the papers is there at small size, not whether
the papers' own figures are right. Lines that are solid are the papers' methods, dashed ones
baselines or the papers' own figures; bands are 95 % intervals over seeds, where there are three or
more.

Rows of SAGram are of an earlier order of its steps, and rows of Finetune-M0 of twice the present
number of passes; running their experiments again replaces them."""


def page(content: Content) -> str:
    """Return docs/reproduction.md."""
    parts = [HEAD, "## What there is", _list(content), "## Claims", _claims(content.judgements)]
    for section in content.sections:
        parts += _section(section)
    return "\n\n".join(parts)


def picture_name(section: Section) -> str:
    """Return the name of a section's picture, in the folder `reproduction` beside the page."""
    return section.name.replace("/", "-").replace(" --preset ", "-") + ".svg"


def table(made: Table) -> str:
    """Return a table in Markdown."""
    rows = [made.header, ["---"] * len(made.header), *made.rows]
    return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in rows)


def _list(content: Content) -> str:
    rows = []
    for row in content.rows:
        shown = "; ".join(f"[{paper}] {where}" for paper, where in row.shown.items())
        seeds = str(len(row.seeds)) if row.seeds else ""
        rows.append([f"`{row.name}`", shown, row.title, row.state, seeds, row.paper_state])
    header = ["name", "shows", "", "small preset", "seeds", "the papers' own setting"]
    return table(Table("", header, rows))


def claim_rows(judgements: Sequence[Judgement]) -> list[list[str]]:
    """Return a row for each claim: sentence, source, verdict, figure, interval, what it is."""
    rows = []
    for j in judgements:
        bounds = "" if j.bounds is None else f"{j.bounds[0]:.3g} to {j.bounds[1]:.3g}"
        verdict: str = j.verdict
        if verdict == "not separable" and j.bounds is None:
            verdict += f" ({len(j.margins)} seed{'s' if len(j.margins) > 1 else ''})"
        mean = "" if j.mean is None else f"{j.mean:+.3g}"
        claim = j.claim
        rows.append([claim.sentence, claim.source, verdict, mean, bounds, claim.measured])
    return rows


CLAIM_HEADER = ("the papers say", "where", "here", "margin", "95 % interval", "the margin is")


def _claims(judgements: Sequence[Judgement]) -> str:
    explanation = (
        "A claim is confirmed, or refuted, where the 95 % interval of its margin over seeds is "
        "above, or below, zero; with fewer than three seeds nothing is separable, and the sign of "
        "the margin is all there is."
    )
    return explanation + "\n\n" + table(Table("", CLAIM_HEADER, claim_rows(judgements)))


def _section(section: Section) -> list[str]:
    experiment = section.experiment
    shown = "; ".join(f"[{paper}] {where}" for paper, where in experiment.shown.items())
    parts = [f"## {section.title}", f"`{section.name}`: {shown}. {experiment.caption}"]
    parts.append("\n".join(f"- {name}: {text}" for name, text in section.facts.items()))
    if section.svg:
        parts.append(f"![{section.title}](reproduction/{picture_name(section)})")
    for made in section.tables:
        parts += [f"**{made.title}**", table(made)]
    parts += [
        f"*{j.claim.sentence}* {j.claim.remark}" for j in section.judgements if j.claim.remark
    ]
    return parts


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
