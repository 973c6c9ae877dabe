"""Train a version, and the next one with its backward transform. The two papers meet here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec

import torch

from evergram.collectives import is_first_process
from evergram.data.corpus import Corpus
from evergram.data.split import Split
from evergram.encoders.encoder import Encoder
from evergram.encoders.encoder_modules import EncoderModules
from evergram.errors import RecipeError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.known_consumers import KnownConsumer
from evergram.releasing.upgrade_plan import (
    UpgradeOptions,
    own_encoder,
    plan_upgrade,
    refuse_both,
    trained_encoder,
    with_modules,
)
from evergram.releasing.upgrade_steps import (
    board_callbacks,
    fit_upgrade,
    measure_upgrade,
    package_upgrade,
    say_features,
    version_report,
)
from evergram.training.build import Companions, pick_device
from evergram.training.callbacks import Callback
from evergram.training.checkpoint import (
    Provenance,
    make_artefact,
    options_of,
    restore_any,
    trained_pairs,
)
from evergram.training.checkpoints.settings import AUTOMATIC, CheckpointSettings
from evergram.training.corpora import (
    corpus_for,
    final_split,
    recorded_recipe,
    salt_of,
    split_for,
    with_selecting_metric,
)
from evergram.training.distributed.process_group import join_processes
from evergram.training.fit import Refit, RunContext, Trained, ends_after, fit_encoder, judge
from evergram.training.pilots import expected_time, in_words, run_pilots, wants_pilots
from evergram.training.progress import Progress
from evergram.training.query_objective import query_form
from evergram.training.recipe import Recipe, flat


def train(
    recipe: Recipe,
    corpus: Corpus | None = None,
    *,
    encoder: EncoderModules | None = None,
    trained: EncoderModules | None = None,
    device: str = "auto",
    progress: Progress | bool = True,
    folder: str | Path | None = None,
    checkpoints: CheckpointSettings = AUTOMATIC,
    callbacks: Sequence[Callback] = (),
    board: str | Path | None = None,
    minutes: float | None = None,
) -> Artefact:
    """Return version 0, ready for `Lineage.publish`.

    >>> import evergram
    >>> data = {"kind": "synthetic", "queries": 200, "candidates": 100, "interactions": 4000}
    >>> recipe = evergram.Recipe.of(
    ...     {"data": data, "model": {"dim": [8, 12]}, "training": {"epochs": 3}}
    ... )
    >>> artefact = evergram.train(recipe)
    >>> artefact.dim
    8

    Args:
        corpus: by default `load_corpus(recipe)`; for any other, data.kind = "python" is recorded.
        encoder: modules of your own, trained in place of the recipe's encoder.
        trained: modules that your own loop has trained on `split_for(recipe, corpus, 0).training`;
            they are measured and packaged, not trained.
        device: "auto", "cpu" or "cuda".
        progress: whether steps and evaluations are shown on stderr.
        folder: checkpoint folder, such as `lineage.work_dir`; an interrupted run resumes from it.
            None saves nothing.
        checkpoints: when they are written, how many are kept, whether they are read.
        callbacks: watch the training.
        board: a folder for TensorBoard's files.
        minutes: after which training ends with its epoch; the best one so far is kept. None has no
            limit.
    Raises: DataError, RecipeError, TrainingError. ShapeError: a module does not return [B, D].
    """
    refuse_both(encoder, trained)
    corpus = corpus_for(recipe, corpus)
    recipe = recorded_recipe(with_modules(recipe, encoder or trained), corpus)
    say_features(recipe, corpus, Progress.of_choice(progress))
    split = split_for(recipe, corpus, 0)
    final = final_split(split, refits=recipe.refits)
    context = RunContext(
        pick_device(device, recipe.training.tables),
        Progress.of_choice(progress),
        _path(folder),
        [*callbacks, *board_callbacks(board, 0, split)],
        "version 0",
        collectives=join_processes(pick_device(device, recipe.training.tables)),
        checkpoints=checkpoints,
        ends=ends_after(minutes),
    )
    recipe, said = with_selecting_metric(recipe, split, context.progress)
    model = trained_encoder(trained, final.training, recipe.model)
    if model is None:
        fitted = _fit_first(recipe, encoder, split, final, context)
    else:
        fitted = judge(model, final, recipe, together=context.collectives)
    fitted.warnings = [*said, *fitted.warnings]
    provenance = Provenance(
        recipe.model_dump(mode="json"),
        options_of(fitted.encoder, recipe.model, 0),
        trained_pairs(final.training, salt_of(recipe.name)),
        query_form(recipe, final.training, fitted),
    )
    report = version_report(0, final, fitted)
    return make_artefact(fitted, final, report, provenance)


def _path(folder: str | Path | None) -> Path | None:
    return None if folder is None else Path(folder)


def _fit_first(
    recipe: Recipe,
    modules: EncoderModules | None,
    split: Split,
    final: Split,
    context: RunContext,
) -> Trained:
    """Return the trained model of version 0: the recipe's encoder, or a user's modules."""
    normalize = recipe.model.normalize
    own = [own_encoder(modules, s.training, normalize=normalize) for s in (split, final)]
    refit = None if final is split else Refit(final, Companions(own=own[1]))
    if recipe.model.kind == "factorization" and not wants_pilots(recipe, split):
        expected = expected_time(recipe, split)
        context.progress.say(f"This takes {in_words(expected.total)}.")
    pilots = run_pilots(recipe, split, 0, context)
    fitted = fit_encoder(pilots.recipe, split, 0, context, Companions(own=own[0]), refit)
    fitted.pilots = pilots.tried
    return fitted


Rest = ParamSpec("Rest")


def _claiming(
    train_next: Callable[Concatenate[Recipe, Lineage, Rest], Artefact],
) -> Callable[Concatenate[Recipe, Lineage, Rest], Artefact]:
    """Wrap a function so that no other process trains the lineage's next version meanwhile."""

    @wraps(train_next)
    def claimed(
        recipe: Recipe, lineage: Lineage, /, *args: Rest.args, **kwargs: Rest.kwargs
    ) -> Artefact:
        with lineage.training() if is_first_process() else nullcontext():
            return train_next(recipe, lineage, *args, **kwargs)

    return claimed


