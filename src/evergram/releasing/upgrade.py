"""Train the first version, or the next one with its backward transform."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from evergram.collectives import ALONE, Collectives, is_first_process
from evergram.compatibility.certificate import StepError, certify
from evergram.data.corpus import Corpus, summaries
from evergram.data.split import Split, TrainedPairs
from evergram.encoders.encoder import SIDES, Encoder
from evergram.encoders.kinds import EncoderSettings, ModuleSettings
from evergram.encoders.module_encoder import EncoderModules, ModuleEncoder
from evergram.errors import RecipeError
from evergram.evaluation.metric_sample import SampledRanking
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.backward_transform import BackwardTransformFit
from evergram.releasing.past_versions import (
    RANKINGS,
    PastModel,
    PastReading,
    known_to,
    past_model,
    reading_report,
    refuse_other_model,
    split_of_known,
    unknown_counts,
    with_known_queries,
)
from evergram.training.build import (
    Companions,
    corpus_for,
    final_split,
    pick_device,
    recorded_recipe,
    salt_of,
    split_for,
    with_selecting_metric,
)
from evergram.training.callbacks import Callback
from evergram.training.checkpoint import make_artefact, options_of
from evergram.training.distributed import join_processes
from evergram.training.fit import Refit, RunContext, Trained, ends_after, fit_encoder, judge
from evergram.training.pilots import Pilots, run_pilots
from evergram.training.progress import Progress
from evergram.training.query_objective import query_form
from evergram.training.recipe import Recipe
from evergram.training.resuming import AUTOMATIC, CheckpointSettings
from evergram.training.selection import LEAST

log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpgradeOptions:
    """Options of an upgrade besides its recipe; see `upgrade`."""

    encoder: EncoderModules | None = None
    past_encoders: Mapping[int, EncoderModules] = field(default_factory=dict)
    trained: Encoder | EncoderModules | None = None
    readings: bool = True
    allow_small_overlap: bool = False
    keep_unknown: bool = False


@dataclass(frozen=True)
class UpgradePlan:
    """Everything that an upgrade needs, after all checks that do not require training.

    Args:
        version: the number of the new version.
        split: for choosing the training length.
        final: for the final training and test; the same as `split` without a refit.
        published: `final` restricted to the objects that get vectors; a frozen model may not know
            all of them.
        unknown: for a frozen model, the number of unknown objects by side.
        before: the model of `past_version`.
        backward: fits the transform.
    """

    recipe: Recipe
    lineage: Lineage
    options: UpgradeOptions
    version: int
    split: Split
    final: Split
    published: Split
    unknown: Mapping[str, int]
    before: PastModel
    trained: Encoder | None
    backward: BackwardTransformFit
    said: Sequence[str] = ()

    @property
    def past_version(self) -> int:
        """The newest version, to which the new one is aligned."""
        return self.lineage.newest

    def companions(self, split: Split) -> Companions:
        """Return the joint alignment, initial encoder and user's modules to train on a split."""
        corpus, start = split.training, None
        if self.recipe.upgrade.start == "previous":
            assert isinstance(self.before, Encoder)
            start = self.before
        backward = self.backward
        if split is not self.published:
            chain, dim = self.lineage.active_chain, self.backward.transform.new_dim
            backward = BackwardTransformFit(
                self.recipe, self.version, chain, self.before, corpus, dim
            )
        own = own_encoder(self.options.encoder, split, self.recipe)
        return Companions(backward.joint(), start, own)


def own_encoder(
    modules: EncoderModules | None, split: Split, recipe: Recipe
) -> ModuleEncoder | None:
    """Return an encoder of the user's modules for a split; None without modules."""
    if modules is None:
        return None
    return ModuleEncoder.of(modules, split.training, normalize=recipe.model.normalize)


def with_modules(
    recipe: Recipe, encoder: EncoderModules | None, trained: EncoderModules | Encoder | None = None
) -> Recipe:
    """Return the recipe, with the user's modules as its model if given."""
    if encoder is not None and trained is not None:
        raise RecipeError("encoder= is trained, and trained= was trained already; give one.")
    modules = encoder or trained
    if isinstance(modules, EncoderModules):
        model = recipe.model
        own = ModuleSettings(normalize=model.normalize)
        return recipe.model_copy(update={"model": own})
    if recipe.model.kind == ModuleEncoder.kind and modules is None:
        todo = "train from Python and give them as encoder=EncoderModules(…)"
        raise RecipeError(f"model.kind = 'module' stands for modules of your own; {todo}.")
    return recipe


