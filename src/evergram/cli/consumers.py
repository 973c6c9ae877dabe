"""Commands for the consumers of a lineage, and their probes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from evergram.cli.app import consumer_commands, is_json
from evergram.cli.options import LineageFolder, Side
from evergram.cli.printing import dump, number, print_probes, show, table
from evergram.errors import DataError
from evergram.log_lines import write_line

if TYPE_CHECKING:
    from evergram.lineage.consumers import Consumer, Probe, Threshold
    from evergram.lineage.lineage import Lineage

Record = TypeVar("Record", "Probe", "Threshold")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the consumer.")]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the consumer.")]
ProbeModel = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL",
        help="The consumer's own model, to try every new version with: .onnx, or "
        ".safetensors of a linear one.",
    ),
]
ProbeData = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Parquet with the columns id and label, to measure it on."),
]
Metric = Annotated[
    str | None,
    typer.Option(help="Measure of the probe: auc, accuracy or rmse.", show_default="auc"),
]
Limit = Annotated[
    float | None,
    typer.Option(help="The least auc or accuracy, or the largest rmse, that is good enough."),
]
ScoreThreshold = Annotated[
    str | None,
    typer.Option(
        metavar="[METRIC:]SCORE",
        help="Score, by cosine, ip or l2, from which on the consumer shows hits: 'vectors align' "
        "and 'lineage check' say how many pass it at a newer version.",
    ),
]


@consumer_commands.command("list", epilog="Example: evergram consumer list lineages/shop")
def list_consumers(lineage: LineageFolder) -> None:
    """List the consumers of a lineage, their versions, and their probes' last values."""
    from evergram.lineage.consumers import ConsumerRegistry
    from evergram.lineage.lineage import Lineage

    opened = Lineage.open(lineage)
    last = {}
    if opened.versions:
        last = {p["consumer"]: p for p in opened.metrics(opened.newest).get("probes", [])}
    rows = [{**_facts(c), "last": last.get(c.name)} for c in ConsumerRegistry.open(lineage).list()]
    if is_json():
        dump({"lineage": str(lineage), "consumers": rows})
        return
    header = ["name", "pinned", "may read", "since", "contact", "probe", "when added", "last"]
    lines = [
        [
            row["name"],
            row["pinned"],
            ", ".join(row["allowed"]),
            row["since"],
            row["contact"] or "–",
            row["probe"]["metric"] if row["probe"] else "–",
            number(((row["probe"] or {}).get("baseline") or {}).get("value")),
            number((row["last"] or {}).get("value")),
        ]
        for row in rows
    ]
    table(f"Consumers of {lineage}", header, lines)


@consumer_commands.command(
    "add", epilog="Example: evergram consumer add lineages/shop ads --pin v0 --token"
)
def add(
    lineage: LineageFolder,
    name: NewName,
    pin: Annotated[
        str,
        typer.Option(metavar="VERSION", help="Version that it reads: v0, or a label."),
    ],
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="VERSION", help="Version that it may read too; repeatable."),
    ] = None,
    contact: Annotated[str | None, typer.Option(help="Address for news of a broken probe.")] = None,
    token: Annotated[bool, typer.Option("--token", help="Issue a token for the service.")] = False,
    probe: ProbeModel = None,
    data: ProbeData = None,
    side: Side = None,
    metric: Metric = None,
    limit: Limit = None,
    threshold: ScoreThreshold = None,
) -> None:
    """Register a consumer of a lineage, and the model that every new version is tried with."""
    from evergram.lineage.consumers import ConsumerRegistry
    from evergram.lineage.lineage import Lineage

    options = _ProbeOptions(probe, data, side, metric, limit)
    measured = options.measured(Lineage.open(lineage), pin)
    registry = ConsumerRegistry.open(lineage)
    added = registry.add(
        name,
        pin,
        lambda version: Lineage.open(lineage).resolve(version),
        allowed=allow or (),
        contact=contact,
        probe=measured,
        threshold=_threshold(threshold),
    )
    _print_consumer(added, registry.issue_token(name) if token else None)


@consumer_commands.command("pin", epilog="Example: evergram consumer pin lineages/shop ads v1")
def pin(
    lineage: LineageFolder,
    name: Name,
    version: Annotated[
        str,
        typer.Argument(metavar="VERSION", help="Version to read from now on: v0, or a label."),
    ],
    probe: ProbeModel = None,
    data: ProbeData = None,
    side: Side = None,
    metric: Metric = None,
    limit: Limit = None,
    drop_probe: Annotated[
        bool, typer.Option("--drop-probe", help="Leave the consumer without a probe.")
    ] = False,
    threshold: ScoreThreshold = None,
) -> None:
    """Move a consumer to another version, with the probe for that version."""
    from evergram.lineage.consumers import ConsumerRegistry
    from evergram.lineage.lineage import Lineage

    if drop_probe and (probe is not None or data is not None):
        raise DataError("--drop-probe leaves it without a probe; leave --probe and --data out.")
    options = _ProbeOptions(probe, data, side, metric, limit)
    measured = options.measured(Lineage.open(lineage), version)
    moved = ConsumerRegistry.open(lineage).repin(
        name,
        version,
        lambda version: Lineage.open(lineage).resolve(version),
        probe=measured,
        drop_probe=drop_probe,
        threshold=_threshold(threshold),
    )
    _print_consumer(moved)