@_claiming
def upgrade(
    recipe: Recipe,
    lineage: Lineage,
    corpus: Corpus | None = None,
    *,
    encoder: EncoderModules | None = None,
    past_encoders: Mapping[int, EncoderModules] | None = None,
    trained: Encoder | EncoderModules | None = None,
    device: str = "auto",
    progress: Progress | bool = True,
    folder: str | Path | None = None,
    checkpoints: CheckpointSettings = AUTOMATIC,
    callbacks: Sequence[Callback] = (),
    board: str | Path | None = None,
    readings: bool = True,
    allow_small_overlap: bool = False,
    consumers: Sequence[KnownConsumer] = (),
    keep_unknown: bool = False,
    minutes: float | None = None,
) -> Artefact:
    """Return the version after the newest, with its backward transform, by `recipe.upgrade`.

    Its metrics hold the model's own, those of the same model trained without alignment, and for
    every past version the metrics of reading it through the chain, and the certificate.

    >>> import evergram
    >>> data = {"kind": "synthetic", "queries": 200, "candidates": 100, "interactions": 4000}
    >>> recipe = evergram.Recipe.of(
    ...     {"data": data, "model": {"dim": [8, 12]}, "training": {"epochs": 3}}
    ... )
    >>> lineage = evergram.Lineage.create("lineages/new", "new")
    >>> published = evergram.publish(lineage, evergram.train(recipe))
    >>> artefact = evergram.upgrade(recipe, lineage)
    >>> artefact.transform.new_dim, artefact.transform.old_dim
    (12, 8)
    >>> evergram.publish(lineage, artefact).version
    1

    Args:
        corpus, device, progress, folder, checkpoints, callbacks, board, minutes: as of `train`.
        encoder: modules of your own, trained in place of the recipe's encoder; they may differ
            from those of the version before.
        past_encoders: by past version, the modules of your own that it was trained with; without
            them it is known by its stored embeddings, and without these it is not measured.
        trained: a model of this version, or modules of your own, trained without alignment on
            `split_for(recipe, corpus, version, lineage.pair_history).training`. Only the transform
            is fitted, which needs upgrade.fit = 'posthoc' or 'none'.
        readings: whether to measure the new version read as each past one.
        allow_small_overlap: allow too few objects in common with the past to measure the error on.
        consumers: of past versions, which weigh the alignment error by upgrade.consumer_weight, as
            those of the lineage do that have a probe.
        keep_unknown: let a frozen model embed, and be tested on, also the objects of the data that
            it knows nothing of, as a comparison of methods on all of them does. Without it the
            version has no vectors of these.
    Raises: UnknownVersionError: the lineage has no version. LineageError: another process is
        training the next one. DataError: too few objects are in common with the version before; it
        was trained on a corpus that was passed, and none is; or the data cannot be used.
        RecipeError, TrainingError. ShapeError: as `train`.
    Source: [BC] Eq. (3), (10), Table 1.
    """
    past, small = past_encoders or {}, allow_small_overlap
    options = UpgradeOptions(
        encoder,
        past,
        trained,
        readings=readings,
        allow_small_overlap=small,
        consumers=consumers,
        keep_unknown=keep_unknown,
    )
    chosen, shown = pick_device(device, recipe.training.tables), Progress.of_choice(progress)
    context = RunContext(
        chosen, shown, _path(folder), callbacks, checkpoints=checkpoints, ends=ends_after(minutes)
    )
    return _upgraded(recipe, lineage, corpus, options, context, board)


