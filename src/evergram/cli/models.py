"""Commands that train models, tune them and measure them."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergram.cli.app import app, is_json
from evergram.cli.failures import INTERRUPTED
from evergram.cli.options import (
    AllowSmallOverlap,
    As,
    Board,
    CheckpointEvery,
    Device,
    From,
    Kept,
    LineageFolder,
    LineageOption,
    MaxDegradation,
    Minutes,
    NoPromote,
    RecipeFile,
    Report,
    Resume,
    Set,
    StrictProbes,
    Thorough,
    load_recipe,
    new_progress,
    refuse_shared_fit,
    refuse_unread,
)
from evergram.cli.printing import dump, metrics_table, number, print_diagnosis, print_version, table
from evergram.collectives import is_first_process
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.releasing.demo import DemoVersion
    from evergram.training.tuning.trials import Tuned


@app.command(epilog="Example: evergram train recipe.toml --lineage lineages/shop")
def train(
    recipe: RecipeFile,
    lineage: LineageOption,
    device: Device = "auto",
    set_: Set = None,
    thorough: Thorough = False,
    minutes: Minutes = None,
    tensorboard: Board = None,
    checkpoint_every: CheckpointEvery = None,
    resume: Resume = "auto",
    report: Report = None,
) -> None:
    """Train version 0 and publish it as a new lineage."""
    from evergram.lineage.lineage import Lineage
    from evergram.releasing import release
    from evergram.releasing.upgrade import train as train_version
    from evergram.releasing.version_report import refuse_unwritable
    from evergram.training.checkpoints.settings import CheckpointSettings

    checkpoints = CheckpointSettings.of(checkpoint_every, resume=resume)
    chosen = load_recipe(recipe, set_, unread=("upgrade",), thorough=thorough)
    if not is_first_process():
        train_version(chosen, device=device, progress=False)
        return
    refuse_unwritable(report)  # before a lineage is made
    artefact = release.train_and_publish(
        chosen,
        Lineage.create(lineage, chosen.name),
        device=device,
        progress=new_progress(),
        board=tensorboard,
        checkpoints=checkpoints,
        report=report,
        minutes=minutes,
    )
    return print_version(lineage, dict(artefact.metrics), report)


@app.command(
    epilog="Example: evergram upgrade recipe.toml --lineage lineages/shop --max-degradation 2"
)
def upgrade(
    recipe: RecipeFile,
    lineage: LineageOption,
    device: Device = "auto",
    set_: Set = None,
    thorough: Thorough = False,
    minutes: Minutes = None,
    tensorboard: Board = None,
    max_degradation: MaxDegradation = None,
    strict_probes: StrictProbes = False,
    allow_small_overlap: AllowSmallOverlap = False,
    no_promote: NoPromote = False,
    checkpoint_every: CheckpointEvery = None,
    resume: Resume = "auto",
    kept: Kept = False,
    report: Report = None,
) -> None:
    """Train the next version with its backward transform, and publish it."""
    from evergram.lineage.lineage import Lineage
    from evergram.releasing import release
    from evergram.releasing.upgrade import upgrade as upgrade_version
    from evergram.training.checkpoints.settings import CheckpointSettings

    checkpoints = CheckpointSettings.of(checkpoint_every, resume=resume)
    refuse_shared_fit(kept=kept)
    chosen = load_recipe(recipe, set_, thorough=thorough)
    opened = Lineage.open(lineage)
    if not is_first_process():
        small = allow_small_overlap
        upgrade_version(chosen, opened, device=device, progress=False, allow_small_overlap=small)
        return
    small, promote = allow_small_overlap, not no_promote
    published = release.upgrade_and_publish(
        chosen,
        opened,
        release.ReleaseOptions(max_degradation, strict_probes, promote, small, kept),
        device=device,
        progress=new_progress(),
        board=tensorboard,
        checkpoints=checkpoints,
        report=report,
        minutes=minutes,
    )
    return print_version(lineage, dict(published.metrics), report)


@app.command(epilog="Example: evergram diagnose lineages/shop --out diagnosis.html")
def diagnose(
    lineage: LineageFolder,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Draw the result in this file.")
    ] = None,
    steps: Annotated[
        int, typer.Option(min=2, help="Steps of training to repeat, of which 20 are measured.")
    ] = 200,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Entities an estimator sees in a step (default: 128, 1024)."),
    ] = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Measure the newest version's spectrum and scores, and the error of each Gramian estimator.

    The first steps of its training are repeated, and every estimator is measured against the exact
    Gramian along them. Nothing is published.
    """
    from evergram.evaluation.reports.run_reports import write_diagnosis
    from evergram.lineage.lineage import Lineage
    from evergram.training.diagnose import diagnose as diagnose_version
    from evergram.training.recipe import Recipe
    from evergram.training.recipe.recipe import refuse_unknown_kinds

    if out is not None and out.suffix != ".html":
        raise DataError(f"--out {out} must end in .html.")
    opened = Lineage.open(lineage)
    refuse_unread(set_, ("name", "metrics", "training.epochs", "upgrade"))
    values = opened.recipe(opened.newest)
    refuse_unknown_kinds(values, f"version {opened.newest} of {lineage}")
    recipe = Recipe.stored(values, set_ or [])
    diagnosis = diagnose_version(
        recipe,
        opened,
        steps=steps,
        every=max(1, steps // 20),
        batch_sizes=batch,
        device=device,
        progress=new_progress(),
    )
    facts = diagnosis.as_json()
    if out is not None:
        errors = facts["steps"], facts["gramian_errors"], facts["gradient_errors"]
        write_diagnosis(out, diagnosis.histograms, *errors)
    if is_json():
        dump({"lineage": str(lineage), **facts})
        return
    print_diagnosis(diagnosis, steps)
    if out is not None:
        sys.stdout.write(f"Plots: {out}\n")


@app.command(epilog="Example: evergram demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the lineage and the report.")] = Path(
        "demo"
    ),
    data: Annotated[
        Path | None, typer.Option(help="MovieLens, a folder or zip (default: synthetic).")
    ] = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Show the whole story: version 0, three upgrades, and a consumer that never changes."""
    from evergram.evaluation.reports.run_reports import write_demo
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.demo import demo_recipe, run_demo

    recipe = demo_recipe(data, set_ or [])
    lineage = Lineage.create(out / "lineage", recipe.name)
    versions = run_demo(recipe, lineage, device=device, progress=new_progress())
    rows = [version.as_json() for version in versions]
    report = write_demo(out / "report.html", rows, recipe.training.metric)
    if is_json():
        dump({"versions": rows, "report": str(report), "lineage": str(lineage.path)})
        return
    _print_demo(versions, recipe.training.metric)
    sys.stdout.write(f"Report: {report}\n")


_DEMO_EXPLAINED = """\
{metric}: how well each version ranks what came next; that is another test for each version, so
compare it with the same model trained alone, without a way back, and with popularity, in its row.
A classifier of another team was trained once, on version 0, and never changed.
AUC chain: it reads each version through the maps back to version 0; 0.5 is a guess.
AUC raw: it is given each version's vectors as they are, cut or filled to its length.
drift: distance from version 0's vectors after the chain, as a share of their length.
"""


def _print_demo(versions: list[DemoVersion], metric: str) -> None:
    """Print a line for each version: how well it ranks, and what the consumer keeps."""
    lines = [
        [
            str(v.version),
            str(v.dim),
            *(number(v.metrics.get(k, {}).get(metric)) for k in ("model", "alone", "popularity")),
            number(v.consumer_chain),
            number(v.consumer_raw),
            number(v.drift),
        ]
        for v in versions
    ]
    header = ["version", "dim", metric, "alone", "popular", "AUC chain", "AUC raw", "drift"]
    table("A consumer built on version 0", header, lines)
    sys.stdout.write(_DEMO_EXPLAINED.format(metric=metric))


@app.command(
    epilog="Example: evergram tune recipe.toml --out trials --over model.dim=16,32,64 --over "
    "task.penalty=log:1..100"
)
def tune(
    recipe: RecipeFile,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for trials and best.toml.")],
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Search KEY=LOW..HIGH, KEY=log:LOW..HIGH or KEY=VALUE,VALUE (repeatable; default: "
            "by task).",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Trials in all, those in FOLDER included.")] = 20,
    minutes: Annotated[
        float | None, typer.Option(help="End after so many minutes (default: no limit).")
    ] = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Train a recipe with many values of its keys, and keep the best by the selection pairs."""
    from evergram.evaluation.reports.run_reports import write_tuning
    from evergram.training.tuning.best_recipe import write_best
    from evergram.training.tuning.trials import tune as tune_recipe

    chosen = load_recipe(recipe, set_, unread=("upgrade",))
    tuned = tune_recipe(
        chosen,
        over,
        out,
        trials=trials,
        minutes=minutes,
        device=device,
        progress=new_progress(),
    )
    best = out / "best.toml"
    write_best(best, recipe, [*(set_ or []), *tuned.best.overrides])
    facts = tuned.as_json()
    picture = write_tuning(out / "trials.html", facts["trials"], chosen.training.metric)
    if is_json():
        dump({**facts, "recipe": str(best), "picture": str(picture)})
    else:
        _print_trials(tuned, chosen.training.metric)
        sys.stdout.write(f"Recipe with the best values: {best}\nPicture: {picture}\n")
    if tuned.ended == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _print_trials(tuned: Tuned, metric: str) -> None:
    """Print a line for each trial, best first, and why trials failed."""
    keys = list(tuned.best.values)
    lines = [
        [
            str(trial.number),
            *(v if isinstance(v, str) else f"{v:.4g}" for v in trial.values.values()),
            number(trial.value),
            str(trial.epochs),
            f"{trial.seconds:.1f}",
            trial.state,
        ]
        for trial in tuned.ranked
    ]
    names = [key.rpartition(".")[2] for key in keys]
    # Short where they tell keys apart, as a line has 80 columns where it is no terminal.
    shown = names if len(set(names)) == len(names) else keys
    header = ["trial", *shown, metric, "epochs", "seconds", "state"]
    table("Trials, by the selection pairs", header, lines)
    for trial in tuned.ranked:
        if trial.error:
            sys.stdout.write(f"Trial {trial.number} failed: {trial.error}\n")
    if tuned.ended == "exhausted":
        sys.stdout.write("All values of the search were tried; there are no others.\n")
    elif tuned.ended != "trials":
        why = "the minutes were over" if tuned.ended == "minutes" else "it was interrupted"
        sys.stdout.write(f"The search ended early: {why}. The same command goes on.\n")


