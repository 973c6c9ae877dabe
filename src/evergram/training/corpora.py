"""Load a recipe's corpus, and split it for a version."""

from __future__ import annotations

import json
from dataclasses import replace

from evergram.data.corpus import Corpus
from evergram.data.data_sets import existing
from evergram.data.loaders import NamedData, PairsFile, PythonData, TableData, load
from evergram.data.rolling_window import RollingWindow
from evergram.data.split import (
    HeldOut,
    Split,
    TrainedPairs,
    given_split,
    of_at_least,
    random_split,
    time_split,
    window_split,
)
from evergram.data.tables import read_interactions
from evergram.errors import DataError, RecipeError
from evergram.evaluation.ranking import discriminating, relevance_of
from evergram.kinds import kind_of
from evergram.lineage.lineage import Lineage, PairHistory
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import GivenSplit, RandomSplit, TimeSplit

# Fewer interactions than this are rarely enough to hold pairs out of.
FEW = 200


def load_corpus(recipe: Recipe) -> Corpus:
    """Return all interactions that the recipe names.

    Raises: DataError: a file cannot be used; or data.kind is 'python', which names none.
    """
    data = recipe.data
    corpus = load(data, recipe.seed)
    if isinstance(data, NamedData) and data.minimum_value is not None:
        if not corpus.has_values:
            raise DataError(
                "data.minimum_value needs a column 'value', and there is none; leave it out."
            )
        corpus = corpus.where(of_at_least(data.minimum_value))
        if not len(corpus):
            raise DataError(f"No interaction has a value of at least {data.minimum_value}.")
    return replace(corpus, origin=_origin(recipe))


def corpus_for(recipe: Recipe, corpus: Corpus | None, lineage: Lineage | None = None) -> Corpus:
    """Return the corpus that was passed; without one, the one that the recipe names.

    Args:
        lineage: whose next version is trained, or whose newest is measured.
    Raises: DataError: as `load_corpus`; or no corpus was passed, and the newest version was trained
        on one that was.
    """
    if isinstance(corpus, Corpus):
        return corpus
    if corpus is not None:
        raise DataError(
            f"A {type(corpus).__name__} is not a corpus; give evergram.Corpus.of(…), which reads "
            "tables, matrices and lists."
        )
    if lineage is None:
        return load_corpus(recipe)
    newest = lineage.newest
    if lineage.manifest(newest).recipe.get("data", {}).get("kind") == kind_of(PythonData):
        raise DataError(
            f"Version {newest} was trained on a corpus that was passed in Python, which the "
            "lineage does not hold; pass it again from Python, as corpus=…."
        )
    return load_corpus(recipe)


def recorded_recipe(recipe: Recipe, corpus: Corpus) -> Recipe:
    """Return the recipe that a version trained on this corpus records: with data.kind = 'python'
    unless `load_corpus` gives the same corpus by the recipe."""
    if corpus.origin == _origin(recipe):
        return recipe
    data, own = recipe.data, {}
    if isinstance(recipe.split, GivenSplit):
        own = {key: getattr(data, key) for key in PairsFile.model_fields if key != "kind"}
    return recipe.model_copy(update={"data": PythonData(**own)})


def _origin(recipe: Recipe) -> str:
    """Return all that a recipe says of its corpus, as JSON."""
    data = recipe.data.model_dump(mode="json", exclude={"test"})
    seed = recipe.seed if recipe.data.is_drawn else None
    return json.dumps({**data, "seed": seed}, sort_keys=True)


