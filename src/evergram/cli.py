"""The command: parse, call, print."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from evergram.errors import DataError, EvergramError

if TYPE_CHECKING:
    from evergram.lineage.diagnosis import Reading
    from evergram.training.progress import Progress
    from evergram.training.recipe import Recipe

app = typer.Typer(
    help="Train embeddings without negative sampling; ship new versions without breaking anyone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE.toml", help="What to run.")]
LineageOption = Annotated[Path, typer.Option("--lineage", help="Folder of the lineage.")]
LineageFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the lineage.")]
As = Annotated[int | None, typer.Option("--as", help="Read as this version (default: newest).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seed = Annotated[int | None, typer.Option(help="Override the recipe's seed.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Board = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write TensorBoard's files here (needs the extra)."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Override a key of the recipe."),
]


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
    from evergram.training.upgrade import train as train_version

    chosen = _recipe(recipe, seed, set_)
    new = Lineage.create(lineage, chosen.name)
    artefact = train_version(
        chosen, device=device, progress=_progress(), folder=new.work, board=tensorboard
    )
    new.publish(artefact)
    _print_version(lineage, dict(artefact.metrics), as_json)


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
) -> None:
    """Train the next version together with its way back, and publish it."""
    from evergram.lineage.lineage import Lineage
    from evergram.training.upgrade import refuse_degradation
    from evergram.training.upgrade import upgrade as upgrade_version

    chosen = _recipe(recipe, seed, set_)
    existing = Lineage.open(lineage)
    artefact = upgrade_version(
        chosen,
        existing,
        device=device,
        progress=_progress(),
        folder=existing.work,
        board=tensorboard,
    )
    if max_degradation is not None:
        refuse_degradation(artefact, chosen.training.metric, max_degradation)
    existing.publish(artefact)
    _print_version(lineage, dict(artefact.metrics), as_json)


@app.command()
def versions(
    lineage: LineageFolder,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """List the versions of a lineage.

    (Nothing is drawn or computed: --seed, --device and --set, which every command takes, change
    nothing here.)
    """
    from evergram.lineage.lineage import Lineage

    found = Lineage.open(lineage)
    rows = [
        {
            "version": m.version,
            "name": m.name,
            "dim": m.dim,
            "created": m.created,
            "encoder": "file" if m.encoder is None else m.encoder.kind,
            "metrics": found.metrics(m.version)["metrics"],
        }
        for m in found.versions
    ]
    if as_json:
        _dump({"lineage": str(lineage), "name": found.name, "versions": rows})
        return
    header = ["version", "name", "dim", "encoder", "created"]
    names = list(rows[0]["metrics"]["model"]) if rows else []
    lines = [
        [str(r[h]) for h in header] + [_number(r["metrics"]["model"].get(n)) for n in names]
        for r in rows
    ]
    _table(f"Lineage {lineage}", header + names, lines)


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
    from evergram.training.recipe import Recipe
    from evergram.training.upgrade import evaluate as evaluate_version

    found = Lineage.open(lineage)
    overrides = [*(set_ or []), *([] if seed is None else [f"seed={seed}"])]
    recipe = Recipe.of(found.recipe(found.newest), overrides)
    metrics = evaluate_version(recipe, found, as_version, device=device)
    read_as = found.newest if as_version is None else as_version
    if as_json:
        _dump({"version": found.newest, "as": read_as, "metrics": metrics})
        return
    _metrics_table(f"Version {found.newest} read as version {read_as}", metrics)


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
    from evergram.evaluation.diagnosis_report import write_diagnosis
    from evergram.lineage.lineage import Lineage
    from evergram.training.diagnose import diagnose as look
    from evergram.training.recipe import Recipe

    if out is not None and out.suffix != ".png":
        raise DataError(f"--out {out} must end in .png.")
    if every > steps:
        raise DataError(f"--every {every} is more than --steps {steps}; nothing would be measured.")
    found = Lineage.open(lineage)
    overrides = [*(set_ or []), *([] if seed is None else [f"seed={seed}"])]
    recipe = Recipe.of(found.recipe(found.newest), overrides)
    result = look(
        recipe,
        found,
        steps=steps,
        every=every,
        batch_sizes=batch,
        device=device,
        progress=_progress(),
    )
    tracking = result.tracking
    if out is not None:
        errors = tracking.gramian_errors, tracking.gradient_errors
        write_diagnosis(out, result.histograms, tracking.steps, *errors)
    if as_json:
        _dump({"lineage": str(lineage), **result.as_json()})
        return
    _table(
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
    _table(
        f"Errors over the second half of {steps} steps",
        ["estimator", "Gramian", "gradient"],
        [[name, f"{gramian[name]:.4f}", f"{gradient[name]:.4f}"] for name in gramian],
    )
    if out is not None:
        sys.stdout.write(f"Plots: {out}\n")


@app.command()
def check(
    lineage: LineageFolder,
    max_error: Annotated[
        float | None,
        typer.Option(min=0, help="Limit of the relative error of any past version."),
    ] = None,
    max_bound: Annotated[
        float | None, typer.Option(min=0, help="Limit of the certificate's relative bound.")
    ] = None,
    max_amplification: Annotated[
        float | None, typer.Option(min=0, help="Limit of the largest singular value of the way.")
    ] = None,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """What is known of reading the newest version as every past one; exit code 1 past a limit.

    Every published file is compared with its hash first. (--seed, --device and --set, which every
    command takes, change nothing here.)
    """
    from evergram.lineage.diagnosis import (
        Limits,
        diagnose_lineage,
        past_limits,
    )
    from evergram.lineage.diagnosis import as_json as reading_json
    from evergram.lineage.lineage import Lineage

    found = Lineage.open(lineage)
    readings = diagnose_lineage(found)
    sentences = past_limits(readings, Limits(max_error, max_bound, max_amplification))
    if as_json:
        rows = [reading_json(r) for r in readings]
        facts = {"lineage": str(lineage), "version": found.newest}
        _dump({**facts, "readings": rows, "past_limits": sentences})
    else:
        lines = [_reading_line(r) for r in readings]
        _table(f"Version {found.newest} of {lineage}, read as", _READING, lines)
        sys.stdout.write(
            "error: on the canaries, over the length of their vectors. estimate and bound: the "
            "certificate, likewise; amplification: the largest singular value.\n"
        )
    for sentence in sentences:
        sys.stderr.write(f"{sentence}\n")
    if sentences:
        sys.exit(1)


@app.command()
def export(
    lineage: LineageFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT.parquet", help="File to write.")],
    side: Annotated[str, typer.Option(help="query or candidate; object, of a lineage of files.")],
    as_version: As = None,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Write embeddings at any version: columns `id` and `vector`, a fixed-size list of float32.

    (Nothing is drawn or trained: --seed, --device and --set, which every command takes, change
    nothing here.)
    """
    from evergram.lineage.lineage import Lineage

    found = Lineage.open(lineage)
    view = found.view(as_version)
    if out.is_dir():
        raise DataError(f"{out} is a folder; give the path of a file to write.")
    rows = view.export(out, side)
    if as_json:
        _dump(
            {
                "file": str(out),
                "rows": rows,
                "dim": view.dim,
                "side": side,
                "version": view.source,
                "as": view.version,
            }
        )
        return
    sys.stdout.write(
        f"{rows} {side} embeddings of version {view.source}, read as version {view.version} "
        f"({view.dim} dims): {out}\n"
    )


