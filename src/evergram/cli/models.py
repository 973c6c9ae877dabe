"""Commands that prepare interactions, and train, tune and evaluate models."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from evergram.cli.failures import INTERRUPTED
from evergram.cli.options import (
    columns_by_role,
    command,
    described,
    new_progress,
    open_lineage,
    refuse_unread,
)
from evergram.cli.printing import Grid, metrics_table, number, print_version, show
from evergram.collectives import is_first_process
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.training.diagnose import Diagnosis


@command(
    "init",
    "clicks.csv --column query=user_id --column candidate=page",
    path=(
        "PATH | Interactions: .parquet, .arrow, .feather, .csv, .tsv (also .gz), lines of ids "
        "(.txt), a prepared folder, or MovieLens."
    ),
    out="RECIPE.toml | The recipe to write.",
    column=(
        "ROLE=NAME | The file's column for a role: query, candidate, value, time or weight; "
        "repeatable (default: by their names)."
    ),
    kind="KIND | Kind of PATH, see data.kind of recipes (default: detected).",
)
def init(
    path: Path,
    *,
    out: Path = Path("recipe.toml"),
    column: list[str] | None = None,
    kind: str | None = None,
    drop_bad_rows: bool = False,
    force: bool = False,
) -> None:
    """Inspect a file of interactions, and write a commented recipe for it.

    Nothing is trained. You can edit the recipe before you run 'evergram train'.
    """
    from evergram.atomic_files import write_text
    from evergram.training.first_recipe import first_recipe

    if out.suffix != ".toml":
        raise DataError(f"--out {out} must end in .toml.")
    if out.exists() and not force:
        raise DataError(f"{out} already exists; use --force to overwrite it, or another --out.")
    columns = columns_by_role(column)
    where: Any = {"folder": out.parent, "drop_bad_rows": drop_bad_rows}
    first = first_recipe(path, kind=kind, columns=columns, **where)
    write_text(out, first.text)
    recipe = first.recipe
    show(
        {"recipe": str(out), **first.facts},
        *first.sentences,
        f"Recipe: {out}, with {recipe.model.dim_of(0)} dims and at most "
        f"{recipe.training.epochs} epochs.",
        f"Next: evergram train {shlex.quote(str(out))} --lineage lineages/{recipe.name}",
    )


@command(
    "prepare",
    "clicks/*.parquet corpus --column query=user_id --column candidate=page",
    sources="SOURCE... | Files, folders, globs or addresses (s3://…).",
    out="OUT | Folder to write.",
    column="ROLE=NAME | The files' column for a role, such as query=user_id; repeatable.",
    query_features="PATH | Table of features of queries; repeatable.",
    candidate_features="PATH | Table of features of candidates; repeatable.",
    shared_ids="Query and candidate ids refer to the same objects.",
    overwrite="Replace the contents of OUT.",
    plan="Write nothing; print the time, memory and disk that this and training would need.",
    memory=described(
        "SIZE | Maximum memory of the conversion, such as 2GiB.",
        show_default="a quarter of the memory, at most 2GiB",
    ),
)
def prepare(
    sources: list[str],
    out: Path,
    *,
    column: list[str] | None = None,
    query_features: list[str] | None = None,
    candidate_features: list[str] | None = None,
    shared_ids: bool = False,
    drop_bad_rows: bool = False,
    overwrite: bool = False,
    memory: str | None = None,
    plan: bool = False,
) -> None:
    """Convert interactions of any size to a folder that training reads in pieces."""
    from evergram.data.prepared.prepare import PrepareSettings
    from evergram.data.prepared.prepare import prepare as prepare_corpus

    settings = PrepareSettings(
        columns=columns_by_role(column),
        query_features=list(query_features) if query_features else None,
        candidate_features=list(candidate_features) if candidate_features else None,
        shared_ids=shared_ids,
        bad_rows="drop" if drop_bad_rows else "refuse",
        memory=memory,
    )
    progress = new_progress().say
    if plan:
        from evergram.training.corpus_plan import plan_corpus

        made = plan_corpus(sources, out, settings, overwrite=overwrite, progress=progress)
        header, *lines = made.lines()
        then = ["Next: this command without --plan; then", *made.commands]
        show(asdict(made), *made.sentences(), Grid("Estimates", header, lines), *then)
        return
    summary = prepare_corpus(sources, out, settings, overwrite=overwrite, progress=progress)
    show(asdict(summary), str(summary))


@command("train", "recipe.toml --lineage lineages/shop")
def train(
    recipe: Path,
    *,
    lineage: str,
    device: str = "auto",
    set_: list[str] | None = None,
    minutes: float | None = None,
    tensorboard: Path | None = None,
    checkpoint_every: str | None = None,
    resume: Literal["auto", "never"] = "auto",
) -> None:
    """Train a model and publish it as version 0 of a new lineage, a folder of versions."""
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.publish import publish
    from evergram.releasing.upgrade import train as train_version
    from evergram.training.recipe import Recipe
    from evergram.training.resuming import CheckpointSettings

    checkpoints = CheckpointSettings(checkpoint_every, resume=resume)
    chosen = Recipe.load(recipe, set_ or [])
    if not is_first_process():
        train_version(chosen, device=device, progress=False)
        return
    new = Lineage.create(lineage, chosen.name)
    new.refuse_unwritable()
    with new.training() as folder:
        artefact = train_version(
            chosen,
            device=device,
            progress=new_progress(),
            folder=folder,
            board=tensorboard,
            checkpoints=checkpoints,
            minutes=minutes,
        )
        published = publish(new, artefact)
    print_version(lineage, dict(published.metrics), then=f"evergram serve {shlex.quote(lineage)}")


@command(
    "upgrade",
    "recipe.toml --lineage lineages/shop --max-degradation 2",
    max_degradation=described(
        "PERCENT | Refuse a version that loses more of the metric, itself or read as a past one.",
        min=0,
    ),
)
def upgrade(
    recipe: Path,
    *,
    lineage: str,
    device: str = "auto",
    set_: list[str] | None = None,
    minutes: float | None = None,
    tensorboard: Path | None = None,
    max_degradation: float | None = None,
    max_loss: float | None = None,
    strict_probes: bool = False,
    allow_small_overlap: bool = False,
    no_promote: bool = False,
    checkpoint_every: str | None = None,
    resume: Literal["auto", "never"] = "auto",
) -> None:
    """Train the next version with a transform back to the previous one, and publish it."""
    from evergram.releasing.publish import publish, refuse_unmeasurable
    from evergram.releasing.upgrade import upgrade as upgrade_version
    from evergram.training.recipe import Recipe
    from evergram.training.resuming import CheckpointSettings

    checkpoints = CheckpointSettings(checkpoint_every, resume=resume)
    chosen = Recipe.load(recipe, set_ or [])
    opened, small = open_lineage(lineage), allow_small_overlap
    if not is_first_process():
        upgrade_version(chosen, opened, device=device, progress=False, allow_small_overlap=small)
        return
    refuse_unmeasurable(opened, chosen, max_degradation, strict_probes)
    opened.refuse_unwritable()
    # Hold the claim also while probes run and files are written, so that no other training starts.
    with opened.training() as folder:
        artefact = upgrade_version(
            chosen,
            opened,
            allow_small_overlap=small,
            device=device,
            progress=new_progress(),
            folder=folder,
            board=tensorboard,
            checkpoints=checkpoints,
            minutes=minutes,
        )
        published = publish(
            opened,
            artefact,
            max_degradation=max_degradation,
            max_loss=max_loss,
            strict_probes=strict_probes,
            promote=not no_promote,
        )
    print_version(lineage, dict(published.metrics))


@command(
    "diagnose",
    "lineages/shop",
    steps=described("Training steps to repeat; 20 of them are measured.", min=2),
    batch=described("Entities that an estimator sees per step (default: 128, 1024).", min=1),
)
def diagnose(
    lineage: str,
    *,
    steps: int = 200,
    batch: list[int] | None = None,
    device: str = "auto",
    set_: list[str] | None = None,
) -> None:
    """Measure the newest version's spectrum and scores, and the error of each Gramian estimator.

    This repeats the first steps of its training, and compares every estimator with the exact
    Gramian. Nothing is published.
    """
    from evergram.training.diagnose import diagnose as diagnose_version
    from evergram.training.recipe import Recipe

    opened = open_lineage(lineage)
    diagnosis = diagnose_version(
        Recipe.stored(opened.recipe(opened.newest), set_ or []),
        opened,
        steps=steps,
        batch_sizes=batch,
        device=device,
        progress=new_progress(),
    )
    facts = {"lineage": str(lineage), **diagnosis.as_json()}
    show(facts, *diagnosis_parts(diagnosis, steps))


def diagnosis_parts(diagnosis: Diagnosis, steps: int) -> Iterator[str | Grid]:
    """Yield tables of each side's spectrum, the scores, and each estimator's error."""
    from evergram.training.diagnose import OWN

    yield Grid(
        f"Version {diagnosis.version}",
        ["", *diagnosis.sides["query"]],
        [[side, *(f"{v:.4g}" for v in facts.values())] for side, facts in diagnosis.sides.items()],
    )
    scores, tracking = diagnosis.histograms, diagnosis.tracking
    yield (
        f"Mean score of observed pairs {scores.means[0]:.4f}, of random pairs "
        f"{scores.means[1]:.4f}; observed pairs are higher in {scores.separation:.1%} of cases."
    )
    if tracking is None:
        yield diagnosis.left_out
        return
    gradient = diagnosis.gradient_error
    yield Grid(
        f"Errors over the second half of {steps} steps",
        ["estimator", "Gramian", "gradient"],
        [
            [diagnosis.own if name == OWN else name, f"{error:.4f}", f"{gradient[name]:.4f}"]
            for name, error in diagnosis.gramian_error.items()
        ],
    )


@command(
    "demo",
    "--out demo",
    out="Folder for the lineage and the report.",
    data="MovieLens, a folder or zip (default: synthetic).",
)
def demo(
    *,
    out: Path = Path("demo"),
    data: Path | None = None,
    device: str = "auto",
    set_: list[str] | None = None,
) -> None:
    """Train a model and upgrade it three times, while a classifier on version 0 stays the same."""
    from evergram.evaluation.html_page import write_demo
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.demo import demo_recipe, run_demo

    recipe = demo_recipe(data, set_ or [])
    lineage, metric = Lineage.create(out / "lineage", recipe.name), recipe.training.metric
    rows = run_demo(recipe, lineage, device=device, progress=new_progress())
    report = write_demo(out / "report.html", rows, metric)
    header = ["version", "dim", metric, "alone", "popular", "AUC chain", "AUC raw", "drift"]
    lines = []
    for v in rows:
        ranked = (v["metrics"].get(k, {}) for k in ("model", "alone", "popularity"))
        compatibility = (*v["consumer"].values(), v["drift_relative"])
        values = [*(metrics.get(metric) for metrics in ranked), *compatibility]
        lines.append([str(v["version"]), str(v["dim"]), *map(number, values)])
    facts = {"versions": rows, "report": str(report), "lineage": str(lineage.path)}
    grid = Grid("A consumer built on version 0", header, lines)
    show(facts, grid, _DEMO_EXPLAINED.format(metric=metric), f"Report: {report}")


_DEMO_EXPLAINED = """\
{metric}: how well each version ranks later interactions. Each version has another test set, so
compare values only within a row: with the same model trained alone, and with popularity.
The consumer is a classifier that was trained once, on version 0.
AUC chain: the classifier on each version's vectors, transformed to version 0; 0.5 is chance.
AUC raw: the classifier on each version's vectors without a transform, cut or padded.
drift: distance of transformed vectors from version 0's, relative to their length."""