# Tables of a recipe that an evaluation does not read.
NOT_EVALUATED = ("name", "model", "task", "prior", "gramian", "training", "upgrade")


class Index(StrEnum):
    """Kinds of an index of candidates."""

    hnsw = "hnsw"
    ivf = "ivf"


@app.command(epilog="Example: evergram evaluate lineages/shop --as v0")
def evaluate(
    lineage: LineageFolder,
    as_version: As = None,
    from_version: From = None,
    queries: Annotated[
        int | None, typer.Option(min=2, help="Rank so many test queries, drawn (default: all).")
    ] = None,
    index: Annotated[
        Index | None,
        typer.Option(help="Rank by an index, whose recall is measured and shown."),
    ] = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Measure the stored embeddings, read as any version, on the newest version's test pairs.

    The data is read from where the newest version's recipe says; --set data.path=PATH if it moved.
    """
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.evaluate import Ranking
    from evergram.releasing.evaluate import evaluate as evaluate_version
    from evergram.training.recipe import Recipe
    from evergram.training.recipe.recipe import without_unknown_kinds

    opened = Lineage.open(lineage)
    refuse_unread(set_, NOT_EVALUATED)
    values = without_unknown_kinds(opened.recipe(opened.newest))
    recipe = Recipe.stored(values, set_ or [])
    view = opened.view(as_version, from_version)
    source, read_as = view.source, view.version
    ranking = Ranking(queries, None if index is None else index.value)
    measured = evaluate_version(
        recipe, opened, read_as, source=source, device=device, ranking=ranking
    )
    metrics = {name: measured[name] for name in ("model", "popularity")}
    beside = {name: value for name, value in measured.items() if name not in metrics}
    if is_json():
        dump({"version": source, "as": read_as, "metrics": metrics, **beside})
        return
    title = f"Version {source} read as version {read_as}"
    metrics_table(title, metrics, beside.get("sampled"))
    if unknown := beside.get("unknown"):
        sys.stdout.write(
            f"{unknown['query']:,} queries and {unknown['candidate']:,} candidates of the data "
            "have no stored vector: such queries are left out, and such candidates are misses.\n"
        )
    if by := beside.get("index"):
        sys.stdout.write(
            f"Ranked by an index ({by['kind']}), which finds {by['recall']:.1%} of the "
            f"{by['k']} best candidates (measured on {by['queries']:,} queries).\n"
        )
