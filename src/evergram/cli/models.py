"""Commands that train models, and measure them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergram.cli.app import app
from evergram.cli.options import (
    AllowSmallOverlap,
    Board,
    CheckpointEvery,
    Device,
    Json,
    KeepCheckpoints,
    Kept,
    LineageFolder,
    LineageOption,
    MaxDegradation,
    Minutes,
    NoPromote,
    RecipeFile,
    Report,
    Resume,
    Seed,
    Set,
    StrictProbes,
    Thorough,
    load_recipe,
    new_progress,
    refuse_shared_fit,
    refuse_unread,
    with_seed,
)
from evergram.cli.printing import dump, number, print_diagnosis, print_version, table
from evergram.collectives import is_first_process
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.releasing.demo import DemoVersion

# Keys that a comparison's methods set.
SET_BY_METHODS = tuple(
    f"upgrade.{key}"
    for key in ("method", "fit", "transform", "steps", "start", "solver", "objects", "alone")
)


@app.command(epilog="Example: evergram train recipe.toml --lineage lineages/shop")
def train(
    recipe: RecipeFile,
    lineage: LineageOption,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
    thorough: Thorough = False,
    minutes: Minutes = None,
    tensorboard: Board = None,
    checkpoint_every: CheckpointEvery = None,
    keep_checkpoints: KeepCheckpoints = 2,
    resume: Resume = "auto",
    report: Report = None,
) -> None:
    """Train version 0 and publish it as a new lineage."""
    from evergram.lineage.lineage import Lineage
    from evergram.releasing import release
    from evergram.releasing.html_report import refuse_unwritable
    from evergram.training.checkpoints.settings import CheckpointSettings

    checkpoints = CheckpointSettings.of(checkpoint_every, keep_checkpoints, resume)
    chosen = load_recipe(recipe, seed, set_, unread=("upgrade", "compare"), thorough=thorough)
    if not is_first_process():
        return release.take_part_in_training(chosen, device=device)
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
    return print_version(lineage, dict(artefact.metrics), as_json, report)


@app.command(
    epilog="Example: evergram upgrade recipe.toml --lineage lineages/shop --max-degradation 2"
)
def upgrade(
    recipe: RecipeFile,
    lineage: LineageOption,
    as_json: Json = False,
    seed: Seed = None,
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
    keep_checkpoints: KeepCheckpoints = 2,
    resume: Resume = "auto",
    kept: Kept = False,
    report: Report = None,
) -> None:
    """Train the next version with its backward transform, and publish it."""
    from evergram.lineage.lineage import Lineage
    from evergram.releasing import release
    from evergram.training.checkpoints.settings import CheckpointSettings

    checkpoints = CheckpointSettings.of(checkpoint_every, keep_checkpoints, resume)
    refuse_shared_fit(kept=kept)
    chosen = load_recipe(recipe, seed, set_, unread=("compare",), thorough=thorough)
    opened = Lineage.open(lineage)
    if not is_first_process():
        return release.take_part_in_upgrade(
            chosen, opened, device=device, allow_small_overlap=allow_small_overlap
        )
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
    return print_version(lineage, dict(published.metrics), as_json, report)


@app.command(epilog="Example: evergram diagnose lineages/shop --out diagnosis.png")
def diagnose(
    lineage: LineageFolder,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the result in this file.")
    ] = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps of training to repeat.")] = 200,
    every: Annotated[int, typer.Option(min=1, help="Steps between two measurements.")] = 10,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Entities an estimator sees in a step (default: 128, 1024)."),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=64, help="Measure against at most so many entities of a side.")
    ] = (100_000),
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Measure the newest version's spectrum and scores, and the error of each Gramian estimator.

    The first steps of its training are repeated, and every estimator is measured against the exact
    Gramian along them. Nothing is published.
    """
    from evergram.evaluation.reports.diagnosis_report import write_diagnosis
    from evergram.lineage.lineage import Lineage
    from evergram.training.diagnose import diagnose as diagnose_version
    from evergram.training.recipe import Recipe
    from evergram.training.recipe.recipe import refuse_unknown_kinds

    if out is not None and out.suffix != ".png":
        raise DataError(f"--out {out} must end in .png.")
    if every > steps:
        raise DataError(f"--every {every} is more than --steps {steps}; nothing would be measured.")
    opened = Lineage.open(lineage)
    refuse_unread(set_, ("name", "metrics", "training.epochs", "upgrade", "compare"))
    values = opened.recipe(opened.newest)
    refuse_unknown_kinds(values, f"version {opened.newest} of {lineage}")
    recipe = Recipe.stored(values, with_seed(set_, seed))
    diagnosis = diagnose_version(
        recipe,
        opened,
        steps=steps,
        every=every,
        batch_sizes=batch,
        sample=sample,
        device=device,
        progress=new_progress(),
    )
    facts = diagnosis.as_json()
    if out is not None:
        errors = facts["steps"], facts["gramian_errors"], facts["gradient_errors"]
        write_diagnosis(out, diagnosis.histograms, *errors)
    if as_json:
        dump({"lineage": str(lineage), **facts})
        return
    print_diagnosis(diagnosis, steps)
    if out is not None:
        sys.stdout.write(f"Plots: {out}\n")


@app.command(epilog="Example: evergram compare recipe.toml --out comparison")
def compare(
    recipe: RecipeFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for lineages and results.")],
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove the results of another recipe from there.")
    ] = False,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Compare methods side by side from the same version 0: a table, figures, and all numbers.

    Each of the recipe's split.versions is trained by every method; it names two or more. An
    interrupted comparison resumes, and finished runs are kept.
    """
    from evergram.evaluation.reports.comparison_report import HEADER, explanation, table_rows
    from evergram.releasing.comparison.compare import compare as compare_methods

    chosen = load_recipe(recipe, seed, set_, unread=SET_BY_METHODS, comparing=True)
    results = compare_methods(chosen, out, device=device, progress=new_progress(), fresh=fresh)
    if as_json:
        dump(results)
        return
    table(f"{chosen.name}, mean ± deviation over seeds", list(HEADER), table_rows(results))
    for sentence in explanation(results):
        sys.stdout.write(sentence + "\n")
    sys.stdout.write(f"Table, figures and all numbers: {out}\n")


@app.command(epilog="Example: evergram demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the lineage and the report.")] = Path(
        "demo"
    ),
    data: Annotated[
        Path | None, typer.Option(help="MovieLens, a folder or zip (default: synthetic).")
    ] = None,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Show the whole story: version 0, three upgrades, and a consumer that never changes."""
    from evergram.evaluation.reports.demo_report import write_report
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.demo import demo_recipe, run_demo

    refuse_unread(set_, ("compare",))
    recipe = demo_recipe(data, with_seed(set_, seed))
    lineage = Lineage.create(out / "lineage", recipe.name)
    versions = run_demo(recipe, lineage, device=device, progress=new_progress())
    rows = [version.as_json() for version in versions]
    report = write_report(out / "report.html", rows, recipe.training.metric)
    if as_json:
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
