"""Ways from a text to word vectors, each as the program of a training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evergram import Corpus, Recipe, split_for
from evergram.training import Callback, Point, Progress, RunContext, fit_encoder
from reproduction.gramian.words.counts import Counts, count_words
from reproduction.gramian.words.judgements import Judgements, read_judgements
from reproduction.gramian.words.made_up import made_up_judgements, made_up_paragraphs
from reproduction.gramian.words.pairs import corpus_of, subsampled
from reproduction.gramian.words.ppmi import ppmi, svd_vectors
from reproduction.gramian.words.scores import judged, similarity
from reproduction.gramian.words.text import paragraphs, words_of
from reproduction.readings.reading import CpuClock
from reproduction.run import facts

# The folder of judgements, among the data sets.
JUDGEMENTS = "words"
# The halves of the judgements: settings were chosen by the one, the other is reported.
CHOSEN_BY, REPORTED = 0, 1


@dataclass(frozen=True)
class Text:
    """A text and how its words are counted.

    Args:
        folder: of the text, among the data sets; "" is made up, with judgements of its own.
        vocabulary, window: as of `count_words`.
        threshold: as of `subsampled`.
    """

    folder: str
    vocabulary: int
    window: int
    threshold: float


@dataclass(frozen=True)
class Program(ABC):
    """Makes word vectors and measures them; its settings are part of a result's key.

    Args:
        text: that the vectors are of.
    """

    text: Text

    @property
    def __name__(self) -> str:
        return repr(self)

    def __call__(
        self, recipe: Recipe, progress: Progress, device: str, work: Path | None = None
    ) -> dict[str, Any]:
        """Return the series of a result: "words", both halves of the judgements, and more.

        Args:
            recipe: its `data.path` is the folder of data sets.
            work: not used; a training takes minutes.
        Raises: DataError: a text or judgements are missing; TrainingError.
        """
        counts, judgements = read(self.text, recipe.model_dump()["data"].get("path"))
        return {
            "words": {"vocabulary": len(counts.words), "tokens": counts.tokens},
            "pairs": len(counts.query),
        } | self.measured(counts, judgements, recipe, RunContext(torch.device(device), progress))

    @abstractmethod
    def measured(
        self, counts: Counts, judgements: Judgements, recipe: Recipe, context: RunContext
    ) -> dict[str, Any]:
        """Return "chosen by" and "reported", as of `judged`, and more."""


@lru_cache(maxsize=1)
def _read(folder: str, vocabulary: int, window: int, data: str | None) -> tuple[Counts, Judgements]:
    if not folder:
        made = count_words(made_up_paragraphs(), vocabulary=vocabulary, window=window)
        return made, made_up_judgements()
    sets = Path(data or "")
    judgements = read_judgements(sets / JUDGEMENTS)  # before minutes of counting
    texts = map(words_of, paragraphs(sets / folder))
    return count_words(texts, vocabulary=vocabulary, window=window), judgements


def read(text: Text, data: str | None) -> tuple[Counts, Judgements]:
    """Return the counts of a text, subsampled, and the judgements. Raises: DataError.

    Args:
        data: the folder of data sets.
    """
    counts, judgements = _read(text.folder, text.vocabulary, text.window, data)
    return subsampled(counts, text.threshold), judgements


def halves(vectors: Tensor, counts: Counts, judgements: Judgements) -> dict[str, Any]:
    """Return how vectors [V, D] of the vocabulary agree with both halves of the judgements."""
    rows = rows_of(counts)
    parts = {"chosen by": CHOSEN_BY, "reported": REPORTED}
    return {name: judged(vectors, rows, judgements.half(n)) for name, n in parts.items()}


def rows_of(counts: Counts) -> dict[str, int]:
    return {word: row for row, word in enumerate(counts.words)}


@dataclass(frozen=True)
class Objective(Program):
    """Vectors by the recipe: a loss of observed pairs, and the penalty on all pairs.

    Args:
        rows: as of `corpus_of`.
        readout: a word's vector, "query" (its own) or "sum" (with that of it as a context word).
    """

    rows: int
    readout: str = "query"

    def measured(
        self, counts: Counts, judgements: Judgements, recipe: Recipe, context: RunContext
    ) -> dict[str, Any]:
        split = split_for(recipe, corpus_of(counts, rows=self.rows, seed=recipe.seed), 0)
        place = _Place.of(split.training, len(counts.words), self.readout)
        watch = _Watch(place, counts, judgements)
        watched = replace(
            context, callbacks=[watch], title=f"words, seed {recipe.seed}", warns=False
        )
        trained = fit_encoder(recipe, split, 0, watched)
        vectors = place.vectors(trained.query, trained.candidate)
        series = {"curve": watch.series, "best_epoch": trained.best_epoch}
        return halves(vectors, counts, judgements) | series | facts(split)


@dataclass(frozen=True)
class PpmiSvd(Program):
    """Vectors by the singular value decomposition of the same counts, see `ppmi`."""

    dim: int
    smoothing: float
    shift: float
    power: float

    def measured(
        self, counts: Counts, judgements: Judgements, recipe: Recipe, context: RunContext
    ) -> dict[str, Any]:
        matrix = ppmi(counts, smoothing=self.smoothing, shift=self.shift)
        dim, seed = min(self.dim, len(matrix)), recipe.seed
        vectors = svd_vectors(matrix, dim=dim, power=self.power, seed=seed)
        return halves(vectors, counts, judgements)


@dataclass(frozen=True)
class Floor(Program):
    """Vectors that know nothing: drawn at random; and what frequency alone would know of pairs."""

    dim: int

    def measured(
        self, counts: Counts, judgements: Judgements, recipe: Recipe, context: RunContext
    ) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(recipe.seed)
        vectors = torch.randn(len(counts.words), self.dim, generator=draw)
        size = torch.from_numpy(counts.frequency).double().log()
        reported = judgements.half(REPORTED)
        by_frequency = {
            name: similarity(lambda a, b: size[a] + size[b], rows_of(counts), pairs)
            for name, pairs in reported.pairs.items()
        }
        return halves(vectors, counts, judgements) | {"frequency": by_frequency}


@dataclass(frozen=True)
class _Place:
    """Where a corpus's embeddings belong in the vocabulary.

    Args:
        query, candidate: int64, the word of each entity of a side.
        size: V.
        readout: as of `Objective`.
    """

    query: Tensor
    candidate: Tensor
    size: int
    readout: str

    @classmethod
    def of(cls, corpus: Corpus, size: int, readout: str) -> _Place:
        sides = corpus.queries, corpus.candidates
        query, candidate = (torch.tensor(side.vocabulary.keys.to_pylist()) for side in sides)
        return cls(query, candidate, size, readout)

    def vectors(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Return [V, D]; zeros where the corpus lacks a word."""
        vectors = torch.zeros(self.size, query.shape[1])
        vectors[self.query] = query.detach().float().cpu()
        if self.readout == "sum":
            vectors[self.candidate] += candidate.detach().float().cpu()
        return vectors


class _Watch(Callback):
    """Measures the vectors at each evaluation, by the half that is reported."""

    def __init__(self, place: _Place, counts: Counts, judgements: Judgements) -> None:
        self.place = place
        self.rows = rows_of(counts)
        self.judgements = judgements.half(REPORTED)
        self.clock = CpuClock()
        self.series: dict[str, list[float]] = {
            name: [] for name in ("epoch", "step", "cpu_seconds", "mean_rho", "accuracy")
        }

    def on_step(self, at: Point, batch: Any, objective: Tensor) -> None:
        self.clock.tick()

    def on_evaluation(self, at: Point, record: Mapping[str, float]) -> None:
        now = at.training.encoder.embed_all(at.training.scene)
        vectors = self.place.vectors(now["query"], now["candidate"])
        scores = judged(vectors, self.rows, self.judgements)
        point = {"epoch": at.epoch, "step": at.step, "cpu_seconds": self.clock.seconds, **scores}
        for name, values in self.series.items():
            values.append(point[name])
        self.clock.resume()
