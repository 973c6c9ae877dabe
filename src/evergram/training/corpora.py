"""Load a recipe's corpus, and split it for a version."""

from __future__ import annotations

import torch

from evergram.data.corpus import Corpus
from evergram.data.data_sets import existing
from evergram.data.loaders import load
from evergram.data.pair_hash import TrainedPairs
from evergram.data.rolling_window import RollingWindow
from evergram.data.split import (
    HeldOut,
    Split,
    given_split,
    random_split,
    time_split,
    window_split,
)
from evergram.data.tables import read_interactions
from evergram.errors import DataError, RecipeError
from evergram.lineage.pair_history import PairHistory
from evergram.training.recipe import Recipe


def load_corpus(recipe: Recipe) -> Corpus:
    """Return all interactions that the recipe names. Raises: DataError: a file cannot be used."""
    data = recipe.data
    corpus = load(data.kind, data, recipe.seed)
    if data.minimum_value is not None:
        if not corpus.has_values:
            raise DataError("data.minimum_value needs a column 'value', and there is none.")
        kept = torch.nonzero(corpus.column("value") >= data.minimum_value).flatten()
        if not len(kept):
            raise DataError(f"No interaction has a value of at least {data.minimum_value}.")
        corpus = corpus.restrict(kept)
    return corpus


def split_for(
    recipe: Recipe, corpus: Corpus, version: int, history: PairHistory | None = None
) -> Split:
    """Return the training, selection and test pairs of version `version`.

    Args:
        history: what the lineage knows of held-out and trained pairs; None for one that begins.
    Raises: RecipeError: the recipe names no such version, or another salt than the lineage's.
        DataError: nothing is left to select or to test by.
    """
    split = recipe.split
    held_out = HeldOut(
        salt_of(recipe, history),
        TrainedPairs() if history is None else history.trained,
        split.selection,
    )
    if split.kind == "random":
        chosen = random_split(corpus, share=split.share, held_out=held_out)
    elif split.kind == "time" and split.last is not None:
        last = RollingWindow.parse(split.last)
        chosen = window_split(corpus, last=last, held_out=held_out)
    elif split.kind == "time":
        if version >= len(split.versions):
            raise RecipeError(
                f"split.versions has {len(split.versions)} shares, so version {version} has none; "
                "append the share of the corpus that it has seen, or set split.last = '5 %' in "
                "its place, which holds for every version."
            )
        chosen = time_split(
            corpus,
            share=split.versions[version],
            until=split.ends[version + 1],
            held_out=held_out,
        )
    else:
        columns = {str(k): v for k, v in recipe.data.columns.items()}
        test = read_interactions(existing(str(recipe.data.test)), columns)
        chosen = given_split(corpus, test, share=split.share, held_out=held_out)
    if history is not None and history.untested is not None:
        chosen = chosen.without_test(history.untested)
    elif not len(chosen.test) and chosen.trained_before:
        raise DataError(
            f"All {chosen.trained_before} pairs that the split holds out were trained on by an "
            "earlier version of the lineage, so nothing is left to test by; give data that has "
            "grown, or another test file."
        )
    if not len(chosen.selection) or not (len(chosen.test) or chosen.untested):
        dropped = "".join(
            f", {count} {why}"
            for count, why in (
                (chosen.unknown_queries, "left out as training knows nothing of their query"),
                (chosen.trained_before, "as an earlier version was trained on them"),
                (chosen.in_training, "as the training data has them, too"),
            )
            if count
        )
        raise DataError(
            f"The split holds out too few pairs to judge a model by: of {len(corpus)} interactions "
            f"{len(chosen.selection)} to choose an epoch and {len(chosen.test)} to test{dropped}; "
            "hold out a larger share or give more data."
        )
    return chosen


def final_split(recipe: Recipe, split: Split) -> Split:
    """Return the split of the published model: with a refit, the one whose training corpus holds
    all but the test pairs; otherwise the same one.

    Raises: RecipeError: the same pairs select and test, so there is nothing more to train on.
    """
    if not recipe.refits:
        return split
    if split.final is None:
        raise RecipeError(
            "training.refit trains on the pairs that chose the epoch too, and with split.selection "
            "= 'paper' those are the test pairs; set training.refit = false or split.selection = "
            "'strict'."
        )
    return split.final()


def salt_of(recipe: Recipe, history: PairHistory | None = None) -> str:
    """Return the salt of held-out pairs: the lineage's; for a new lineage the recipe's, or else the
    recipe's name.

    Raises: RecipeError: the recipe has another salt than the lineage.
    """
    own = recipe.split.salt
    if history is None or history.salt is None:
        return own or recipe.name
    if own is not None and own != history.salt:
        raise RecipeError(
            f"split.salt is {own!r} and the lineage holds out by {history.salt!r}; with another "
            "salt pairs that were trained on would be tested. Remove split.salt."
        )
    return history.salt