@consumer_commands.command("token", epilog="Example: evergram consumer token lineages/shop ads")
def token(lineage: LineageFolder, name: Name) -> None:
    """Issue a consumer's token for the service; the token before it stops working."""
    from evergram.lineage.consumers import ConsumerRegistry

    registry = ConsumerRegistry.open(lineage)
    token = registry.issue_token(name)
    _print_consumer(registry.get(name), token)


@consumer_commands.command("remove", epilog="Example: evergram consumer remove lineages/shop ads")
def remove(lineage: LineageFolder, name: Name) -> None:
    """Remove a consumer, its probe and its token."""
    from evergram.lineage.consumers import ConsumerRegistry

    ConsumerRegistry.open(lineage).remove(name)
    show({"removed": name}, f"{name} is no consumer any more.")


@consumer_commands.command("probe", epilog="Example: evergram consumer probe lineages/shop")
def run_probe(
    lineage: LineageFolder,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Run one consumer's probe only."),
    ] = None,
) -> None:
    """Run the consumers' probes on the newest version; exit code 1 if one is past its limit."""
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.probes import run_probes

    opened = Lineage.open(lineage)
    readings = run_probes(opened, names=None if name is None else [name])
    if name is not None and not readings:
        raise DataError(f"{name} has no probe; 'evergram consumer pin' with --probe gives it one.")
    if not readings:
        raise DataError(
            f"No consumer of {lineage} has a probe, so nothing was tried; 'evergram consumer add' "
            "with --probe adds one."
        )
    if is_json():
        facts = {"lineage": str(lineage), "version": opened.newest}
        dump({**facts, "probes": [r.as_json() for r in readings]})
    else:
        print_probes([r.as_json() for r in readings], f"Version {opened.newest} of {lineage}")
    for reading in readings:
        if reading.broken:
            write_line("past_limit", reading.sentence, level="warning", consumer=reading.consumer)
    if any(r.broken for r in readings):
        sys.exit(1)


@dataclass(frozen=True)
class _ProbeOptions:
    """The options of a command that describe a probe."""

    model: Path | None
    data: Path | None
    side: str | None
    metric: str | None
    limit: float | None

    def measured(self, lineage: Lineage, pinned: str) -> Probe | None:
        """Return the probe that the options name, with its baseline; None if they name none.

        Raises: DataError: an option is missing, makes no sense without a probe, or has a value that
            no probe can have; or as `measured_probe`.
        """
        if self.model is None and self.data is None:
            for name in ("side", "metric", "limit"):
                if getattr(self, name) is not None:
                    raise DataError(f"--{name} was given without a probe; give --probe and --data.")
            return None
        if self.model is None or self.data is None:
            raise DataError(
                "A probe is a model and an evaluation file: give both --probe and --data."
            )
        from evergram.lineage.consumers import Probe
        from evergram.lineage.lineage import side_of
        from evergram.releasing.probes import measured_probe

        sides = lineage.manifest(lineage.production).embeddings
        facts = {
            "model": str(self.model),
            "data": str(self.data),
            "metric": self.metric or "auc",
            "max" if self.metric == "rmse" else "min": self.limit,
            "side": side_of(sides, str(lineage.path), self.side),
        }
        return measured_probe(lineage, pinned, _validated(Probe, facts))


def _threshold(text: str | None) -> Threshold | None:
    """Return the threshold of the option. Raises: DataError: it cannot be one."""
    from evergram.lineage.consumers import Threshold

    if text is None:
        return None
    metric, _, score = text.rpartition(":")
    try:
        value = float(score)
    except ValueError:
        raise DataError(
            f"--threshold is {text!r}; it is a score, or METRIC:SCORE, as in ip:12."
        ) from None
    return _validated(Threshold, {"value": value, "metric": metric or "cosine"})


def _validated(kind: type[Record], facts: dict[str, Any]) -> Record:
    """Return a probe or a threshold with these values. Raises: DataError: it cannot have them."""
    from pydantic import ValidationError

    from evergram.validation import sentence_of

    try:
        return kind.model_validate(facts)
    except ValidationError as error:
        what = f"The {kind.__name__.lower()} cannot be used"
        raise DataError(f"{what}: {sentence_of(error, kind)}") from error


def _facts(consumer: Consumer) -> dict[str, Any]:
    """Return a consumer as JSON, with "token" for whether it has one."""
    facts = consumer.model_dump(mode="json", exclude={"token_sha256"})
    return {**facts, "token": consumer.token_sha256 is not None}


def _print_consumer(consumer: Consumer, token: str | None = None) -> None:
    """Print a consumer, the value of its probe, and its token where one was issued."""
    if is_json():
        dump({**_facts(consumer), **({} if token is None else {"token": token})})
        return
    sys.stdout.write(
        f"{consumer.name} reads {consumer.pinned} and may read {', '.join(consumer.allowed)}.\n"
    )
    if consumer.threshold is not None:
        limit = consumer.threshold
        sys.stdout.write(f"Its threshold: {limit.metric} of {limit.value:g}.\n")
    probe = consumer.probe
    if probe is not None and probe.baseline is not None:
        base = probe.baseline
        sys.stdout.write(
            f"Its probe: {probe.metric} {base.value:.4f} on {base.objects} objects of version "
            f"{base.version}.\n"
        )
        if (probe.min is not None and base.value < probe.min) or (
            probe.max is not None and base.value > probe.max
        ):
            sys.stderr.write("That is past its limit already, so every upgrade will report it.\n")
    if token is not None:
        sys.stdout.write(f"Its token, which is not kept and not shown again: {token}\n")
