"""One call of a route of vectors, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from evergram.lineage.lineage import Lineage
from evergram.serving.http.fast_paths.json_pieces import Body
from evergram.serving.http.requests.auth import Access
from evergram.serving.monitoring.drift import Drift
from evergram.serving.served_state import ServedState
from evergram.serving.settings import ServiceSettings

JSON = "application/json"


class EncoderWaitError(Exception):
    """A request needs an encoder of text, for which its thread may not wait."""


@dataclass(frozen=True)
class Call:
    """One request, and everything that its answer is made from.

    Args:
        size: bytes of the body.
        content: returns the body.
        arrow_in, arrow_out: whether the body is an Arrow stream, and whether the answer is to be.
        fingerprint: fingerprint that the request's header claims for its vectors.
        may_wait: whether its thread may wait for an encoder of text.
    """

    state: ServedState
    access: Access
    settings: ServiceSettings
    drift: Drift
    size: int
    content: Callable[[], Body]
    arrow_in: bool
    arrow_out: bool
    fingerprint: str | None
    may_wait: bool = False

    @property
    def body(self) -> Body:
        return self.content()

    @property
    def lineage(self) -> Lineage:
        return self.state.lineage


@dataclass(frozen=True)
class Answer:
    """An answer as it is sent.

    Args:
        version: the version that the rows are read as.
        sources: version to the number of rows that were computed from it.
        reranked: objects that a search re-ranked, by where their vector came from.
    """

    body: bytes
    media: str
    version: int
    fingerprint: str
    sources: Mapping[int, int]
    reranked: Mapping[str, int] = field(default_factory=dict)
