"""What cannot be trained with divided tables is refused before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.collectives import Collectives
from evergram.data.corpus import Corpus
from evergram.errors import RecipeError
from evergram.training.memory import memory_bytes, needed_bytes
from evergram.training.recipe.fit_settings import FitSettings

if TYPE_CHECKING:
    from evergram.training.build import Companions

# Estimators that keep no row of their own: the others hold, or pass over, all rows in each process.
ESTIMATORS = ("sogram", "storm", "sampled")
ELSE = "set training.tables = 'memory'"


def refuse_unshardable(
    settings: FitSettings, corpus: Corpus, companions: Companions, collectives: Collectives
) -> None:
    """Refuse a training whose tables cannot be divided by rows among the processes.

    Raises: RecipeError.
    """
    model, gramian = settings.model, settings.gramian
    if model.kind != "factorization":
        raise RecipeError(
            f"training.tables = 'sharded' divides the tables of model.kind = 'factorization', and "
            f"it is {model.kind!r}; {ELSE}."
        )
    if model.start != "random":
        raise RecipeError(
            "training.tables = 'sharded' draws each process's rows at random, and model.start is "
            f"{model.start!r}; set model.start = 'random', or {ELSE}."
        )
    if getattr(model.chosen, "hash_rows", None) is not None:
        raise RecipeError(
            "training.tables = 'sharded' gives each id a row of its own, and model.hash_rows is "
            f"set; leave it out, or {ELSE}."
        )
    if model.popularity:
        raise RecipeError(
            "training.tables = 'sharded' publishes rows as they were trained, and model.popularity "
            f"is {model.popularity!r}; leave it out, or {ELSE}."
        )
    if settings.version or any((companions.joint, companions.past, companions.start)):
        raise RecipeError(
            f"training.tables = 'sharded' trains version 0 of a lineage, and this is version "
            f"{settings.version}; {ELSE}, or train the model by itself and align its exported "
            "vectors by 'evergram vectors align'."
        )
    if gramian.kind not in ESTIMATORS:
        allowed = " or ".join(map(repr, ESTIMATORS))
        raise RecipeError(
            f"training.tables = 'sharded' allows gramian.kind = {allowed}, and it is "
            f"{gramian.kind!r}, which needs all rows in each process; change it, or {ELSE}."
        )
    if settings.training.optimizer == "adam":
        raise RecipeError(
            "training.tables = 'sharded' moves the rows that a step touches, and "
            f"training.optimizer = 'adam' moves all; leave it out, or {ELSE}."
        )
    if settings.training.watch_minutes is not None:
        raise RecipeError(
            "training.watch_minutes measures while training goes on, and rows of divided tables "
            f"are read between epochs; leave it out, or {ELSE}."
        )
    _refuse_few_rows(corpus, collectives.size)
    needed = needed_bytes(model, corpus, settings.version) // collectives.size
    if needed > memory_bytes():
        raise RecipeError(
            f"Each of {collectives.size} processes needs at least {needed:,} bytes of memory, and "
            f"this machine has {memory_bytes():,}; start more processes on more machines, or lower "
            "model.dim."
        )


def _refuse_few_rows(corpus: Corpus, processes: int) -> None:
    """Refuse tables of which a process would have no row."""
    for name, side in (("queries", corpus.queries), ("candidates", corpus.candidates)):
        if -(-len(side) // processes) * (processes - 1) >= len(side):
            raise RecipeError(
                f"{len(side)} {name} cannot be divided among {processes} processes so that each "
                f"has a row; start fewer processes, or {ELSE}."
            )