def trained_encoder(
    trained: Encoder | EncoderModules | None, split: Split, model: EncoderSettings
) -> Encoder | None:
    """Return an already trained model as an encoder; the user's modules are copied."""
    if isinstance(trained, EncoderModules):
        modules = trained.copied()
        return ModuleEncoder.of(modules, split.training, normalize=model.normalize).eval()
    return trained


def plan_upgrade(
    recipe: Recipe, lineage: Lineage, corpus: Corpus, options: UpgradeOptions
) -> UpgradePlan:
    """Split the data, load the previous version, and initialize the transform."""
    recipe = with_modules(recipe, options.encoder, options.trained)
    past_version, settings = lineage.newest, recipe.upgrade
    for past in options.past_encoders:
        lineage.manifest(past)  # refuses an unknown version
    version = lineage.next_version
    sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    lineage.check_ids({side: entities.vocabulary.keys for side, entities in sides})
    history = lineage.pair_history
    split = split_for(recipe, corpus, version, history)
    recipe, said = with_selecting_metric(recipe, split)
    if options.trained is not None and (settings.fit == "joint" or settings.start != "fresh"):
        raise RecipeError(
            "trained= needs a method such as upgrade.method = 'post-closed' and upgrade.start = "
            f"'fresh'; they are {settings.method!r} and {settings.start!r}."
        )
    before = _before(recipe, lineage, past_version, options)
    if settings.start == "previous":
        # Fine-tuning cannot change the architecture.
        recipe = recipe.model_copy(update={"model": recipe.model.as_of(0)})
    published = final = final_split(split, refits=recipe.refits)
    unknown: dict[str, int] = {}
    if settings.start == "frozen":
        assert isinstance(before, Encoder)
        known = known_to(before, final.training)
        unknown = unknown_counts(known)
        if not options.keep_unknown:
            published = split_of_known(final, known)
            # Test the model that is trained alone on the same queries.
            tested = with_known_queries(final, known)
            split, final = tested if final is split else split, tested
    trained = trained_encoder(options.trained, final, recipe.model)
    if settings.start == "frozen":
        new_dim = before.dim
    elif trained is not None:
        new_dim = trained.dim
    else:
        own = own_encoder(options.encoder, final, recipe)
        new_dim = recipe.model.dim_of(version) if own is None else own.dim
    backward = BackwardTransformFit(
        recipe, version, lineage.active_chain, before, published.training, new_dim
    )
    backward.overlap.refuse_small(version, past_version, allow_small=options.allow_small_overlap)
    return UpgradePlan(
        recipe=recipe,
        lineage=lineage,
        options=options,
        version=version,
        split=split,
        final=final,
        published=published,
        unknown=unknown,
        before=before,
        trained=trained,
        backward=backward,
        said=said,
    )


def _before(recipe: Recipe, lineage: Lineage, version: int, options: UpgradeOptions) -> PastModel:
    """Return the previous version's model. Refuse missing modules, and a recipe that describes a
    different model than the frozen one."""
    start, modules = recipe.upgrade.start, options.past_encoders.get(version)
    if modules is None and start != "fresh":
        modules = options.encoder
    record = lineage.manifest(version).encoder
    if record is not None and record.kind == "module" and modules is None and start != "fresh":
        todo = "give them as encoder=EncoderModules(…)"
        raise RecipeError(f"upgrade.start = {start!r} needs version {version}'s modules; {todo}.")
    model = past_model(lineage, version, modules)
    assert model is not None, "the newest version's embeddings are stored"
    if start == "frozen":
        refuse_other_model(with_modules(recipe, modules), lineage.recipe(version), version)
    return model


def version_report(version: int, split: Split, trained: Trained) -> dict[str, Any]:
    """Return a version's metrics, training and data size as JSON; `split` is the final one."""
    training = split.training
    schema = getattr(trained.encoder, "schema", None)  # the user's modules have none
    reads = schema is not None and any(len(inputs) > 1 for inputs in schema.inputs.values())
    features = summaries(training.queries, training.candidates) if reads else []
    return {
        "version": version,
        "dim": trained.query.shape[1],
        "metrics": dict(trained.metrics),
        **({} if trained.sample is None else {"sampled": trained.sample.as_json()}),
        **({"untested": split.untested} if split.untested else {}),
        "training": {
            **training_report(trained),
            "history": trained.history,
            "gramian_bytes": trained.state_bytes,
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
            "in_training": split.in_training,
            **({"features": [asdict(one) for one in features]} if features else {}),
        },
    }


