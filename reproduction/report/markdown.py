"""The report as a page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence

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
more. Each section says which commit its results are of. A verdict is stale where the tiny preset
of its experiment gives other figures today, or where none were kept; `evergram reproduce stale`
runs these again."""


def page(content: Content) -> str:
    """Return docs/reproduction.md."""
    parts = [HEAD, "## What there is", _list(content), "## Claims", _claims(content)]
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


def claim_rows(sections: Sequence[Section]) -> list[list[str]]:
    """Return a row for each claim: sentence, source, verdict, figure, interval, what it is."""
    rows = []
    for j, stale in ((j, section.stale) for section in sections for j in section.judgements):
        bounds, mean, verdict = "", "", str(j.verdict)
        if j.nearest is not None:
            mean = f"{j.mean:+.3g}" + (f" ({j.nearest})" if j.nearest else "")
            if j.nearest in j.bounds:
                bounds = "{:.3g} to {:.3g}".format(*j.bounds[j.nearest])
            elif verdict == "not separable":
                count = len(j.margins[j.nearest])
                verdict += f" ({count} seed{'s' if count > 1 else ''})"
        verdict += f": {j.reason}" if j.reason else ""
        verdict += " (stale)" if stale and j.margins else ""
        claim = j.claim
        rows.append([claim.sentence, claim.source, verdict, mean, bounds, claim.measured])
    return rows


CLAIM_HEADER = ("the papers say", "where", "here", "margin", "interval", "the margin is")


def _claims(content: Content) -> str:
    judged = [
        j for j in content.judgements if j.verdict in ("confirmed", "refuted", "not separable")
    ]
    comparisons = sum(len(j.margins) for j in judged)
    explanation = (
        "A claim is confirmed where the 95 % interval of its margin over seeds is above zero, and "
        "refuted where it is below. A claim about several competitors is a comparison with each, "
        "their intervals are widened by Holm's correction, and the row shows the smallest margin. "
        "Nothing is separable with fewer than three seeds. A claim is not tested where the models "
        "are below popularity, and not refuted by trainings that are too short for its effect; it "
        "is stale where the code would give other results today. "
        f"{len(judged)} claims are judged here by {comparisons} comparisons; if none had any "
        f"effect, about {0.05 * len(judged):.0f} of them would be separated by chance."
    )
    return explanation + "\n\n" + table(Table("", CLAIM_HEADER, claim_rows(content.sections)))


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