IdColumn = Annotated[str, typer.Option(help="The column (or tensor) of ids.")]
VectorColumn = Annotated[str, typer.Option(help="The column (or tensor) of vectors.")]


@app.command()
def align(
    old: Annotated[
        str, typer.Argument(metavar="OLD", help="File of old vectors, or the newest version.")
    ],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="File of new vectors.")],
    lineage: LineageOption,
    transform: Annotated[
        str, typer.Option(help="linear, affine, orthogonal or low_rank.")
    ] = "linear",
    rank: Annotated[int, typer.Option(min=1, help="Of low_rank.")] = 32,
    scaled: Annotated[bool, typer.Option("--scaled", help="Let orthogonal stretch.")] = False,
    held_out: Annotated[
        float, typer.Option(help="Share of the common objects to measure on, below 1.")
    ] = 0.1,
    name: Annotated[str, typer.Option(help="Of a new lineage.")] = "embeddings",
    id_column: IdColumn = "id",
    vector_column: VectorColumn = "vector",
    old_ids: Annotated[Path | None, typer.Option(help="Ids of OLD, one a line.")] = None,
    new_ids: Annotated[Path | None, typer.Option(help="Ids of NEW, one a line.")] = None,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Publish a file of vectors as the next version, with its way back to an older file.

    The two files (Parquet, Arrow, .npy or safetensors) have ids in common; no model and no training
    is needed. (--seed draws the objects among which neighbours are looked up; --device and --set,
    which every command takes, change nothing here.)
    """
    from evergram.lineage.lineage import Lineage
    from evergram.stores.embedding_files import open_embeddings
    from evergram.training.align import Settings
    from evergram.training.align import align as align_files

    columns = {"id_column": id_column, "vector_column": vector_column}
    settings = Settings(transform, rank, scaled, held_out, 0 if seed is None else seed)
    there = (lineage / "lineage.json").exists()
    number = old.isdecimal() and not Path(old).exists()
    facts = align_files(
        int(old) if number else open_embeddings(Path(old), ids=old_ids, **columns),
        open_embeddings(new, ids=new_ids, **columns),
        Lineage.open(lineage) if there else Lineage.create(lineage, name),
        settings,
        progress=_progress(),
    )
    if as_json:
        _dump({"lineage": str(lineage), **facts})
        return
    found = facts["alignment"]
    pairs = found["pairs"]
    sys.stdout.write(
        f"Version {facts['version']} in {lineage}: {found['dims']['new']} dims, back to "
        f"{found['dims']['old']} by a {found['transform']['kind']} transform.\n"
        f"{pairs['common']} objects in common ({pairs['only_old']} in the old file alone, "
        f"{pairs['only_new']} in the new one): {pairs['fitted']} fitted to ({pairs['needed']} "
        f"needed), {pairs['held_out']} held out.\n"
    )
    readings = found["held_out"]
    header = ["", "cosine", "relative error", "overlap@10", "own queries"]
    names = list(next(iter(readings.values())))
    lines = [[_MAPPINGS[who], *(_number(v[n]) for n in names)] for who, v in readings.items()]
    lines.append(["the old vectors", "1.0000", "0.0000", "1.0000", "1.0000"])
    _table("What held-out objects keep", header, lines)
    sample = found["neighbours"]
    sys.stdout.write(
        f"Neighbours: of {sample['queries']} held-out objects among {sample['catalogue']} others, "
        "by cosine;\nown queries: of old vectors, among new ones.\n"
    )


_MAPPINGS = {
    "transformed": "new, transformed",
    "as_is": "new, as it is",
    "in_sample": "fitted to these too",
}


@app.command()
def transform(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of vectors.")],
    lineage: LineageOption,
    as_version: Annotated[int, typer.Option("--as", help="The version to write.")],
    out: Annotated[Path, typer.Option(help="File to write; its suffix says the format.")],
    from_version: Annotated[
        int | None, typer.Option("--from", help="The version of FILE (default: newest).")
    ] = None,
    id_column: IdColumn = "id",
    vector_column: VectorColumn = "vector",
    ids: Annotated[Path | None, typer.Option(help="Ids of FILE, one a line.")] = None,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Rewrite a file of one version's vectors as another version's, in flat memory.

    (Nothing is drawn or trained: --seed, --device and --set, which every command takes, change
    nothing here.)
    """
    from evergram.lineage.lineage import Lineage
    from evergram.stores.embedding_files import open_embeddings
    from evergram.training.rewrite import transform_file

    found = Lineage.open(lineage)
    source = found.newest if from_version is None else from_version
    opened = open_embeddings(file, id_column=id_column, vector_column=vector_column, ids=ids)
    rows = transform_file(opened, found, as_version, out, source=source, progress=_progress())
    dim = found.chain.dim(as_version)
    if as_json:
        facts = {"file": str(out), "rows": rows, "dim": dim, "from": source, "as": as_version}
        _dump(facts)
        return
    sys.stdout.write(
        f"{rows} vectors of version {source}, written as version {as_version} ({dim} dims): {out}\n"
    )


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
    from evergram.evaluation.comparison_report import HEADER, explanation, table_rows
    from evergram.training.compare import compare as run

    chosen = _recipe(recipe, seed, set_)
    results = run(chosen, out, device=device, progress=_progress(), fresh=fresh)
    if as_json:
        _dump(results)
        return
    _table(f"{chosen.name}, mean ± deviation over seeds", list(HEADER), table_rows(results))
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
    from evergram.evaluation.report import write_report
    from evergram.lineage.lineage import Lineage
    from evergram.training.demo import demo_recipe, tell

    overrides = [*(set_ or []), *([] if seed is None else [f"seed={seed}"])]
    recipe = demo_recipe(data, overrides)
    lineage = Lineage.create(out / "lineage", recipe.name)
    chapters = tell(recipe, lineage, device=device, progress=_progress())
    rows = [chapter.as_json() for chapter in chapters]
    report = write_report(out / "report.html", rows, recipe.training.metric)
    if as_json:
        _dump({"versions": rows, "report": str(report), "lineage": str(lineage.path)})
        return
    metric = recipe.training.metric
    lines = [
        [
            str(c.version),
            str(c.dim),
            *(_number(c.metrics.get(k, {}).get(metric)) for k in ("model", "alone", "popularity")),
            _number(c.consumer_chain),
            _number(c.consumer_raw),
            _number(c.drift),
        ]
        for c in chapters
    ]
    header = ["version", "dim", metric, "alone", "popular", "AUC chain", "AUC raw", "drift"]
    _table("A consumer built on version 0", header, lines)
    sys.stdout.write(f"Report: {report}\n")


