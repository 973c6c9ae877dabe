"""Train a version, and the next one together with its way back. The two papers meet here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor

from evergram.compatibility.certificate import certify
from evergram.data.corpus import Corpus, Vocabulary
from evergram.data.pair_hash import TrainedPairs
from evergram.data.split import Split
from evergram.encoders.encoder import Encoder
from evergram.encoders.factory import restore_encoder
from evergram.encoders.features import SIDES
from evergram.errors import LineageError, RecipeError
from evergram.evaluation.ranking import popularity_metrics, rank_metrics
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.backward_transform import WayBack
from evergram.releasing.past_version_report import reading_report
from evergram.training.build import pick_device
from evergram.training.callbacks import Callback
from evergram.training.checkpoint import load_encoder, make_artefact, trained_pairs
from evergram.training.corpora import load_corpus, salt_of, split_for
from evergram.training.loop import Refit, Trained, final_split, judge, test_relevance, train_encoder
from evergram.training.progress import Progress
from evergram.training.recipe import CLOSED, Recipe, flat

QUIET = Progress(quiet=True)


def train(
    recipe: Recipe,
    corpus: Corpus | None = None,
    *,
    device: str = "auto",
    progress: Progress = QUIET,
    folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
    board: Path | None = None,
) -> Artefact:
    """Version 0, ready for `Lineage.publish`.

    >>> import evergram
    >>> recipe = evergram.Recipe.of(
    ...     {
    ...         "data": {"kind": "synthetic", "queries": 200, "candidates": 100},
    ...         "model": {"dim": [8, 12]},
    ...         "training": {"epochs": 3},
    ...     }
    ... )
    >>> artefact = evergram.train(recipe)
    >>> artefact.dim
    8

    Args:
        corpus: what `load_corpus(recipe)` gives; loaded where it is absent.
        device: "auto", "cpu" or "cuda".
        folder: where an interrupted run is gone on with, such as `lineage.work_dir`; None keeps
            nothing.
        callbacks: what looks on while it trains.
        board: a folder for TensorBoard's files.
    Raises: DataError, RecipeError, TrainingError.
    """
    corpus = load_corpus(recipe) if corpus is None else corpus
    split = split_for(recipe, corpus, 0)
    final = final_split(recipe, split)
    trained = train_encoder(
        recipe,
        split,
        0,
        pick_device(device),
        progress,
        title="version 0",
        folder=folder,
        callbacks=[*callbacks, *_board(board, 0, split)],
        refit=None if final is split else Refit(final),
    )
    report = _report(recipe, 0, final, trained)
    pairs = trained_pairs(final.training, salt_of(recipe))
    return make_artefact(recipe, 0, final, trained, report, trained_on=pairs)


Rest = ParamSpec("Rest")


def _claiming(
    train_next: Callable[Concatenate[Recipe, Lineage, Rest], Artefact],
) -> Callable[Concatenate[Recipe, Lineage, Rest], Artefact]:
    """The same, while no other process may train the lineage's next version."""

    @wraps(train_next)
    def claimed(
        recipe: Recipe, lineage: Lineage, /, *args: Rest.args, **kwargs: Rest.kwargs
    ) -> Artefact:
        with lineage.training():
            return train_next(recipe, lineage, *args, **kwargs)

    return claimed