@command(
    "tune",
    "recipe.toml --out trials --over model.dim=16,32,64 --over task.penalty=log:1..100",
    out="FOLDER | Folder for trials and best.toml.",
    over=(
        "KEY=VALUES | Search KEY=LOW..HIGH, KEY=log:LOW..HIGH or KEY=VALUE,VALUE (repeatable; "
        "default: by task)."
    ),
    trials=described("Total number of trials, including those already in FOLDER.", min=1),
)
def tune(
    recipe: Path,
    *,
    out: Path,
    over: list[str] | None = None,
    trials: int = 20,
    device: str = "auto",
    set_: list[str] | None = None,
) -> None:
    """Search for the values of a recipe's keys that are best on held-out selection pairs.

    After Ctrl-C, run the same command to continue.
    """
    from evergram.training import tuning
    from evergram.training.recipe import Recipe

    chosen = Recipe.load(recipe, set_ or [])
    tuned = tuning.tune(chosen, over, out, trials=trials, device=device, progress=new_progress())
    best, values, facts = out / "best.toml", tuned.best.params, tuned.as_json()
    tuning.write_best(best, recipe, [*(set_ or []), *tuning.overrides_of(values)])
    lines = [
        [
            str(t["number"]),
            *(f"{v:.4g}" if isinstance(v, float) else str(v) for v in t["values"].values()),
            number(t["value"]),
            str(t["epochs"]),
            f"{t['seconds']:.1f}",
            t["state"],
        ]
        for t in facts["trials"]
    ]
    names = [key.rpartition(".")[2] for key in values]
    # Short names if they are unique, as lines have 80 columns if stdout is not a terminal.
    columns = names if len(set(names)) == len(names) else list(values)
    header = ["trial", *columns, tuned.recipe.training.metric, "epochs", "seconds", "state"]
    notes = [f"Trial {t['number']} failed: {t['error']}" for t in facts["trials"] if t["error"]]
    if tuned.ended == "exhausted":
        notes.append("All values of the search were tried.")
    notes.append(f"Recipe with the best values: {best}")
    grid = Grid("Trials, on the selection pairs", header, lines)
    show(facts | {"recipe": str(best)}, grid, *notes)
    if tuned.ended == "interrupted":
        raise typer.Exit(INTERRUPTED)


