"""Plan an upgrade: split its data, load the version before, start the transform."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.split import Split
from evergram.encoders.encoder import Encoder
from evergram.encoders.encoder_modules import EncoderModules
from evergram.encoders.factory import publish_by_popularity
from evergram.encoders.features import SIDES
from evergram.encoders.kinds import EncoderSettings, ModuleSettings
from evergram.encoders.module_encoder import ModuleEncoder
from evergram.encoders.popularity_factor import popularity_factors
from evergram.errors import RecipeError
from evergram.gramian.new_queries.query_form import QueryForm
from evergram.lineage.lineage import Lineage
from evergram.releasing.backward_transform import BackwardTransformFit
from evergram.releasing.frozen import (
    known_to,
    refuse_other_model,
    split_of_known,
    unknown_counts,
    with_known_queries,
)
from evergram.releasing.known_consumers import (
    ConsumerWeighing,
    KnownConsumer,
    PastObjects,
    weigh_consumers,
)
from evergram.releasing.past_versions import PastModel, past_model
from evergram.training.corpora import final_split, salt_of, split_for, with_selecting_metric
from evergram.training.recipe import Recipe

log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpgradeOptions:
    """The ways in which an upgrade departs from its recipe.

    Args:
        encoder: modules of the user's own, trained in place of the recipe's encoder.
        past_encoders: by past version, the modules that it was trained with.
        trained: a model of this version, or modules, that have been trained alone already.
        trained_as: the version whose data and seed `trained` has; the next one by default.
        query_form: how `trained` folds in new queries, where that is known.
        readings: whether to measure the new version read as each past one.
        allow_small_overlap: whether to go on where so few objects are in common with the version
            before that the transform's error cannot be measured.
        consumers: of past versions, in addition to those of the lineage; they weigh the error.
        keep_unknown: whether a frozen model is measured and published with the objects that it
            knows nothing of.
    """

    encoder: EncoderModules | None = None
    past_encoders: Mapping[int, EncoderModules] = field(default_factory=dict)
    trained: Encoder | EncoderModules | None = None
    trained_as: int | None = None
    query_form: QueryForm | None = None
    readings: bool = True
    allow_small_overlap: bool = False
    consumers: Sequence[KnownConsumer] = ()
    keep_unknown: bool = False


@dataclass(frozen=True)
class UpgradePlan:
    """The parts of an upgrade, after every refusal that needs no training.

    Args:
        version: whose data and seed it is trained with.
        split: chooses for how long to train.
        final: its model is trained and judged on it; the same as `split` without a refit.
        published: of the objects that the version has vectors of; the same as `final`, but for a
            frozen model, which has none of the others.
        unknown: how many objects of each side a frozen model does not know; empty of another.
        before: the model of `past_version`.
        trained: a model of this version that is not trained again.
        backward: the transform, from its start.
        said: sentences on the recipe for a person to read.
        weighing: what known consumers make of the alignment error.
        keeps_popularity: whether candidates have the past version's power of counts, for "auto".
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
    weighing: ConsumerWeighing
    said: Sequence[str] = ()
    keeps_popularity: bool = False

    @property
    def number(self) -> int:
        """The number of the new version."""
        return self.lineage.next_version

    @property
    def past_version(self) -> int:
        """The newest version, which the new one is aligned to."""
        return self.lineage.newest

    @property
    def salt(self) -> str:
        """The salt of the split."""
        return salt_of(self.recipe.name, self.lineage.pair_history)

    @property
    def recorded(self) -> Recipe:
        """The recipe as the version keeps it, with the "auto" that was written."""
        if not self.keeps_popularity:
            return self.recipe
        model = self.recipe.model.model_copy(update={"popularity": "auto"})
        return self.recipe.model_copy(update={"model": model})

    def factors(self, corpus: Corpus) -> Tensor | None:
        """Return the factor of each candidate of a corpus that the model is trained on, [N], as a
        joint alignment knows it; None without factors."""
        exponent = self.recipe.model.exponent
        return (
            None if exponent is None else popularity_factors(corpus.counts("candidate"), exponent)
        )

    def own(self, corpus: Corpus) -> ModuleEncoder | None:
        """Return the encoder of the user's modules for a corpus; None if there are none."""
        normalize = self.recipe.model.normalize
        return own_encoder(self.options.encoder, corpus, normalize=normalize)

    def backward_for(self, corpus: Corpus) -> BackwardTransformFit:
        """Return the transform's start for another corpus of the same version."""
        fit = BackwardTransformFit(
            self.recipe.upgrade,
            self.recipe.seed + self.version,
            self.lineage.active_chain,
            self.before,
            corpus,
            self.backward.transform.new_dim,
        )
        fit.weigh(self.weighing.metrics)
        return fit