def data_of(
    recipe: Recipe, corpus: Corpus | None, progress: Progress, lineage: Lineage | None = None
) -> tuple[Corpus, Recipe]:
    """Return the corpus, and the recipe that records it. If the model reads features, describe
    each, and warn about those that are useless for new objects."""
    corpus = corpus_for(recipe, corpus, lineage)
    reads = recipe.model.reads_features
    for feature in summaries(corpus.queries, corpus.candidates) if reads else ():
        progress.say(feature.sentence)
        if feature.warning and is_first_process():
            log.warning(feature.warning)
    return corpus, recorded_recipe(recipe, corpus)


def training_report(trained: Trained) -> dict[str, Any]:
    """Return how a model was trained, as JSON."""
    as_they_are = ("best_epoch", "ended", "refit", "l2", "l2_measure", "optimizer", "batch_size")
    report: dict[str, Any] = {
        "seconds": round(trained.seconds, 3),
        "epochs": int(trained.history[-1]["epoch"]) if trained.history else 0,
        "penalty": list(trained.penalty),
        **{name: getattr(trained, name) for name in (*as_they_are, "table_rate")},
        "warnings": trained.warnings,
    }
    return report | ({"pilots": trained.pilots} if trained.pilots else {})


def board_callbacks(folder: str | Path | None, version: int, split: Split) -> list[Callback]:
    """Return callbacks that write training curves and Gramian errors for TensorBoard; none without
    a folder, or outside the first process."""
    if folder is None or not is_first_process():
        return []
    from evergram.training.diagnose import TensorBoard, Tracking

    corpus = split.training
    tracking = Tracking({}, {s: corpus.counts(s) for s in SIDES}, every=100)
    pairs = (corpus.column("query"), corpus.column("candidate"))
    return [tracking, TensorBoard(Path(folder) / f"version-{version}", pairs, tracking)]


@dataclass
class FittedUpgrade:
    """A trained model, its transform's error on held-out objects, and the same model trained
    without alignment: None if not trained, `trained` itself if that had no alignment."""

    trained: Trained
    error: StepError
    unaligned: Trained | None


def fit_upgrade(
    plan: UpgradePlan, context: RunContext, board: str | Path | None = None
) -> FittedUpgrade:
    """Train the model and fit its transform; then train the same model without alignment, if the
    recipe has upgrade.alone. `board` is a folder for TensorBoard."""
    settings = plan.recipe.upgrade
    for sentence in plan.said:
        context.progress.say(sentence)
    trains = settings.start != "frozen" and plan.trained is None
    pilots = Pilots(plan.recipe)
    if trains and settings.start == "fresh":
        pilots = run_pilots(plan.recipe, plan.split, plan.version, context)
    companions, refit = plan.companions(plan.final), None
    if plan.final is not plan.split:
        refit = Refit(plan.final, companions)
        companions = plan.companions(plan.split)
    if trains:
        watching = [*context.callbacks, *board_callbacks(board, plan.version, plan.split)]
        again = settings.alone and (companions.joint is not None or settings.start != "fresh")
        ends = context.share_of_time(0.5) if again else context.ends
        watched = replace(context, callbacks=watching, ends=ends)
        trained = fit_encoder(pilots.recipe, plan.split, plan.version, watched, companions, refit)
        trained.pilots = pilots.tried
    else:
        model = plan.before if settings.start == "frozen" else plan.trained
        assert isinstance(model, Encoder)
        trained = judge(model, plan.published, plan.recipe, together=context.collectives)
    trained.warnings = [*plan.said, *trained.warnings]
    started = time.perf_counter()
    new = {"query": trained.query, "candidate": trained.candidate}
    plan.backward.finish(new, context.collectives)
    trained.seconds += time.perf_counter() - started
    error = plan.backward.error(new)
    if not settings.alone:
        return FittedUpgrade(trained, error, None)
    if companions.joint is None and settings.start == "fresh":
        return FittedUpgrade(trained, error, trained)
    free = {"joint": None, "start": None}
    unaligned = fit_encoder(
        pilots.recipe,
        plan.split,
        plan.version,
        replace(
            context,
            title=f"{context.title} alone",
            callbacks=(),
            test_queries=trained.test_queries,  # the same queries
        ),
        replace(companions, **free),
        None if refit is None else Refit(refit.split, replace(refit.companions, **free)),
    )
    return FittedUpgrade(trained, error, unaligned)


