"""Choose the power of counts that candidates are published with, by the selection pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evergram.collectives import ALONE, Collectives
from evergram.data.corpus import Corpus
from evergram.data.split import Split
from evergram.encoders.encoder import Encoder
from evergram.encoders.kinds import EncoderSettings
from evergram.errors import DataError
from evergram.evaluation.metric_sample import MetricSample
from evergram.training.distributed.shares import embed_together
from evergram.training.monitors.early_stopping import EarlyStopping, SelectionMetric

if TYPE_CHECKING:
    from evergram.training.loop import Trainer

# The values of γ that "auto" tries, 0 to 0.2: each costs one ranking of the selection's queries.
EXPONENTS = tuple(step / 40 for step in range(9))


@dataclass(frozen=True)
class PopularityChoice:
    """The power γ of counts that a version's candidates have, why, and the selection metric of each
    γ that was tried."""

    exponent: float
    reason: str
    tried: tuple[dict[str, float], ...] = ()

    def as_json(self) -> dict[str, Any]:
        tried = {"tried": list(self.tried)} if self.tried else {}
        return {"exponent": self.exponent, "reason": self.reason, **tried}


def refuse_unchoosable(split: Split) -> None:
    """Raises: DataError: there are no selection pairs to choose γ by."""
    if not len(split.selection):
        raise DataError(
            "model.popularity = 'auto' is chosen by the pairs held out for selection, and there "
            "are none; hold some out, or give a number such as model.popularity = 0.1."
        )


def settle_popularity(
    model: EncoderSettings, run: Trainer, corpus: Corpus, stopping: EarlyStopping
) -> PopularityChoice | None:
    """Return the γ that a trained model publishes its candidates with; None without a factor.

    For "auto" the epoch is selected at γ = 0, and γ chosen at the best epoch: choosing it in every
    evaluation would cost nine rankings each. Every process calls this with its own `run`.
    """
    if model.popularity == "auto":
        encoder, metric = run.finish(stopping.kept), stopping.evaluate
        assert isinstance(metric, SelectionMetric)
        return choose_popularity(encoder, corpus, metric, run.step.collectives)
    return PopularityChoice(model.popularity, "model.popularity") if model.popularity else None


def choose_popularity(
    encoder: Encoder, corpus: Corpus, metric: SelectionMetric, together: Collectives = ALONE
) -> PopularityChoice:
    """Return the γ of `EXPONENTS` with the best metric, the smallest of those that are equal, and
    let the encoder publish its candidates with it.

    Args:
        encoder: at its best epoch, with a popularity factor.
        together: processes that each call this with the same arguments, and share the rankings.
    """
    popularity = encoder.popularity
    assert popularity is not None
    popularity.exponent = 0.0
    vectors = embed_together(encoder, corpus, together)
    ids = encoder.schema.ids("candidate").rows(corpus.candidates.vocabulary.keys)
    tried = []
    for popularity.exponent in EXPONENTS:
        factors = popularity.factors(ids).to(vectors["candidate"])
        candidates = vectors["candidate"] * factors[:, None]
        measured = metric.of(vectors["query"], candidates, together)
        value = measured.mean if isinstance(measured, MetricSample) else measured
        tried.append({"exponent": popularity.exponent, metric.metric: value})
    best = max(tried, key=lambda record: record[metric.metric])  # the first of those
    popularity.exponent = best["exponent"]
    reason = f"best {metric.metric} of {len(metric.relevance)} queries held out for selection"
    if popularity.exponent == EXPONENTS[-1]:
        reason += "; it is the largest that was tried, and more may be better"
    return PopularityChoice(popularity.exponent, reason, tuple(tried))