@_claiming
def upgrade(
    recipe: Recipe,
    lineage: Lineage,
    corpus: Corpus | None = None,
    *,
    encoder: Encoder | None = None,
    device: str = "auto",
    progress: Progress = QUIET,
    folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
    board: Path | None = None,
    readings: bool = True,
    trained_as: int | None = None,
    allow_small_overlap: bool = False,
) -> Artefact:
    """The version after the newest and its backward transform, by the method of `recipe.upgrade`.

    The metrics hold, beside the model's own, those of the same model trained alone, and for every
    past version what reading it through the chain keeps, and the certificate.

    >>> import evergram
    >>> recipe = evergram.Recipe.of(
    ...     {
    ...         "data": {"kind": "synthetic", "queries": 200, "candidates": 100},
    ...         "model": {"dim": [8, 12]},
    ...         "training": {"epochs": 3},
    ...     }
    ... )
    >>> lineage = evergram.Lineage.create("lineages/new", "new")
    >>> published = evergram.publish(lineage, evergram.train(recipe))
    >>> artefact = evergram.upgrade(recipe, lineage)
    >>> artefact.transform.new_dim, artefact.transform.old_dim
    (12, 8)
    >>> evergram.publish(lineage, artefact).version
    1

    Args:
        encoder: a model of this version that has been trained alone already.
        readings: whether to measure what reading it as each past version keeps.
        trained_as: the version whose data and seed `encoder` was trained with; this one by default.
        allow_small_overlap: go on where it has so few objects in common with the version before
            that its error cannot be measured.
    Raises: UnknownVersionError: the lineage has no version to start from. LineageError: another
        process is training the next version. DataError: it has no object in common with the
        version before, or too few; or the data cannot be used. RecipeError, TrainingError.
    Source: [BC] Eq. (3), (10), Table 1.
    """
    past_version, number = lineage.newest, lineage.next_version
    version = number if trained_as is None else trained_as
    corpus = load_corpus(recipe) if corpus is None else corpus
    history = lineage.pair_history
    split, salt = split_for(recipe, corpus, version, history), salt_of(recipe, history)
    # What is published is trained and judged on `final`; `split` chooses for how long.
    final = final_split(recipe, split)
    chosen = pick_device(device)
    settings = recipe.upgrade
    if encoder is not None and (settings.fit == "joint" or settings.start != "fresh"):
        raise RecipeError(
            "A model that has been trained alone was given, and the recipe asks for another: "
            "it serves upgrade.fit = 'posthoc' or 'none' with upgrade.start = 'fresh'."
        )
    before = load_encoder(lineage, past_version)
    if settings.start == "previous":
        # Fine-tuning cannot change the architecture.
        recipe = recipe.model_copy(update={"model": recipe.model.as_of(0)})
    new_dim = before.dim if settings.start == "frozen" else recipe.model.dim_of(version)
    back = WayBack(recipe, lineage.active_chain, before, final.training, version, new_dim)
    back.overlap.refuse_small(version, past_version, allow_small=allow_small_overlap)
    joint = back.joint()
    title = f"version {version}"
    common: dict[str, Any] = {"past": back.past, "folder": folder}
    first, refit = joint, None
    if final is not split:
        search = WayBack(recipe, lineage.active_chain, before, split.training, version, new_dim)
        common["past"], first = search.past, search.joint()
        refit = Refit(final, joint, back.past)
    if settings.start == "frozen":
        trained = judge(recipe, final, before)
    elif encoder is not None:
        trained = judge(recipe, final, encoder)
    else:
        trained = train_encoder(
            recipe,
            split,
            version,
            chosen,
            progress,
            joint=first,
            refit=refit,
            start=before if settings.start == "previous" else None,
            title=title,
            callbacks=[*callbacks, *_board(board, version, split)],
            **common,
        )
    new = {"query": trained.query, "candidate": trained.candidate}
    started = time.perf_counter()
    back.finish(new)
    trained.seconds += time.perf_counter() - started
    report = _report(recipe, number, final, trained)
    if settings.alone:
        report["metrics"]["alone"] = trained.metrics["model"]
        if joint is not None or settings.start != "fresh":
            alone = train_encoder(
                recipe,
                split,
                version,
                chosen,
                progress,
                title=f"{title} alone",
                refit=None if refit is None else replace(refit, joint=None),
                **common,
            )
            report["metrics"]["alone"] = alone.metrics["model"]
            report["training"]["alone"] = _training(alone)
    report["overlap"] = back.overlap.as_json()
    longer = lineage.chain.extended(back.transform)
    errors = {**lineage.step_errors, number: back.error(new)}
    report["compatibility"] = {
        str(j): reading_report(
            recipe, final, new, longer, j, load_encoder(lineage, j), back.held_out
        )
        for j in (lineage.readable if readings else ())
    }
    report["certificate"] = {
        str(j): asdict(found)
        for j in lineage.readable
        if (found := certify(longer, errors, number, j)) is not None
    }
    options = None
    if settings.start == "frozen":
        record = lineage.manifest(past_version).encoder
        assert record is not None
        options = record.options
    return make_artefact(
        recipe,
        version,
        final,
        trained,
        report,
        back.transform,
        errors[number],
        lineage.canaries(past_version),
        options,
        # A frozen model was trained on nothing that its own version does not remember.
        (salt, TrainedPairs())
        if settings.start == "frozen"
        else trained_pairs(final.training, salt),
    )