@command(
    "evaluate",
    "lineages/shop --as v0",
    queries=described("Rank a random sample of this many test queries (default: all).", min=2),
)
def evaluate(
    lineage: str,
    *,
    as_: str | None = None,
    from_: str | None = None,
    queries: int | None = None,
    device: str = "auto",
    set_: list[str] | None = None,
) -> None:
    """Evaluate the stored embeddings, read as any version, on the newest version's test pairs.

    The data is read from the path in the newest version's recipe; --set data.path=PATH if it moved.
    """
    from evergram.releasing.evaluate import evaluate as evaluate_version
    from evergram.training.recipe import Recipe

    refuse_unread(set_, "data", "split", "metrics")
    opened = open_lineage(lineage)
    recipe = Recipe.of_data(opened.recipe(opened.newest), set_ or [])
    view = opened.view(as_, from_)
    measured = evaluate_version(
        recipe, opened, view.version, source=view.source, device=device, queries=queries
    )
    metrics = {name: measured.pop(name) for name in ("model", "popularity")}
    title = f"Version {view.source} read as version {view.version}"
    parts = metrics_table(title, metrics, measured.get("sampled"))
    if unknown := measured.get("unknown"):
        parts.append(
            f"{unknown['query']:,} queries and {unknown['candidate']:,} candidates of the data "
            "have no stored vector: these queries are left out, these candidates count as misses."
        )
    show({"version": view.source, "as": view.version, "metrics": metrics, **measured}, *parts)