def main() -> None:
    """Entry point: an error of ours is one line on stderr and exit code 2."""
    try:
        app()
    except EvergramError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'a file'}: {error.strerror or error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the lineage is as it was\n")
        sys.exit(130)


def _recipe(path: Path, seed: int | None, overrides: list[str] | None) -> Recipe:
    from evergram.training.recipe import Recipe

    return Recipe.load(path, [*(overrides or []), *([] if seed is None else [f"seed={seed}"])])


def _progress() -> Progress:
    from evergram.training.progress import Progress

    return Progress()


def _dump(value: dict[str, Any]) -> None:
    from evergram.lineage.files import plain_numbers

    sys.stdout.write(json.dumps(plain_numbers(value), indent=2) + "\n")


def _print_version(lineage: Path, metrics: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _dump({"lineage": str(lineage), **metrics})
        return
    _metrics_table(f"Version {metrics['version']} in {lineage}", metrics["metrics"])
    for past, found in metrics.get("compatibility", {}).items():
        _metrics_table(
            f"Read as version {past} (by the {found['queries']} test queries that it knew)",
            {_READINGS[name]: values for name, values in found["ranking"].items()},
        )
        for kind, drift in found["drift"].items():
            sys.stdout.write(
                f"mean distance to version {past} on {drift['objects']} {_OBJECTS[kind]}: "
                f"{drift['l2']:.4f} ({drift['relative']:.1%} of their length)\n"
            )
        sys.stdout.write(f"overlap@10 with version {past}: {found['overlap@10']:.3f}\n")


_OBJECTS = {"held_out": "objects that alignment never saw", "known": "objects that it knew"}
_READINGS = {
    "past": "version itself",
    "chain": "new, through the chain",
    "raw": "new, as it is",
    "chain_candidates": "own queries, new candidates through the chain",
    "raw_candidates": "own queries, new candidates as they are",
}


_READING = ["version", "canaries", "error", "cosine", "estimate", "bound", "amplification"]


def _reading_line(reading: Reading) -> list[str]:
    seen, known = reading.measured, reading.certificate
    return [
        str(reading.version),
        str(seen.objects if seen else 0),
        *([_number(seen.relative), _number(seen.cosine)] if seen else ["–", "–"]),
        *(
            _number(v)
            for v in (
                [known.relative, known.relative_bound, known.amplification]
                if known
                else [None, None, None]
            )
        ),
    ]


def _metrics_table(title: str, metrics: dict[str, dict[str, float]]) -> None:
    names = list(next(iter(metrics.values())))
    lines = [[who, *(_number(v.get(n)) for n in names)] for who, v in metrics.items()]
    _table(title, ["", *names], lines)


def _table(title: str, header: list[str], lines: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in header:
        left = name in ("", "name", "method", "created")
        justify: Literal["left", "right"] = "left" if left else "right"
        table.add_column(name, justify=justify, no_wrap=name == "method")
    for line in lines:
        table.add_row(*line)
    Console().print(table)


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"
