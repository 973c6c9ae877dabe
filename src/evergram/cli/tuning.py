"""The command that searches the values of a recipe's keys."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergram.cli.app import app
from evergram.cli.command_line.completion import recipe_settings
from evergram.cli.failures import INTERRUPTED
from evergram.cli.options import (
    Device,
    Json,
    RecipeFile,
    Seed,
    Set,
    load_recipe,
    new_progress,
    with_seed,
)
from evergram.cli.printing import dump, number, table

if TYPE_CHECKING:
    from evergram.training.tuning.trials import Tuned


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
            "--over",
            metavar="KEY=VALUES",
            help="Search KEY=LOW..HIGH, KEY=log:LOW..HIGH or KEY=VALUE,VALUE (repeatable; default: "
            "by task).",
            autocompletion=recipe_settings,
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Trials in all, those in FOLDER included.")] = 20,
    minutes: Annotated[
        float | None, typer.Option(help="End after so many minutes (default: no limit).")
    ] = None,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Train a recipe with many values of its keys, and keep the best by the selection pairs."""
    from evergram.evaluation.reports.tuning_report import write_tuning
    from evergram.training.tuning.best_recipe import write_best
    from evergram.training.tuning.trials import tune as tune_recipe

    chosen = load_recipe(recipe, seed, set_, unread=("upgrade", "compare"))
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
    write_best(best, recipe, [*with_seed(set_, seed), *tuned.best.overrides])
    facts = tuned.as_json()
    picture = write_tuning(out / "trials.svg", facts["trials"], chosen.training.metric)
    if as_json:
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
