"""Count what is in a corpus: ids, times, repeats, density, and test pairs with unknown ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from evergram.data.corpus import Corpus
from evergram.data.features import FeatureSummary, summaries
from evergram.data.rolling_window import date_text
from evergram.data.split import Split


@dataclass(frozen=True)
class Survey:
    """What is in a corpus, and in its split for version 0.

    Args:
        rows: interactions.
        queries, candidates: distinct ids of each side.
        repeats: interactions that repeat an earlier pair.
        density: distinct pairs, as a share of all pairs of a query with a candidate.
        first_time, last_time: as in the data; None without times.
        lowest_value, highest_value: None without values.
        held_out: pairs that are not trained on.
        unknown_queries, unknown_candidates: of these, those whose query, or else candidate,
            training never saw. The first are left out, the second are certain misses.
        features: of both sides.
    """

    rows: int
    queries: int
    candidates: int
    repeats: int
    density: float
    first_time: float | None
    last_time: float | None
    lowest_value: float | None
    highest_value: float | None
    held_out: int
    unknown_queries: int
    unknown_candidates: int
    features: list[FeatureSummary] = field(default_factory=list)

    @classmethod
    def of(cls, corpus: Corpus, split: Split) -> Survey:
        """Return the survey of a corpus that is split so."""
        repeats, sides = corpus.repeats, (len(corpus.queries), len(corpus.candidates))
        first, last = corpus.time_span if corpus.has_times else (None, None)
        values = corpus.column("value") if corpus.has_values else None
        pairs = (split.selection, split.test)
        return cls(
            len(corpus),
            *sides,
            repeats=repeats,
            density=(len(corpus) - repeats) / (sides[0] * sides[1]),
            first_time=first,
            last_time=last,
            lowest_value=None if values is None else float(values.min()),
            highest_value=None if values is None else float(values.max()),
            held_out=sum(map(len, pairs)) + split.unknown_queries,
            unknown_queries=split.unknown_queries,
            unknown_candidates=sum(int((p.candidate < 0).sum()) for p in pairs),
            features=summaries(corpus.queries, corpus.candidates),
        )

    @property
    def cold_share(self) -> float:
        """The share of held-out pairs with an id that training never saw."""
        return (self.unknown_queries + self.unknown_candidates) / max(1, self.held_out)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "cold_share": self.cold_share}

    def sentences(self) -> Iterator[str]:
        """Yield what was counted, in sentences."""
        yield (
            f"{self.rows:,} interactions of {self.queries:,} queries with {self.candidates:,} "
            f"candidates: {self.density:.3%} of all pairs."
        )
        yield (f"{self.repeats:,} of them repeat an earlier pair ({self.repeats / self.rows:.1%}).")
        if self.first_time is None or self.last_time is None:
            yield "There are no times."
        else:
            yield f"Times are from {date_text(self.first_time)} to {date_text(self.last_time)}."
        if self.lowest_value is not None:
            yield f"Values are from {self.lowest_value:g} to {self.highest_value:g}."
        for feature in self.features:
            yield feature.sentence
            if feature.warning:
                yield feature.warning
        yield (
            f"Of {self.held_out:,} pairs to select and test by, {self.cold_share:.1%} have an id "
            f"that training never sees: in {self.unknown_queries:,} the query (they are left out), "
            f"in {self.unknown_candidates:,} the candidate (certain misses)."
        )
