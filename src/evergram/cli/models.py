"""Commands that train a model, or look into one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from evergram.cli.options import (
    AllowSmallOverlap,
    As,
    Board,
    Device,
    Json,
    LineageFolder,
    LineageOption,
    NoPromote,
    RecipeFile,
    Seed,
    Set,
    StrictProbes,
    app,
    load_recipe,
    new_progress,
    refuse_unread,
    with_seed,
)
from evergram.cli.printing import dump, metrics_table, number, print_version, table, warn
from evergram.errors import DataError

# What nothing is done with where stored embeddings are judged, and what each method of a comparison
# brings itself.
NOT_EVALUATED = ("name", "model", "task", "prior", "gramian", "training", "upgrade", "compare")
OF_METHODS = tuple(
    f"upgrade.{key}"
    for key in ("method", "fit", "transform", "steps", "start", "solver", "objects", "alone")
)


@app.command()
def train(
    recipe: RecipeFile,
    lineage: LineageOption,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
    tensorboard: Board = None,
) -> None:
    """Train version 0 and publish it as a new lineage."""
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.publish import publish
    from evergram.releasing.upgrade import train as train_version

    chosen = load_recipe(recipe, seed, set_, unread=("upgrade", "compare"))
    new = Lineage.create(lineage, chosen.name)
    with new.training() as folder:
        artefact = train_version(
            chosen, device=device, progress=new_progress(), folder=folder, board=tensorboard
        )
    publish(new, artefact, warn=warn)
    print_version(lineage, dict(artefact.metrics), as_json)


@app.command()
def upgrade(
    recipe: RecipeFile,
    lineage: LineageOption,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
    tensorboard: Board = None,
    max_degradation: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="PERCENT",
            help="Publish only if neither the model nor a past version loses more of the metric.",
        ),
    ] = None,
    strict_probes: StrictProbes = False,
    allow_small_overlap: AllowSmallOverlap = False,
    no_promote: NoPromote = False,
    kept: Annotated[
        bool,
        typer.Option(
            "--kept",
            help="Publish the model of an upgrade that another one came before; only its transform "
            "is fitted anew.",
        ),
    ] = False,
) -> None:
    """Train the next version together with its way back, and publish it."""
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.publish import publish, refuse_unmeasurable
    from evergram.releasing.upgrade import upgrade as upgrade_version
    from evergram.releasing.upgrade import upgrade_lost

    chosen = load_recipe(recipe, seed, set_, unread=("compare",))
    if tensorboard is not None and chosen.upgrade.start == "frozen":
        raise DataError(
            "upgrade.start = 'frozen' trains no model, so --tensorboard has nothing to write; "
            "leave it out."
        )
    existing = Lineage.open(lineage)
    if kept and tensorboard is not None:
        raise DataError("--kept trains no model, so --tensorboard has nothing to write; drop one.")
    refuse_unmeasurable(
        existing, chosen, max_degradation=max_degradation, strict_probes=strict_probes
    )
    if kept:
        artefact = upgrade_lost(
            chosen,
            existing,
            device=device,
            progress=new_progress(),
            allow_small_overlap=allow_small_overlap,
        )
    else:
        artefact = upgrade_version(
            chosen,
            existing,
            device=device,
            progress=new_progress(),
            folder=existing.work_dir,
            board=tensorboard,
            allow_small_overlap=allow_small_overlap,
        )
    published = publish(
        existing,
        artefact,
        max_degradation=max_degradation,
        strict_probes=strict_probes,
        promote=not no_promote,
        warn=warn,
    )
    print_version(lineage, dict(published.metrics), as_json)


@app.command()
def evaluate(
    lineage: LineageFolder,
    as_version: As = None,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Judge the stored embeddings, read as any version, on the newest version's test pairs.

    The data is where the recipe of the newest version found it; --set data.path=PATH if it moved.
    """
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.upgrade import evaluate as evaluate_version
    from evergram.training.recipe import Recipe

    found = Lineage.open(lineage)
    refuse_unread(set_, NOT_EVALUATED)
    recipe = Recipe.stored(found.recipe(found.newest), with_seed(set_, seed))
    read_as = found.newest if as_version is None else found.resolve(as_version)
    metrics = evaluate_version(recipe, found, read_as, device=device)
    if as_json:
        dump({"version": found.newest, "as": read_as, "metrics": metrics})
        return
    metrics_table(f"Version {found.newest} read as version {read_as}", metrics)