def own_encoder(
    modules: EncoderModules | None, corpus: Corpus, *, normalize: bool
) -> ModuleEncoder | None:
    """Return the encoder of a user's modules for a corpus; None without modules."""
    if modules is None:
        return None
    return ModuleEncoder.of(modules, corpus, normalize=normalize)


def with_modules(recipe: Recipe, modules: EncoderModules | Encoder | None) -> Recipe:
    """Return the recipe whose model is the user's modules, if there are any; else the same one.

    Raises: RecipeError: its model is a user's modules, and none were given.
    """
    if isinstance(modules, EncoderModules):
        model = recipe.model
        own = ModuleSettings(normalize=model.normalize, popularity=model.popularity)
        return recipe.model_copy(update={"model": own})
    if recipe.model.kind == ModuleEncoder.kind and modules is None:
        raise RecipeError(
            "model.kind = 'module' stands for modules of your own, which a recipe cannot hold; "
            "train from Python and give them as encoder=EncoderModules(…)."
        )
    return recipe


def refuse_both(encoder: object, trained: object) -> None:
    """Raises: RecipeError: a model to train and a trained one were both given."""
    if encoder is not None and trained is not None:
        raise RecipeError(
            "encoder= is trained, and trained= has been trained already; give one of them."
        )


def trained_encoder(
    trained: Encoder | EncoderModules | None, corpus: Corpus, model: EncoderSettings
) -> Encoder | None:
    """Return a model that is not trained again, in evaluation mode; copies of a user's modules.

    Raises: RecipeError: the power of counts that its candidates are published with is not known, or
        is another one.
    """
    if isinstance(trained, EncoderModules):
        if model.popularity == "auto":
            raise RecipeError(
                "model.popularity = 'auto' is chosen where a model is trained, and trained= has "
                "been trained already; give a number."
            )
        modules = ModuleEncoder.of(trained.copied(), corpus, normalize=model.normalize)
        if model.exponent is not None:
            publish_by_popularity(modules, model.exponent, corpus)
        return modules.eval()
    if trained is not None:
        own = trained.popularity_option.get("popularity", 0.0)
        if model.popularity not in (own, "auto"):
            raise RecipeError(
                f"model.popularity is {model.popularity!r}, and trained= publishes candidates with "
                f"{own}; set model.popularity to that."
            )
    return trained


def _with_past_popularity(recipe: Recipe, lineage: Lineage) -> tuple[Recipe, bool]:
    """Return the recipe with a number in the place of `model.popularity = "auto"`, for a model that
    is aligned while it is trained: it must know its factors then, and has the past version's power.

    Returns: also whether there was such a place.
    Raises: RecipeError: the past version has none.
    """
    settings, past_version = recipe.upgrade, lineage.newest
    aligned = settings.fit == "joint" and settings.start != "frozen"
    if recipe.model.popularity != "auto" or not aligned:
        return recipe, False
    manifest = lineage.manifest(past_version)
    # A version whose own "auto" was the 0 of the one before it has no factor.
    zero = 0.0 if manifest.recipe.get("model", {}).get("popularity") == "auto" else None
    past = zero if manifest.encoder is None else manifest.encoder.options.get("popularity", zero)
    if past is None:
        raise RecipeError(
            "model.popularity = 'auto' of a joint upgrade is that of the version before, and "
            f"version {past_version} has none; give a number, or set "
            "upgrade.method = 'post-closed'."
        )
    model = recipe.model.model_copy(update={"popularity": past})
    return recipe.model_copy(update={"model": model}), True


