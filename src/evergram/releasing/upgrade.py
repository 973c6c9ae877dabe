"""Train a version, and the next one together with its backward transform."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
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
from evergram.evaluation.metric_sample import SampledRanking, sample_queries
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
    """The ways in which an upgrade departs from its recipe, see `upgrade`."""

    encoder: EncoderModules | None = None
    past_encoders: Mapping[int, EncoderModules] = field(default_factory=dict)
    trained: Encoder | EncoderModules | None = None
    readings: bool = True
    allow_small_overlap: bool = False
    keep_unknown: bool = False


@dataclass(frozen=True)
class UpgradePlan:
    """The parts of an upgrade, after every refusal that needs no training.

    Args:
        version: the number of the new version.
        split: chooses for how long to train. `final`: its model is trained and judged on it; the
            same without a refit.
        published: of the objects that the version has vectors of; the same as `final`, but for a
            frozen model, which has none of the others.
        unknown: how many objects of each side a frozen model does not know; empty of another.
        before: the model of `past_version`.
        backward: the transform, from its start.
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
        """The newest version, which the new one is aligned to."""
        return self.lineage.newest

    def companions(self, split: Split) -> Companions:
        """Return what the model is trained with on a split: the transform's start, if it is trained
        together with the model, and the user's modules."""
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
    """Return the encoder of a user's modules for a split's training; None without modules."""
    if modules is None:
        return None
    return ModuleEncoder.of(modules, split.training, normalize=recipe.model.normalize)


def with_modules(
    recipe: Recipe, encoder: EncoderModules | None, trained: EncoderModules | Encoder | None = None
) -> Recipe:
    """Return the recipe whose model is the user's modules, if there are any; else the same one."""
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
    """Return a model that is not trained again, in evaluation mode; copies of a user's modules."""
    if isinstance(trained, EncoderModules):
        modules = trained.copied()
        return ModuleEncoder.of(modules, split.training, normalize=model.normalize).eval()
    return trained


def plan_upgrade(
    recipe: Recipe, lineage: Lineage, corpus: Corpus, options: UpgradeOptions
) -> UpgradePlan:
    """Split the data, load the version before, and start the transform."""
    recipe = with_modules(recipe, options.encoder, options.trained)
    past_version, settings = lineage.newest, recipe.upgrade
    for past in options.past_encoders:
        lineage.manifest(past)  # refuses a version that there is not
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
            # The model that is trained alone is tested on these, too.
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
    """Return the model of the version before; refuse one whose modules are needed and were not
    given, or another model than the one that stays."""
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
    """Return a version's metrics as JSON: its own, its training's, and its data's size, of the
    split that it was last trained on and tested by."""
    training = split.training
    schema = getattr(trained.encoder, "schema", None)  # modules of a user's own have none
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
    """Return the corpus of `corpus_for`, and the recipe that records it. Say what each feature is,
    of a model that reads them, and warn of those that say nothing of a new object."""
    corpus = corpus_for(recipe, corpus, lineage)
    reads = recipe.model.reads_features
    for feature in summaries(corpus.queries, corpus.candidates) if reads else ():
        progress.say(feature.sentence)
        if feature.warning and is_first_process():
            log.warning(feature.warning)
    return corpus, recorded_recipe(recipe, corpus)


def training_report(trained: Trained) -> dict[str, Any]:
    """Return how a model was trained, as JSON: seconds, epochs, strengths, warnings."""
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
    """Return the callbacks that write a version's training, with its Gramians' errors, for
    TensorBoard; none without a folder, or in another process than the first."""
    if folder is None or not is_first_process():
        return []
    from evergram.training.diagnose import TensorBoard, Tracking

    corpus = split.training
    tracking = Tracking({}, {s: corpus.counts(s) for s in SIDES}, every=100)
    pairs = (corpus.column("query"), corpus.column("candidate"))
    return [tracking, TensorBoard(Path(folder) / f"version-{version}", pairs, tracking)]


@dataclass
class FittedUpgrade:
    """A trained model, its transform's error on objects that alignment never saw, and the same
    model trained without alignment; None if it was not trained, itself if it had no alignment."""

    trained: Trained
    error: StepError
    unaligned: Trained | None


def fit_upgrade(
    plan: UpgradePlan, context: RunContext, board: str | Path | None = None
) -> FittedUpgrade:
    """Train the model and fit its transform; then train the same model without alignment, if the
    recipe asks what alignment cost. A `board` is a folder for TensorBoard's files."""
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
    """Return the new version's metrics as JSON: its own, those of the model trained alone, what
    reading it as each past version keeps, and the certificate. Processes share the rankings.

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
    draw = None
    if fitted.trained.sample is not None:  # all readings together rank as many as the metrics
        rankings = RANKINGS * max(1, len(lineage.readable))
        queries = max(LEAST, fitted.trained.test_queries // rankings)
        draw = partial(sample_queries, queries=queries, seed=plan.recipe.seed)
    for j in lineage.readable if plan.options.readings else ():
        model = past_model(lineage, j, plan.options.past_encoders.get(j))
        if model is None:
            unread.append(j)
            continue
        reading = PastReading(longer, j, model, together)
        readings[str(j)] = reading_report(
            reading, new, plan.published, plan.backward.held_out, plan.recipe.metrics, draw
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
    measured: dict[str, Any] = together.from_first(lambda: report)  # seconds differ by the process
    return measured


def package_upgrade(
    plan: UpgradePlan, fitted: FittedUpgrade, report: Mapping[str, Any]
) -> Artefact:
    """Return the artefact of a fitted and measured upgrade."""
    trained = fitted.trained
    salt = salt_of(plan.recipe.name, plan.lineage.pair_history)
    if plan.recipe.upgrade.start == "frozen":
        record = plan.lineage.manifest(plan.past_version).encoder
        assert record is not None
        options: Mapping[str, Any] = record.options
        # A frozen model was trained on nothing that its own version does not remember.
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
        corpus, device, progress, folder, checkpoints, callbacks, board, minutes: see `train`.
        encoder: modules of your own, trained in place of the recipe's encoder; they may differ
            from those of the version before.
        past_encoders: by past version, the modules of your own that it was trained with; without
            them it is known by its stored embeddings, and without these it is not measured.
        trained: a model of this version, or modules of your own, trained without alignment on
            `split_for(recipe, corpus, version, lineage.pair_history).training`. Only the transform
            is fitted, which needs upgrade.method = 'post-closed', for example.
        readings: whether to measure the new version read as each past one.
        allow_small_overlap: allow too few objects in common with the past to measure the error on.
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
    options = UpgradeOptions(encoder, past, trained, readings, small, keep_unknown)
    chosen, shown = pick_device(device, recipe.training.tables), Progress.of_choice(progress)
    place = None if folder is None else Path(folder)
    context = RunContext(
        chosen, shown, place, callbacks, checkpoints=checkpoints, ends=ends_after(minutes)
    )
    # No process of another training may do so meanwhile; those of this one work together.
    with lineage.training() if is_first_process() else nullcontext():
        context = replace(context, collectives=join_processes(context.device))
        corpus, recipe = data_of(recipe, corpus, context.progress, lineage)
        plan = plan_upgrade(recipe, lineage, corpus, options)
        fitted = fit_upgrade(plan, replace(context, title=f"version {plan.version}"), board)
        report = measure_upgrade(plan, fitted, context.collectives)
        artefact = package_upgrade(plan, fitted, report)
        context.collectives.sum(torch.zeros(()), "end")  # all have read what publishing may remove
        return artefact
