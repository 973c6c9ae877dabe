"""Commands that train models, tune them and measure them, and that reproduce the papers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import typer

import evergram
from evergram.cli.failures import INTERRUPTED
from evergram.cli.options import (
    command,
    described,
    load_recipe,
    new_progress,
    open_lineage,
    refuse_unread,
)
from evergram.cli.printing import Grid, metrics_table, number, print_version, show
from evergram.collectives import is_first_process
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.training.diagnose import Diagnosis
    from evergram.training.tuning import Tuned


@command("train", "recipe.toml --lineage lineages/shop")
def train(
    recipe: Path,
    *,
    lineage: str,
    device: str = "auto",
    set_: list[str] | None = None,
    thorough: bool = False,
    minutes: float | None = None,
    tensorboard: Path | None = None,
    checkpoint_every: str | None = None,
    resume: Literal["auto", "never"] = "auto",
) -> None:
    """Train version 0 and publish it as a new lineage."""
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.publish import publish
    from evergram.releasing.upgrade import train as train_version
    from evergram.training.resuming import CheckpointSettings

    checkpoints = CheckpointSettings(checkpoint_every, resume=resume)
    chosen = load_recipe(recipe, set_, unread=("upgrade",), thorough=thorough)
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
    print_version(lineage, dict(published.metrics))


@command(
    "upgrade",
    "recipe.toml --lineage lineages/shop --max-degradation 2",
    max_degradation=described(
        "PERCENT | Publish only if neither the model nor a past version loses more of the metric.",
        min=0,
    ),
)
def upgrade(
    recipe: Path,
    *,
    lineage: str,
    device: str = "auto",
    set_: list[str] | None = None,
    thorough: bool = False,
    minutes: float | None = None,
    tensorboard: Path | None = None,
    max_degradation: float | None = None,
    strict_probes: bool = False,
    allow_small_overlap: bool = False,
    no_promote: bool = False,
    checkpoint_every: str | None = None,
    resume: Literal["auto", "never"] = "auto",
) -> None:
    """Train the next version with its backward transform, and publish it."""
    from evergram.releasing.publish import publish, refuse_unmeasurable
    from evergram.releasing.upgrade import upgrade as upgrade_version
    from evergram.training.resuming import CheckpointSettings

    checkpoints = CheckpointSettings(checkpoint_every, resume=resume)
    chosen = load_recipe(recipe, set_, thorough=thorough)
    opened, small = open_lineage(lineage), allow_small_overlap
    if not is_first_process():
        upgrade_version(chosen, opened, device=device, progress=False, allow_small_overlap=small)
        return
    refuse_unmeasurable(opened, chosen, max_degradation, strict_probes)
    opened.refuse_unwritable()
    # Also while probes run and files are written, nobody begins what could not be published.
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
            strict_probes=strict_probes,
            promote=not no_promote,
        )
    print_version(lineage, dict(published.metrics))


@command(
    "diagnose",
    "lineages/shop",
    steps=described("Steps of training to repeat, of which 20 are measured.", min=2),
    batch=described("Entities an estimator sees in a step (default: 128, 1024).", min=1),
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

    The first steps of its training are repeated, and every estimator is measured against the exact
    Gramian along them. Nothing is published.
    """
    from evergram.training.diagnose import diagnose as diagnose_version
    from evergram.training.recipe import Recipe

    opened = open_lineage(lineage)
    refuse_unread(set_, ("name", "metrics", "training.epochs", "upgrade"))
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
    """Yield the spectrum of each side, the scores, and the error of each estimator."""
    from evergram.training.tracking import OWN

    yield Grid(
        f"Version {diagnosis.version}",
        ["", *next(iter(diagnosis.sides.values()))],
        [[side, *(f"{v:.4g}" for v in facts.values())] for side, facts in diagnosis.sides.items()],
    )
    scores, tracking = diagnosis.histograms, diagnosis.tracking
    yield (
        f"Mean score of observed pairs {scores.means[0]:.4f}, of random pairs "
        f"{scores.means[1]:.4f}; an observed one is higher {scores.separation:.1%} of the time."
    )
    if tracking is None:
        yield diagnosis.left_out
        return
    gramian, gradient = diagnosis.gramian_error, diagnosis.gradient_error
    own = {OWN: diagnosis.own}
    yield Grid(
        f"Errors over the second half of {steps} steps",
        ["estimator", "Gramian", "gradient"],
        [
            [own.get(name, name), f"{gramian[name]:.4f}", f"{gradient[name]:.4f}"]
            for name in gramian
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
    """Show the whole story: version 0, three upgrades, and a consumer that never changes."""
    from evergram.evaluation.html_page import write_demo
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.demo import demo_recipe, run_demo

    recipe = demo_recipe(data, set_ or [])
    lineage, metric = Lineage.create(out / "lineage", recipe.name), recipe.training.metric
    rows = run_demo(recipe, lineage, device=device, progress=new_progress())
    report = write_demo(out / "report.html", rows, metric)
    facts = {"versions": rows, "report": str(report), "lineage": str(lineage.path)}
    explained = _DEMO_EXPLAINED.format(metric=metric)
    show(facts, _demo_table(rows, metric), explained, f"Report: {report}")


_DEMO_EXPLAINED = """\
{metric}: how well each version ranks what came next; that is another test for each version, so
compare it with the same model trained alone and with popularity, in its row.
A classifier of another team was trained once, on version 0, and never changed.
AUC chain: it reads each version through the maps back to version 0; 0.5 is a guess.
AUC raw: it is given each version's vectors as they are, cut or filled to its length.
drift: distance from version 0's vectors after the chain, as a share of their length."""


def _demo_table(versions: list[dict[str, Any]], metric: str) -> Grid:
    """Return a line for each version: how well it ranks, and what the consumer keeps."""
    lines = [
        [
            *(str(v["version"]), str(v["dim"])),
            *(
                number(v["metrics"].get(k, {}).get(metric))
                for k in ("model", "alone", "popularity")
            ),
            *(number(v["consumer"][name]) for name in ("auc_chain", "auc_raw")),
            number(v["drift_relative"]),
        ]
        for v in versions
    ]
    header = ["version", "dim", metric, "alone", "popular", "AUC chain", "AUC raw", "drift"]
    return Grid("A consumer built on version 0", header, lines)


@command(
    "tune",
    "recipe.toml --out trials --over model.dim=16,32,64 --over task.penalty=log:1..100",
    out="FOLDER | Folder for trials and best.toml.",
    over=(
        "KEY=VALUES | Search KEY=LOW..HIGH, KEY=log:LOW..HIGH or KEY=VALUE,VALUE (repeatable; "
        "default: by task)."
    ),
    trials="Trials in all, those in FOLDER included.",
    minutes="End after so many minutes (default: no limit).",
)
def tune(
    recipe: Path,
    *,
    out: Path,
    over: list[str] | None = None,
    trials: int = 20,
    minutes: float | None = None,
    device: str = "auto",
    set_: list[str] | None = None,
) -> None:
    """Train a recipe with many values of its keys, and keep the best by the selection pairs."""
    from evergram.training.tuning import tune as tune_recipe
    from evergram.training.tuning import write_best

    chosen = load_recipe(recipe, set_, unread=("upgrade",))
    progress = new_progress()
    tuned = tune_recipe(
        chosen, over, out, trials=trials, minutes=minutes, device=device, progress=progress
    )
    best = out / "best.toml"
    write_best(best, recipe, [*(set_ or []), *tuned.best.overrides])
    facts, metric = tuned.as_json(), chosen.training.metric
    facts["recipe"] = str(best)
    show(facts, *_trials(tuned, metric), f"Recipe with the best values: {best}")
    if tuned.ended == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _trials(tuned: Tuned, metric: str) -> Iterator[str | Grid]:
    """Yield a line for each trial, best first, and why trials failed."""
    lines = [
        [
            str(trial.number),
            *(v if isinstance(v, str) else f"{v:.4g}" for v in trial.values.values()),
            *(number(trial.value), str(trial.epochs), f"{trial.seconds:.1f}", trial.state),
        ]
        for trial in tuned.ranked
    ]
    keys = list(tuned.best.values)
    names = [key.rpartition(".")[2] for key in keys]
    # Short where they tell keys apart, as a line has 80 columns where it is no terminal.
    shown = names if len(set(names)) == len(names) else keys
    header = ["trial", *shown, metric, "epochs", "seconds", "state"]
    yield Grid("Trials, by the selection pairs", header, lines)
    yield from (f"Trial {t.number} failed: {t.error}" for t in tuned.ranked if t.error)
    if tuned.ended == "exhausted":
        yield "All values of the search were tried; there are no others."
    elif tuned.ended != "trials":
        why = "the minutes were over" if tuned.ended == "minutes" else "it was interrupted"
        yield f"The search ended early: {why}. The same command goes on."


# Tables of a recipe that an evaluation does not read.
NOT_EVALUATED = ("name", "model", "task", "prior", "gramian", "training", "upgrade")


@command(
    "evaluate",
    "lineages/shop --as v0",
    queries=described("Rank so many test queries, drawn (default: all).", min=2),
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
    """Measure the stored embeddings, read as any version, on the newest version's test pairs.

    The data is read from where the newest version's recipe says; --set data.path=PATH if it moved.
    """
    from evergram.releasing.evaluate import evaluate as evaluate_version
    from evergram.training.recipe import Recipe

    opened = open_lineage(lineage)
    refuse_unread(set_, NOT_EVALUATED)
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
            "have no stored vector: such queries are left out, and such candidates are misses."
        )
    show({"version": view.source, "as": view.version, "metrics": metrics, **measured}, *parts)


def checkout() -> Path:
    """Return the folder with `reproduction/`: that of the installation, or the current one."""
    installed_from = Path(evergram.__file__).parents[2]
    for folder in (installed_from, Path.cwd()):
        if (folder / "reproduction" / "catalogue.py").is_file():
            return folder
    raise DataError(
        "reproduction/ is not part of the installed package, and it is not in this folder either; "
        "run the command in a checkout of Evergram's repository, which has it beside src/."
    )


def reproduction(module: str) -> ModuleType:
    """Return a module of the package `reproduction`, imported from the checkout."""
    folder = str(checkout())
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module(f"reproduction.{module}")


@command(
    "reproduce",
    "gramian/table2 --preset tiny",
    name="[NAME|all|stale|report] | What to run, such as gramian/table2 (default: list all).",
    preset=described("Size of the experiment: small, gowalla or tiny.", show_default="small"),
    data="PATH | Folder of data sets ($EVERGRAM_DATA).",
    out="DIR | Folder of results (default: reproduction/results).",
    seeds=described("Train with seeds 0 to N - 1.", min=1, show_default="1"),
    device=described("Where to compute: auto, cpu or cuda.", show_default="cpu"),
)
def reproduce(
    name: str | None = None,
    *,
    preset: str | None = None,
    data: Path | None = None,
    out: Path | None = None,
    seeds: int | None = None,
    device: str | None = None,
) -> None:
    """Reproduce a table or figure of the papers; without NAME, list all with their state.

    An interrupted run goes on: each training that is done is kept as one JSON. `all` runs every
    experiment, `stale` runs again what the code would give other results for today, and `report`
    makes the pages and figures of all results.
    """
    given = {"preset": preset, "seeds": seeds, "data": data, "device": device}
    unread = {None: tuple(given), "report": tuple(given), "stale": ("preset", "seeds")}
    for option in unread.get(name, ()):
        if given[option] is not None:
            what = "stale results" if name == "stale" else "a list or a report of results"
            raise DataError(f"--{option} is not read for {what}; leave it out.")
    commands = reproduction("commands")
    if name is None:
        lines = commands.list_all(out)
        facts = {"experiments": [line.as_json() for line in lines]}
        return show(facts, *commands.list_lines(lines))
    if name == "report":
        paths = commands.make_report(out)
        return show({"report": [str(path) for path in paths]}, f"Report: {paths[0]}")
    run = commands.Run(name, preset or "small", seeds or 1, data, out, device or "cpu")
    several = {"stale": commands.reproduce_stale, "all": commands.reproduce_all}
    if name in several:
        outcomes = several[name](run, new_progress())
        facts = {"experiments": [outcome.as_json() for outcome in outcomes]}
    else:
        outcomes = [commands.reproduce(run, new_progress())]
        facts = outcomes[0].as_json()
    tables = [Grid(t.title, t.header, t.rows) for outcome in outcomes for t in outcome.tables]
    lines = [line for o in outcomes for line in (*o.sentences, f"Results: {o.folder}")]
    return show(facts, *tables, *lines)