def measure_upgrade(
    plan: UpgradePlan, fitted: FittedUpgrade, together: Collectives = ALONE
) -> dict[str, Any]:
    """Return the new version's metrics as JSON, with those of the model trained alone, those of
    reading it as each past version, and the certificate. Processes share the rankings.

    Source: [BC] §4; the certificate, docs/method.md.
    """
    lineage = plan.lineage
    new = {"query": fitted.trained.query, "candidate": fitted.trained.candidate}
    report = version_report(plan.version, plan.published, fitted.trained)
    if fitted.unaligned is not None:
        report["metrics"]["alone"] = fitted.unaligned.metrics["model"]
        ours, theirs = fitted.trained, fitted.unaligned
        if ours.sample and theirs.sample and ours.test_queries == theirs.test_queries:
            values = {**ours.sample.values, "alone": theirs.sample.values["model"]}
            sample = SampledRanking(values, ours.sample.population)
            report["sampled"] = sample.as_json({"alone": ("model", "alone")})
        if theirs is not ours:
            report["training"]["alone"] = training_report(theirs)
    if any(plan.unknown.values()) and not plan.options.keep_unknown:
        report["data"]["unknown_to_model"] = dict(plan.unknown)
    report["overlap"] = plan.backward.overlap.as_json()
    longer = lineage.chain.extended(plan.backward.transform)
    errors = {**lineage.step_errors, plan.version: fitted.error}
    readings: dict[str, Any] = {}
    unread: list[int] = []
    drawn: tuple[int | None, int] = (None, plan.recipe.seed)
    if fitted.trained.sample is not None:  # all readings together rank that many queries
        rankings = RANKINGS * max(1, len(lineage.readable))
        drawn = max(LEAST, fitted.trained.test_queries // rankings), plan.recipe.seed
    for j in lineage.readable if plan.options.readings else ():
        model = past_model(lineage, j, plan.options.past_encoders.get(j))
        if model is None:
            unread.append(j)
            continue
        reading = PastReading(longer, j, model, together)
        readings[str(j)] = reading_report(
            reading, new, plan.published, plan.backward.held_out, plan.recipe.metrics, drawn
        )
    if unread:
        versions = ", ".join(map(str, unread))
        todo = "give the modules as past_encoders={VERSION: EncoderModules(…)}"
        log.warning("Reading the new version as %s is not measured; %s.", versions, todo)
    report["compatibility"] = readings
    report["certificate"] = {
        str(j): asdict(certificate)
        for j in lineage.readable
        if (certificate := certify(longer, errors, plan.version, j)) is not None
    }
    measured: dict[str, Any] = together.from_first(lambda: report)  # seconds differ by process
    return measured


def package_upgrade(
    plan: UpgradePlan, fitted: FittedUpgrade, report: Mapping[str, Any]
) -> Artefact:
    trained = fitted.trained
    salt = salt_of(plan.recipe.name, plan.lineage.pair_history)
    if plan.recipe.upgrade.start == "frozen":
        record = plan.lineage.manifest(plan.past_version).encoder
        assert record is not None
        options: Mapping[str, Any] = record.options
        # The frozen model's own version already records its training pairs.
        trained_on = salt, TrainedPairs()
        form = plan.lineage.reader(plan.past_version).query_form()
    else:
        options = options_of(trained.encoder, plan.recipe.model, plan.version)
        trained_on = salt, TrainedPairs.of_corpus(plan.final.training, salt)
        form = query_form(plan.recipe, plan.final.training, trained)
    return replace(
        make_artefact(trained, plan.published, options),
        transform=plan.backward.transform,
        metrics=report,
        recipe=plan.recipe.model_dump(mode="json"),
        error=fitted.error,
        trained=trained_on,
        follows=plan.lineage.manifest(plan.past_version).fingerprint,
        query_form=form,
        unknown=plan.unknown if plan.options.keep_unknown else {},
    )


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
        corpus: default: `load_corpus(recipe)`; any other is recorded as data.kind = "python".
        encoder: your modules, trained in place of the recipe's encoder.
        trained: modules that you have trained on `split_for(recipe, corpus, 0).training`; they are
            only measured and packaged.
        device: "auto", "cpu" or "cuda".
        progress: show steps and evaluations on stderr.
        folder: checkpoint folder, such as `lineage.work_dir`; an interrupted run resumes from it.
            None saves nothing.
        checkpoints: when to write checkpoints, how many to keep, and whether to resume from them.
        callbacks: called during training.
        board: a folder for TensorBoard.
        minutes: time limit; training stops after the current epoch and keeps the best one.
    Raises: DataError, RecipeError, TrainingError. ShapeError: a module does not return [B, D].
    """
    recipe = with_modules(recipe, encoder, trained)
    chosen, shown = pick_device(device, recipe.training.tables), Progress.of_choice(progress)
    corpus, recipe = data_of(recipe, corpus, shown)
    split = split_for(recipe, corpus, 0)
    final = final_split(split, refits=recipe.refits)
    place = None if folder is None else Path(folder)
    watching = [*callbacks, *board_callbacks(board, 0, split)]
    more: Any = {"collectives": join_processes(chosen), "ends": ends_after(minutes)}
    context = RunContext(
        chosen, shown, place, watching, "version 0", checkpoints=checkpoints, **more
    )
    recipe, said = with_selecting_metric(recipe, split, context.progress)
    model = trained_encoder(trained, final, recipe.model)
    if model is not None:
        fitted = judge(model, final, recipe, together=context.collectives)
    else:
        first, last = (own_encoder(encoder, s, recipe) for s in (split, final))
        refit = None if final is split else Refit(final, Companions(own=last))
        pilots = run_pilots(recipe, split, 0, context)
        fitted = fit_encoder(pilots.recipe, split, 0, context, Companions(own=first), refit)
        fitted.pilots = pilots.tried
    fitted.warnings = [*said, *fitted.warnings]
    salt = salt_of(recipe.name)
    return replace(
        make_artefact(fitted, final, options_of(fitted.encoder, recipe.model, 0)),
        metrics=version_report(0, final, fitted),
        recipe=recipe.model_dump(mode="json"),
        trained=(salt, TrainedPairs.of_corpus(final.training, salt)),
        query_form=query_form(recipe, final.training, fitted),
    )


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
    keep_unknown: bool = False,
    minutes: float | None = None,
) -> Artefact:
    """Train the next version with its backward transform, by `recipe.upgrade`, and return it.

    Its metrics include those of the same model trained without alignment, and, for every past
    version, those of reading the new version as it, with the certificate.

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
        corpus, device, progress, folder, checkpoints, callbacks, board, minutes: see `train`.
        encoder: your modules, trained in place of the recipe's encoder; they may differ from the
            previous version's.
        past_encoders: your modules by past version. Without them, its stored embeddings are used,
            and without these it is not measured.
        trained: a model or your modules, trained without alignment on
            `split_for(recipe, corpus, version, lineage.pair_history).training`. Only the transform
            is fitted, which needs a method such as upgrade.method = 'post-closed'.
        readings: measure the new version read as each past one.
        allow_small_overlap: accept too few objects in common with the previous version to measure
            the error.
        keep_unknown: let a frozen model also embed, and be tested on, objects unknown to it.
    Raises: UnknownVersionError: the lineage is empty. LineageError: another process is training the
        next version. DataError: too few objects in common with the previous version; `corpus` is
        missing, but that version was trained on one; or unusable data. RecipeError, TrainingError.
        ShapeError: as `train`.
    Source: [BC] Eq. (3), (10), Table 1.
    """
    past, small = past_encoders or {}, allow_small_overlap
    options = UpgradeOptions(encoder, past, trained, readings, small, keep_unknown)
    chosen, shown = pick_device(device, recipe.training.tables), Progress.of_choice(progress)
    place = None if folder is None else Path(folder)
    context = RunContext(
        chosen, shown, place, callbacks, checkpoints=checkpoints, ends=ends_after(minutes)
    )
    # Lock out other trainings; the processes of this one work together.
    with lineage.training() if is_first_process() else nullcontext():
        context = replace(context, collectives=join_processes(context.device))
        corpus, recipe = data_of(recipe, corpus, context.progress, lineage)
        plan = plan_upgrade(recipe, lineage, corpus, options)
        fitted = fit_upgrade(plan, replace(context, title=f"version {plan.version}"), board)
        report = measure_upgrade(plan, fitted, context.collectives)
        artefact = package_upgrade(plan, fitted, report)
        context.collectives.sum(torch.zeros(()), "end")  # before publishing removes files
        return artefact
