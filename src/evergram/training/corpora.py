"""From a recipe to a corpus, and to what one version may see of it."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from evergram.data.amazon import load_amazon
from evergram.data.corpus import Corpus
from evergram.data.movielens import load_movielens
from evergram.data.split import Split, given_split, random_split, time_split
from evergram.data.synthetic import generate
from evergram.data.tables import load_table, read_interactions
from evergram.data.wikipedia import load_mediawiki
from evergram.data.wikispeedia import load_wikispeedia
from evergram.errors import DataError, RecipeError
from evergram.training.recipe import Recipe


def load_corpus(recipe: Recipe) -> Corpus:
    """All interactions that the recipe names. Raises: DataError: a file cannot be used."""
    data = recipe.data
    if data.kind == "synthetic":
        corpus = generate(
            queries=data.queries,
            candidates=data.candidates,
            interactions=data.interactions,
            drift=data.drift,
            seed=recipe.seed,
        ).corpus
    elif data.kind == "movielens":
        corpus = load_movielens(Path(str(data.path)))
    elif data.kind == "amazon":
        corpus = load_amazon(Path(str(data.path)), _path(data.metadata))
    elif data.kind == "mediawiki":
        corpus, report = load_mediawiki(Path(str(data.path)), data.prefix)
        for sentence in report.warnings():
            logging.getLogger(__name__).warning(sentence)
    elif data.kind == "wikispeedia":
        corpus = load_wikispeedia(Path(str(data.path)))
    else:
        corpus = load_table(
            Path(str(data.path)),
            query_features=_path(data.query_features),
            candidate_features=_path(data.candidate_features),
            shared_ids=data.shared_ids,
            columns={str(k): v for k, v in data.columns.items()},
        )
    if data.minimum_value is not None:
        if not corpus.has_values:
            raise DataError("data.minimum_value needs a column 'value', and there is none.")
        kept = torch.nonzero(corpus.column("value") >= data.minimum_value).flatten()
        if not len(kept):
            raise DataError(f"No interaction has a value of at least {data.minimum_value}.")
        corpus = corpus.restrict(kept)
    return corpus


def split_for(recipe: Recipe, corpus: Corpus, version: int) -> Split:
    """What version `version` learns from and is judged on.

    Raises: RecipeError: the recipe names no such version.
    """
    split = recipe.split
    if split.kind == "random":
        chosen = random_split(
            corpus, share=split.share, seed=recipe.seed, selection=split.selection
        )
    elif split.kind == "time":
        if version >= len(split.versions):
            raise RecipeError(
                f"split.versions has {len(split.versions)} shares, so version {version} has none; "
                "append the share of the corpus that it has seen."
            )
        chosen = time_split(
            corpus,
            share=split.versions[version],
            until=split.ends[version + 1],
            seed=recipe.seed,
            selection=split.selection,
        )
    else:
        columns = {str(k): v for k, v in recipe.data.columns.items()}
        test = read_interactions(Path(str(recipe.data.test)), columns)
        chosen = given_split(corpus, test, share=split.share, seed=recipe.seed)
    if not len(chosen.selection) or not len(chosen.test):
        raise DataError(
            "The split holds out too few pairs of known queries to judge a model by; hold out a "
            "larger share or give more data."
        )
    return chosen


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
