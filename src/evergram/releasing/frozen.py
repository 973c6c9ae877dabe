"""Upgrades that keep the model of the version before: what it must be, and what it knows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Corpus, PairBlock, PairRule, Side, Vocabulary
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.split import RowPairs, Split
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
from evergram.errors import RecipeError
from evergram.training.recipe import Recipe, flat

# The tables of a recipe that describe a model and what it was trained for.
DESCRIBED = ("model", "task")
UNTESTED = "The model that was kept knows none of the queries that are held out."


def refuse_other_model(recipe: Recipe, kept: Mapping[str, Any], version: int) -> None:
    """Refuse settings that the model of a frozen upgrade was not trained with: they would change
    nothing, and the version's record would say otherwise.

    Args:
        kept: the recipe of the version whose model is kept, as its manifest has it.
        version: its number.
    Raises: RecipeError: a key of [model] or [task] has another value.
    """
    theirs, ours = (
        flat({table: values.get(table, {}) for table in DESCRIBED})
        for values in (each.model_dump(mode="json") for each in (Recipe.stored(kept), recipe))
    )
    changed = sorted(k for k in theirs | ours if theirs.get(k) != ours.get(k))
    if not changed:
        return
    shown = [
        f"{key} is {ours.get(key)!r} here and {theirs.get(key)!r} there" for key in changed[:3]
    ]
    shown += [f"{len(changed) - 3} more differ"] if len(changed) > 3 else []
    raise RecipeError(
        f"upgrade.start = 'frozen' keeps the model of version {version} as it was trained, and "
        f"the recipe describes another one: {'; '.join(shown)}. Give that version's values, or "
        "set upgrade.start = 'fresh' to train a model."
    )


def known_to(encoder: Encoder, corpus: Corpus) -> dict[str, Tensor]:
    """Return bool [N] of each side, the entities of a corpus that an encoder has a key of."""
    scene = encoder.read(corpus)
    return _agreeing({side: encoder.known(side, scene) for side in SIDES}, corpus)


def stored_in(ids: Mapping[str, pa.Array], corpus: Corpus) -> dict[str, Tensor]:
    """Return bool [N] of each side, the entities of a corpus whose ids are among these."""
    sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    return _agreeing(
        {side: Vocabulary(ids[side]).rows(e.vocabulary.keys) >= 0 for side, e in sides}, corpus
    )


def _agreeing(known: dict[str, Tensor], corpus: Corpus) -> dict[str, Tensor]:
    """Return what is known of each side; of one vocabulary for both, what is known as both."""
    return dict.fromkeys(SIDES, known["query"] & known["candidate"]) if corpus.shared_ids else known


def unknown_counts(known: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of unknown entities of each side."""
    return {side: int((~known[side]).sum()) for side in SIDES}


def split_of_known(split: Split, known: Mapping[str, Tensor]) -> Split:
    """Return the split whose corpus has the known entities alone: held-out pairs of an unknown
    query are left out and counted, those of an unknown candidate stay as certain misses.

    Args:
        known: bool [N] of each side of the split's training corpus.
    """
    if all(bool(known[side].all()) for side in SIDES):
        return split
    training, places = corpus_of_known(split.training, known)
    tested = _moved(split.test, places)
    narrowed = replace(
        split,
        training=training,
        test=tested,
        selection=_moved(split.selection, places),
        unknown_queries=split.unknown_queries + len(split.test) - len(tested),
        final=None,
    )
    return _untested_if_empty(narrowed)


def with_known_queries(split: Split, known: Mapping[str, Tensor]) -> Split:
    """Return the split with the test pairs of known queries alone; its corpus stays whole, for a
    model that is trained on it and compared with one that knows less."""
    kept = known["query"][split.test.query]
    if bool(kept.all()):
        return split
    unknown = split.unknown_queries + int((~kept).sum())
    return _untested_if_empty(replace(split, test=split.test.where(kept), unknown_queries=unknown))


def corpus_of_known(
    corpus: Corpus, known: Mapping[str, Tensor]
) -> tuple[Corpus, dict[str, Tensor]]:
    """Return the corpus of the known entities and of the interactions between them; and of each
    side the new row of each entity, int64 [N], -1 of an unknown one.

    A known entity that met unknown ones alone stays, without an interaction, after the others.
    """
    digest = hashlib.sha256(b"".join(known[s].numpy().tobytes() for s in SIDES)).hexdigest()

    def of_known(block: PairBlock) -> Tensor:
        return known["query"][block.query] & known["candidate"][block.candidate]

    narrow = corpus.where(PairRule(f"known({digest})", of_known))
    rows = {
        side: _with_absent(whole.vocabulary.rows(part.vocabulary.keys), known[side])
        for side, whole, part in (
            ("query", corpus.queries, narrow.queries),
            ("candidate", corpus.candidates, narrow.candidates),
        )
    }
    queries, candidates = (
        whole.take(rows[side])
        for side, whole in (("query", corpus.queries), ("candidate", corpus.candidates))
    )
    if corpus.shared_ids:
        candidates = Side(queries.vocabulary, candidates.features)
    more: dict[str, Any] = {}
    if isinstance(narrow, MappedCorpus):
        more = {
            # What is derived of it, such as its index by query, has a row for each query.
            "fingerprint": hashlib.sha256(f"{narrow.fingerprint} {digest}".encode()).hexdigest(),
            "entity_counts": {s: _padded(narrow.counts(s), len(rows[s])) for s in SIDES},
        }
    places = {side: torch.full((len(known[side]),), -1) for side in SIDES}
    for side in SIDES:
        places[side][rows[side]] = torch.arange(len(rows[side]))
    return replace(narrow, queries=queries, candidates=candidates, **more), places


def _with_absent(rows: Tensor, known: Tensor) -> Tensor:
    """Return rows int64 [n], and after them those that are known and not among them."""
    absent = known.clone()
    absent[rows] = False
    return torch.cat([rows, torch.nonzero(absent).flatten()])


def _padded(counts: Tensor, size: int) -> Tensor:
    return torch.cat([counts, counts.new_zeros(size - len(counts))])


def _moved(pairs: RowPairs, places: Mapping[str, Tensor]) -> RowPairs:
    """Return the pairs of known queries, as new rows."""
    query = places["query"][pairs.query]
    candidate = places["candidate"][pairs.candidate.clamp(min=0)]
    candidate = torch.where(pairs.candidate >= 0, candidate, -1)
    return RowPairs(query, candidate).where(query >= 0)


def _untested_if_empty(split: Split) -> Split:
    return split if len(split.test) or split.untested else split.without_test(UNTESTED)