def _upgraded(
    recipe: Recipe,
    lineage: Lineage,
    corpus: Corpus | None,
    options: UpgradeOptions,
    context: RunContext,
    board: str | Path | None = None,
) -> Artefact:
    """Plan, fit, measure and package an upgrade, together with the other processes."""
    context = replace(context, collectives=join_processes(context.device))
    corpus = corpus_for(recipe, corpus, lineage)
    recipe = recorded_recipe(recipe, corpus)
    say_features(recipe, corpus, context.progress)
    plan = plan_upgrade(recipe, lineage, corpus, options)
    fitted = fit_upgrade(plan, replace(context, title=f"version {plan.version}"), board)
    report = measure_upgrade(plan, fitted, context.collectives)
    artefact = package_upgrade(plan, fitted, report)
    context.collectives.sum(torch.zeros(()), "end")  # all have read what publishing may remove
    return artefact


@_claiming
def upgrade_lost(
    recipe: Recipe,
    lineage: Lineage,
    corpus: Corpus | None = None,
    *,
    encoder: EncoderModules | None = None,
    device: str = "auto",
    progress: Progress | bool = True,
    allow_small_overlap: bool = False,
) -> Artefact:
    """Return the model of an upgrade that another one preceded, as the version after the newest.

    Nothing is trained; its transform is fitted to the newest version in closed form.

    Args:
        encoder: the modules that the model was trained with, if they were your own.
    Raises: LineageError: no model is kept. RecipeError: it was trained by another recipe.
    """
    lost = lineage.lost()
    recipe = with_modules(recipe, encoder)
    if corpus is not None:
        recipe = recorded_recipe(recipe, corpus)
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
    model = restore_any(*lost.encoder(), "the kept model", encoder)
    settings = recipe.upgrade.solved()
    options = UpgradeOptions(
        trained=model,
        trained_as=lost.manifest.version,
        query_form=lost.query_form(),
        allow_small_overlap=allow_small_overlap,
    )
    recipe = recipe.model_copy(update={"upgrade": settings})
    context = RunContext(pick_device(device, recipe.training.tables), Progress.of_choice(progress))
    return _upgraded(recipe, lineage, corpus, options, context)