def split_for(
    recipe: Recipe, corpus: Corpus, version: int, history: PairHistory | None = None
) -> Split:
    """Return the training, selection and test pairs of a version, in rows of the vocabularies of
    `Split.training`: an entity without a training pair has no row.

    Args:
        history: the pairs that the lineage has held out and trained on; None for a new lineage.
    Raises: RecipeError: the recipe has no such version, or another salt than the lineage.
        DataError: nothing is left to select or to test by.
    """
    salt = salt_of(recipe.name, history)
    trained = TrainedPairs() if history is None else history.trained
    held_out = HeldOut(salt, trained, recipe.split.selects_by)
    if isinstance(recipe.split, GivenSplit):
        data = recipe.data
        assert isinstance(data, TableData | PairsFile)  # as it has a file of test pairs
        columns = {str(k): v for k, v in data.columns.items()}
        test = read_interactions(existing(str(data.test)), columns, data.bad_rows)
        test = test.select(["query", "candidate"])  # of a large test file, what is used alone
        split = given_split(corpus, test, share=recipe.split.share, held_out=held_out)
    elif isinstance(recipe.split, RandomSplit):
        split = random_split(corpus, share=recipe.split.share, held_out=held_out)
    else:
        assert isinstance(recipe.split, TimeSplit)
        shares, last = recipe.split.versions, recipe.split.last
        if last is not None:
            split = window_split(corpus, last=RollingWindow.parse(last), held_out=held_out)
        elif version < len(shares):
            share, until = shares[version], recipe.split.ends[version + 1]
            split = time_split(corpus, share=share, until=until, held_out=held_out)
        else:
            raise RecipeError(
                f"split.versions has {len(shares)} shares, so version {version} has none; append "
                "the share of the corpus that it has seen, or set split.last = '5 %' in its "
                "place, which holds for every version."
            )
    if history is not None and history.untested is not None:
        split = split.without_test(history.untested)
    elif not len(split.test) and split.trained_before:
        raise DataError(
            f"All {split.trained_before} pairs that the split holds out were trained on by an "
            "earlier version of the lineage, so nothing is left to test by; give data that has "
            "grown, or another test file."
        )
    if not len(split.selection) or not (len(split.test) or split.untested):
        left_out = split.unknown_queries + split.trained_before + split.in_training
        remedy = (
            "Give a data.test with other pairs of queries and candidates of the training data"
            if recipe.split.kind == "given"
            else f"Give more data, at best {FEW} interactions or more, in which queries come more "
            "than once with several candidates, or hold out more in [split]"
        )
        raise DataError(
            f"The split holds out too few pairs to judge a model by: of {len(corpus)} interactions "
            f"{len(split.selection)} to choose an epoch and {len(split.test)} to test; "
            f"{left_out} more are of queries that training does not know, or were trained on. "
            f"{remedy}."
        )
    return split


def final_split(split: Split, *, refits: bool) -> Split:
    """Return the split of the published model: with a refit, its training corpus has all but the
    test pairs.

    Raises: RecipeError: the same pairs select and test, so there is nothing more to train on.
    """
    if not refits:
        return split
    if split.final is None:
        raise RecipeError(
            "training.refit trains on the pairs that chose the epoch too, and with split.selection "
            "= 'paper' those are the test pairs; set training.refit = false or split.selection = "
            "'strict'."
        )
    return split.final()


def salt_of(name: str, history: PairHistory | None = None) -> str:
    """Return the salt of held-out pairs: the lineage's, which is its first recipe's name."""
    return name if history is None or history.salt is None else history.salt


def with_selecting_metric(
    recipe: Recipe, split: Split, progress: Progress | None = None
) -> tuple[Recipe, list[str]]:
    """Return the recipe with a `training.metric` that can tell models apart on its selection pairs,
    and a sentence if it is another one.

    Args:
        progress: says that sentence; None says nothing.
    Raises: DataError: no metric can.
    """
    written, candidates = recipe.training.metric, len(split.training.candidates)
    relevance = relevance_of(split.training, split.selection)
    metric = discriminating(written, relevance, candidates)
    if metric == written:
        return recipe, []
    sentence = (
        f"{written} holds nearly all of the {candidates} candidates, whatever the model; "
        f"training.metric is {metric} here."
    )
    if progress is not None:
        progress.say(sentence)
    names = [metric if name == written else name for name in recipe.metrics]
    training = recipe.training.model_copy(update={"metric": metric})
    metrics = list(dict.fromkeys(names))
    return recipe.model_copy(update={"training": training, "metrics": metrics}), [sentence]