def upgrade_lost(
    recipe: Recipe,
    lineage: Lineage,
    corpus: Corpus | None = None,
    *,
    device: str = "auto",
    progress: Progress = QUIET,
    allow_small_overlap: bool = False,
) -> Artefact:
    """The model of an upgrade that another one came before, as the version after the newest: only
    its transform is fitted anew, in closed form.

    Raises: LineageError: no model is kept. RecipeError: it was trained by another recipe.
    """
    lost = lineage.lost()
    theirs, mine = (
        flat({k: v for k, v in values.items() if k not in ("upgrade", "compare", "metrics")})
        for values in (lost.manifest.recipe, recipe.model_dump(mode="json"))
    )
    changed = sorted(k for k in {**theirs, **mine} if theirs.get(k) != mine.get(k))
    if changed:
        raise RecipeError(
            f"The kept model was trained by another recipe ({', '.join(changed[:5])} changed); "
            "give the recipe and the options that it was trained with, or leave out --kept to "
            "train a new one."
        )
    record, state, vocabularies = lost.encoder()
    encoder = restore_encoder(
        record.kind, record.options, record.inputs, state, vocabularies, "the kept model"
    )
    closed = recipe.upgrade.transform in CLOSED
    settings = recipe.upgrade.model_copy(
        update={
            "fit": "posthoc",
            "solver": "closed",
            "start": "fresh",
            "alone": False,
            "transform": recipe.upgrade.transform if closed else "linear",
        }
    )
    return upgrade(
        recipe.model_copy(update={"upgrade": settings}),
        lineage,
        corpus,
        encoder=encoder,
        device=device,
        progress=progress,
        trained_as=lost.manifest.version,
        allow_small_overlap=allow_small_overlap,
    )


def evaluate(
    recipe: Recipe,
    lineage: Lineage,
    version: int | None = None,
    corpus: Corpus | None = None,
    *,
    device: str = "auto",
) -> dict[str, dict[str, float]]:
    """Metrics of the stored embeddings, read as `version`, on the newest version's test pairs.

    Returns: {"model": {name: value}, "popularity": {name: value}}.
    Raises: LineageError: no pair is known to be held out from every version of the lineage.
    """
    corpus = load_corpus(recipe) if corpus is None else corpus
    split = split_for(recipe, corpus, lineage.newest, lineage.pair_history)
    if split.untested is not None:
        raise LineageError(split.untested)
    split = final_split(recipe, split)
    view = lineage.view(version)
    vectors: dict[str, Tensor] = {}
    for side, entities in zip(
        SIDES, (split.training.queries, split.training.candidates), strict=True
    ):
        ids, stored = view.embeddings(side)
        rows = Vocabulary(ids).rows(entities.vocabulary.keys)
        # An object without a stored vector cannot be told from the others: it scores zero.
        vectors[side] = stored[rows.clamp(min=0)] * (rows >= 0)[:, None]
    relevance = test_relevance(split)
    counts = split.training.counts("candidate")
    return {
        "model": rank_metrics(
            vectors["query"],
            vectors["candidate"],
            relevance,
            recipe.metrics,
            device=pick_device(device),
        ),
        "popularity": popularity_metrics(counts, relevance, recipe.metrics),
    }


def _board(folder: Path | None, version: int, split: Split) -> list[Callback]:
    """What writes a version's training, with its Gramians' errors, for TensorBoard."""
    if folder is None:
        return []
    from evergram.training.monitors.gramian_tracking import Tracking
    from evergram.training.monitors.tensorboard import TensorBoard

    corpus = split.training
    tracking = Tracking({}, {s: corpus.counts(s) for s in SIDES}, every=100)
    pairs = (corpus.column("query"), corpus.column("candidate"))
    return [tracking, TensorBoard(folder / f"version-{version}", pairs, tracking)]


def _report(recipe: Recipe, version: int, split: Split, trained: Trained) -> dict[str, Any]:
    training = split.training
    return {
        "version": version,
        "dim": trained.query.shape[1],
        "metrics": dict(trained.metrics),
        **({"untested": split.untested} if split.untested else {}),
        "training": {
            **_training(trained),
            "history": trained.history,
            "gramian_bytes": trained.state_bytes,
            **({"watched": trained.watched} if recipe.training.watch_minutes else {}),
            **({"seconds_to_reach": trained.reached} if recipe.training.reach else {}),
        },
        "data": {
            "queries": len(training.queries),
            "candidates": len(training.candidates),
            "interactions": len(training),
            "repeats": training.repeats,
            "test_pairs": len(split.test),
            "test_queries": len(torch.unique(split.test.query)),
            "unknown_test_candidates": int((split.test.candidate < 0).sum()),
            "unknown_queries": split.unknown_queries,
            "trained_before": split.trained_before,
        },
    }


def _training(trained: Trained) -> dict[str, Any]:
    """How a model was trained: on what, for how long, and what a person should know of it."""
    return {
        "seconds": round(trained.seconds, 3),
        "best_epoch": trained.best_epoch,
        "epochs": int(trained.history[-1]["epoch"]) if trained.history else 0,
        "ended": trained.ended,
        "refit": trained.refit,
        "penalty": list(trained.penalty),
        "l2": trained.l2,
        "batch_size": trained.batch_size,
        "warnings": trained.warnings,
    }