def _known_parts(
    recipe: Recipe, split: Split, before: PastModel, options: UpgradeOptions
) -> tuple[Split, Split, Split, dict[str, int]]:
    """Return `split`, `final`, `published` and `unknown` of the plan."""
    final = final_split(split, refits=recipe.refits)
    if recipe.upgrade.start != "frozen":
        return split, final, final, {}
    assert isinstance(before, Encoder)
    known = known_to(before, final.training)
    unknown = unknown_counts(known)
    if options.keep_unknown:
        return split, final, final, unknown
    tested = with_known_queries(final, known)  # by the model that is trained alone, too
    return tested if final is split else split, tested, split_of_known(final, known), unknown


def plan_upgrade(
    recipe: Recipe, lineage: Lineage, corpus: Corpus, options: UpgradeOptions
) -> UpgradePlan:
    """Split the data, load the version before, and start the transform.

    Raises: UnknownVersionError, DataError, RecipeError: as `upgrade`.
    """
    refuse_both(options.encoder, options.trained)
    recipe = with_modules(recipe, options.encoder or options.trained)
    past_version, settings = lineage.newest, recipe.upgrade
    for past in options.past_encoders:
        lineage.manifest(past)  # refuses a version that there is not
    version = lineage.next_version if options.trained_as is None else options.trained_as
    sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    lineage.check_ids({side: entities.vocabulary.keys for side, entities in sides})
    history = lineage.pair_history
    split = split_for(recipe, corpus, version, history)
    recipe, said = with_selecting_metric(recipe, split)
    recipe, keeps_popularity = _with_past_popularity(recipe, lineage)
    if options.trained is not None and (settings.fit == "joint" or settings.start != "fresh"):
        raise RecipeError(
            "trained= needs a method that trains the model for its task alone, such as "
            "upgrade.method = 'post-closed', and upgrade.start = 'fresh'; they are "
            f"{settings.method!r} and {settings.start!r}."
        )
    before = _before(recipe, lineage, past_version, options)
    if settings.start == "previous":
        # Fine-tuning cannot change the architecture.
        recipe = recipe.model_copy(update={"model": recipe.model.as_of(0)})
    split, final, published, unknown = _known_parts(recipe, split, before, options)
    trained = trained_encoder(options.trained, final.training, recipe.model)
    if settings.start == "frozen":
        new_dim = before.dim
    elif trained is not None:
        new_dim = trained.dim
    else:
        own = own_encoder(options.encoder, final.training, normalize=recipe.model.normalize)
        new_dim = recipe.model.dim_of(version) if own is None else own.dim
    corpus, seed = published.training, recipe.seed + version
    chain = lineage.active_chain
    backward = BackwardTransformFit(settings, seed, chain, before, corpus, new_dim)
    backward.overlap.refuse_small(version, past_version, allow_small=options.allow_small_overlap)
    objects = PastObjects(corpus, backward.past, backward.used)
    weighing = weigh_consumers(settings, lineage, objects, options.consumers)
    backward.weigh(weighing.metrics)
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
        weighing=weighing,
        keeps_popularity=keeps_popularity,
    )


def _before(recipe: Recipe, lineage: Lineage, version: int, options: UpgradeOptions) -> PastModel:
    """Return the model of the version before.

    Raises: RecipeError: the new model starts from it or is it, and its modules were not given, or
        the recipe describes another model than the one that stays.
    """
    start, modules = recipe.upgrade.start, options.past_encoders.get(version)
    if modules is None and start != "fresh":
        modules = options.encoder
    record = lineage.manifest(version).encoder
    if record is not None and record.kind == "module" and modules is None and start != "fresh":
        raise RecipeError(
            f"upgrade.start = {start!r} needs the modules of version {version}; give them as "
            "encoder=EncoderModules(…)."
        )
    model = past_model(lineage, version, modules)
    assert model is not None, "the newest version's embeddings are stored"
    if start == "frozen":
        kept = recipe if modules is None else with_modules(recipe, modules)
        refuse_other_model(kept, lineage.recipe(version), version)
    return model
