"""docs/reproduction.md: the conclusions, and the table, figure and verdicts of each experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reproduction import evidence
from reproduction.catalogue import EXPERIMENTS, runs_of
from reproduction.claims import Judgement, judge
from reproduction.experiment import Experiment, Runs, Table
from reproduction.report.conclusion import conclusion
from reproduction.report.drawing import draw
from reproduction.results import write_text

HEAD = """# The papers, reproduced

What a practitioner should conclude from the results below:

{conclusion}

{stale}These are small settings for two cores. They test whether an effect of the papers [G1],
[G2] and [BC] ([sources](method.md#sources)) exists at this size, not whether the papers' own
figures are right: none of the papers' corpora is here, so their figures are not printed beside
ours. `python -m reproduction report` writes this page from [the results](../reproduction/results);
`python -m reproduction NAME --preset small` runs an experiment (`--help` has the options).

## How a claim is judged

A claim is a margin for each seed. It is **confirmed** where the 95 % interval of the mean is
above zero, **refuted** where it is below. The best of several is a comparison with each of them;
Holm's correction widens these intervals, and the smallest margin is shown. A claim is **not
tested** where its premise fails (models below popularity, consumers near chance, objects that
version 0 cannot embed) or where the training is too short to refute it. A result is stale where
the experiment's tiny preset gives other figures today, or where none were kept; `python -m
reproduction stale` runs it again.

**Settings by trials** are the λ, rate and l2 that find most on the validation pairs of a split of
their own. **Uniform measure**: under the papers', that of examples, these models find less than
popularity.

Of {total} verdicts here {counts}; without any effect, about
{chance} would be separated by chance."""

MISSING = """## What is missing

- **The papers' corpora.** Wikipedia's dumps ([G1] Tables 1, 3; [G2] Tables 1, 5), MovieLens 10M
  and Amazon 2018 are not here, nor the GPU hours of their settings.
- **Tuning of each method** where batch sizes, rates or α are compared ([G2] Tables 3, 4): λ is the
  same for all methods there. α of SOGram is never tuned but by the papers' own values.
- **BCT, which [BC] discusses, and FCT** are impossible here: they train on labelled images,
  through the old classifier or with side information of each image, and interactions have none.
  λ-orthogonality, made for images too, is
  [fitted to our vectors](#transforms-fitted-after-the-model).
- **The full setting of [BC]**: 500 passes at 256 to 512 dims. The models here have {passes}.
- **Weights of single pairs** ([G2] App. C) have no row but that observed pairs are left out: no
  corpus here has weights.
- **Global orthogonal regularisation** ([G2]), **decreasing α** ([G1] §4.3, future work) and
  **losses weighed by known consumers** ([BC] §7, future work) are not implemented.
- **Drawings and lists** ([G1] and [G2] Figure 1; [BC] Figures 1 and 2, Table 1) have nothing to
  measure. That uniform sampling has a smaller gradient error than sqrt ([G2] App. E.2), and the
  hours of MovieLens (App. F), are not tested."""


@dataclass(frozen=True)
class Section:
    """The results of an experiment's preset."""

    experiment: Experiment
    preset: str
    runs: Runs
    judgements: Sequence[Judgement]
    stale: bool  # whether today's code would give other results, or this is unknown

    @property
    def corpus(self) -> str:
        return self.experiment.presets[self.preset].corpus

    @property
    def picture(self) -> str:
        """The path of its figure, relative to the page."""
        name = self.experiment.name.replace("/", "-")
        return f"reproduction/{name}{'' if self.preset == 'small' else f'-{self.preset}'}.svg"


LAMBDA = "task.penalty"
README = ("<!-- versions -->", "<!-- end versions -->")


def sections_of(folder: Path) -> list[Section]:
    """Return a section for each preset that the page shows."""
    made = []
    for experiment in EXPERIMENTS.values():
        for preset in experiment.reported:
            runs = runs_of(experiment, preset, folder)
            judged = [judge(c, runs if runs.seeds else None) for c in experiment.claims_on(preset)]
            stale = bool(runs.seeds) and evidence.state(experiment, preset, folder) != "current"
            made.append(Section(experiment, preset, runs, judged, stale))
    return made


def write_report(results: Path, folder: Path, readme: Path | None = None) -> list[Path]:
    """Write `reproduction.md` and `reproduction/*.svg` into a folder.

    Args:
        results: the folder of results.
        readme: a file into which the conclusions about versions are written, between two marks.
    Returns: the paths, the page first. Raises: DataError: a result cannot be read.
    """
    sections = sections_of(results)
    files = {"reproduction.md": page(sections)}
    for section in sections:
        if section.runs.seeds and (panels := section.experiment.panels(section.runs)):
            files[section.picture] = draw(panels)
    for name, text in files.items():
        write_text(folder / name, text.rstrip("\n"))
    if readme is not None:
        before, rest = readme.read_text().split(README[0])
        lines = [f"- {line}" for line in conclusion(sections, "bc/table3")]
        said = "\n".join(lines).replace("](#", "](docs/reproduction.md#")
        after = rest.split(README[1])[1].rstrip("\n")
        write_text(readme, f"{before}{README[0]}\n{said}\n{README[1]}{after}")
    return [folder / name for name in files]


def page(sections: Sequence[Section]) -> str:
    """Return docs/reproduction.md."""
    run = [section for section in sections if section.runs.seeds]
    stale = sum(section.stale for section in run)
    judgements = [j for section in sections for j in section.judgements]
    verdicts = [str(j.verdict) for j in judgements]
    named = ("confirmed", "refuted", "not separable", "not tested", "not measured")
    counted = [f"{verdicts.count(name)} {name}" for name in named if name in verdicts]
    judged = sum(verdicts.count(name) for name in named[:3])
    parts = [
        HEAD.format(
            conclusion="\n".join(f"- {line}" for line in conclusion(sections)),
            stale=f"**{stale} of {len(run)} results here are stale.** " if stale else "",
            total=len(verdicts),
            counts=", ".join(counted),
            chance=f"{0.05 * judged:.0f}",
        ),
        MISSING.format(passes=_passes(sections)),
    ]
    settings: set[str] = set()
    for name, experiment in EXPERIMENTS.items():
        own = [section for section in sections if section.experiment.name == name]
        parts += _experiment(experiment, own, settings)
    return "\n\n".join([*parts, *_machines(sections)])


def table(made: Table) -> str:
    """Return a table in Markdown."""
    rows = [made.header, ["---"] * len(made.header), *made.rows]
    return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in rows)


def _experiment(
    experiment: Experiment, sections: Sequence[Section], settings: set[str]
) -> list[str]:
    """Return the paragraphs of one experiment.

    Args:
        settings: settings that the page has already described; this experiment's are added.
    """
    shown = "; ".join(f"[{paper}] {where}" for paper, where in experiment.shown.items())
    parts = [f"## {experiment.title}", f"`{experiment.name}`: {shown}. {experiment.caption}"]
    for section in sections:
        preset = experiment.presets[section.preset]
        note = " ".join(n for n in (preset.setting, preset.note) if n not in settings)
        settings |= {preset.setting, preset.note}
        edge, facts = _at_the_edge(section), _facts(section)
        words = [f"*{section.corpus or 'Setting'}.*", note, edge, facts]
        parts.append(" ".join(word for word in words if word))
        if section.runs.seeds:
            if experiment.panels(section.runs):
                parts.append(f"![{experiment.title}]({section.picture})")
            for made in experiment.tables(section.runs):
                parts += [f"**{made.title}**", table(made)]
    verdicts = []
    for place, claim in enumerate(experiment.claims):
        judged = [(section, section.judgements[place]) for section in sections]
        counted = any(j.bounds and not j.reason for _, j in judged)
        what = f" {claim.measured[0].upper()}{claim.measured[1:]}." if counted else ""
        named = len(sections) > 1
        here = "; ".join(f"{s.corpus}: " * named + _verdict(s, j) for s, j in judged)
        remarks = dict.fromkeys(j.claim.remark for _, j in judged if j.claim.remark)
        words = [f"- *{claim.sentence}* {claim.source}.{what} {here}.", *remarks]
        verdicts.append(" ".join(words))
    return [*parts, "\n".join(verdicts)] if verdicts else parts


def _at_the_edge(section: Section) -> str:
    """Return for how many methods the best λ is the largest tried: a larger may be better."""
    edge = []
    for training in section.experiment.presets[section.preset].trainings:
        tried = {t[LAMBDA] for t in getattr(training.search, "trials", ()) if LAMBDA in t}
        recipes = [r.settings.get("recipe", {}) for r in section.runs.of(training.label)[:1]]
        edge += [r.get("task", {}).get("penalty") == max(tried) for r in recipes if tried]
    largest = "methods the best λ is the largest tried."
    return f"For {sum(edge)} of {len(edge)} {largest}" if any(edge) else ""


def _facts(section: Section) -> str:
    results = [result for result in section.runs.all if result.seed in section.runs.seeds]
    if not results:
        return "Not run yet."
    seeds = section.runs.seeds
    minutes = sum(result.cpu_seconds for result in results) / 60 / len(seeds)
    commits = ", ".join(sorted({result.commit or "not known" for result in results}))
    few = "; too few for intervals" if len(seeds) < 3 else ""
    return (
        f"{len(seeds)} seed{'s' * (len(seeds) > 1)}{few}; {minutes:.1f} CPU minutes each; "
        f"commit {commits}."
    )


def _verdict(section: Section, judgement: Judgement) -> str:
    """Return a verdict with its margin and interval, or with the reason why there is no verdict."""
    text = f"**{judgement.verdict}**"
    if judgement.reason:
        return f"{text}: {judgement.reason}"
    if judgement.nearest is None or judgement.nearest not in judgement.bounds:
        return text
    low, high = judgement.bounds[judgement.nearest]
    text += f", {judgement.mean:+.3g} ({low:.3g} to {high:.3g})"
    if judgement.nearest and judgement.verdict != "confirmed":
        text += f" [{judgement.nearest}]"
    return text + " (stale)" * section.stale


def _machines(sections: Sequence[Section]) -> list[str]:
    """Return the machines and versions that computed the results."""
    every = [result for section in sections for result in section.runs.all]
    machines = {
        f"{r.machine['processor']}, {r.machine['cores']} cores, {r.machine['threads']} thread; "
        + ", ".join(f"{name} {number}" for name, number in r.versions.items())
        for r in every
    }
    return ["## Machine", "\n".join(f"- {each}" for each in sorted(machines))] if every else []


def _passes(sections: Sequence[Section]) -> str:
    found = [
        model["passes"]
        for section in sections
        for result in section.runs.all
        if "comparison" in result.series
        for models in result.series["comparison"]["trained"].values()
        for model in models.values()
    ]
    return f"{min(found)} to {max(found)} passes" if found else "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