@app.command()
def diagnose(
    lineage: LineageFolder,
    out: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Where to draw it.")] = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps of training to compare on.")] = 200,
    every: Annotated[int, typer.Option(min=1, help="Steps between two measures.")] = 10,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Entities an estimator learns from, a step (default: 128, 1024)."),
    ] = None,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Look into the newest version: its spectrum, its scores, and how well Gramians are estimated.

    The first steps of its training are done again, and every estimator is measured against the
    exact Gramian along them. Nothing is published.
    """
    from evergram.evaluation.reports.diagnosis_report import write_diagnosis
    from evergram.lineage.lineage import Lineage
    from evergram.training.diagnose import diagnose as look
    from evergram.training.recipe import Recipe

    if out is not None and out.suffix != ".png":
        raise DataError(f"--out {out} must end in .png.")
    if every > steps:
        raise DataError(f"--every {every} is more than --steps {steps}; nothing would be measured.")
    found = Lineage.open(lineage)
    refuse_unread(set_, ("name", "metrics", "training.epochs", "upgrade", "compare"))
    recipe = Recipe.stored(found.recipe(found.newest), with_seed(set_, seed))
    result = look(
        recipe,
        found,
        steps=steps,
        every=every,
        batch_sizes=batch,
        device=device,
        progress=new_progress(),
    )
    tracking = result.tracking
    if out is not None:
        errors = tracking.gramian_errors, tracking.gradient_errors
        write_diagnosis(out, result.histograms, tracking.steps, *errors)
    if as_json:
        dump({"lineage": str(lineage), **result.as_json()})
        return
    table(
        f"Version {result.version}",
        ["", *next(iter(result.sides.values()))],
        [[side, *(f"{v:.4g}" for v in facts.values())] for side, facts in result.sides.items()],
    )
    scores = result.histograms
    sys.stdout.write(
        f"Mean score of observed pairs {scores.means[0]:.4f}, of random pairs "
        f"{scores.means[1]:.4f}; an observed one is higher {scores.separation:.1%} of the time.\n"
    )
    gramian, gradient = (
        tracking.mean(e) for e in (tracking.gramian_errors, tracking.gradient_errors)
    )
    table(
        f"Errors over the second half of {steps} steps",
        ["estimator", "Gramian", "gradient"],
        [[name, f"{gramian[name]:.4f}", f"{gradient[name]:.4f}"] for name in gramian],
    )
    if out is not None:
        sys.stdout.write(f"Plots: {out}\n")


@app.command()
def compare(
    recipe: RecipeFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for lineages and results.")],
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove what another recipe has left there.")
    ] = False,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Methods side by side from the same M_0: a table, figures, and all numbers.

    What is there already is gone on with.
    """
    from evergram.evaluation.reports.comparison_report import HEADER, explanation, table_rows
    from evergram.releasing.comparison.compare import compare as run

    chosen = load_recipe(recipe, seed, set_, unread=OF_METHODS, comparing=True)
    results = run(chosen, out, device=device, progress=new_progress(), fresh=fresh)
    if as_json:
        dump(results)
        return
    table(f"{chosen.name}, mean ± deviation over seeds", list(HEADER), table_rows(results))
    for sentence in explanation(results):
        sys.stdout.write(sentence + "\n")
    sys.stdout.write(f"Table, figures and all numbers: {out}\n")


@app.command()
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
    """The whole story: version 0, three upgrades, and a consumer who never changes."""
    from evergram.evaluation.reports.demo_report import write_report
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.demo import demo_recipe, tell

    refuse_unread(set_, ("compare",))
    recipe = demo_recipe(data, with_seed(set_, seed))
    lineage = Lineage.create(out / "lineage", recipe.name)
    chapters = tell(recipe, lineage, device=device, progress=new_progress())
    rows = [chapter.as_json() for chapter in chapters]
    report = write_report(out / "report.html", rows, recipe.training.metric)
    if as_json:
        dump({"versions": rows, "report": str(report), "lineage": str(lineage.path)})
        return
    metric = recipe.training.metric
    lines = [
        [
            str(c.version),
            str(c.dim),
            *(number(c.metrics.get(k, {}).get(metric)) for k in ("model", "alone", "popularity")),
            number(c.consumer_chain),
            number(c.consumer_raw),
            number(c.drift),
        ]
        for c in chapters
    ]
    header = ["version", "dim", metric, "alone", "popular", "AUC chain", "AUC raw", "drift"]
    table("A consumer built on version 0", header, lines)
    sys.stdout.write(f"Report: {report}\n")
