"""Requests that wait for an encoder at the same time are encoded together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from evergram.errors import DataError, ServiceError
from evergram.texts.text_encoder import Role, Vectors


class CrowdedError(ServiceError):
    """Texts have waited too long for their turn, which says nothing about the encoder."""


@dataclass(eq=False)
class _Job:
    """The texts of one request, and its result."""

    texts: list[str]
    role: Role
    vectors: Vectors | None = None
    error: Exception | None = field(default=None)

    @property
    def done(self) -> bool:
        return self.vectors is not None or self.error is not None


class Batcher:
    """Lets one thread encode at a time, with the texts of all that wait.

    Nobody waits for a batch to fill: while one is encoded, the next gathers. Several threads may
    use one.

    Args:
        encode: returns the vectors [n, D] of texts. Raises: DataError: one of these texts cannot be
            encoded. Any other error is of all texts.
        most: texts that are encoded at once, unless one request has more.
        patience: seconds that texts wait for their turn.
    """

    def __init__(
        self,
        encode: Callable[[list[str], Role], Vectors],
        most: int,
        patience: float = 30.0,
    ) -> None:
        self._encode, self._most, self._patience = encode, most, patience
        self._waiting: deque[_Job] = deque()
        self._queueing = threading.Lock()
        self._turn = threading.Lock()

    def encode(self, texts: list[str], role: Role) -> Vectors:
        """Return the vectors [n, D] of texts.

        Raises: CrowdedError: their turn did not come. Else what `encode` raises: a DataError is of
            these texts alone.
        """
        job = _Job(texts, role)
        with self._queueing:
            self._waiting.append(job)
        if not self._turn.acquire(timeout=self._patience):
            with self._queueing, suppress(ValueError):
                self._waiting.remove(job)
            raise CrowdedError("The encoder is at work on other texts; try again.")
        try:
            while not job.done:
                self._run(self._next())
        finally:
            self._turn.release()
        if job.error is not None:
            raise job.error
        assert job.vectors is not None
        return job.vectors

    def _next(self) -> list[_Job]:
        """Take the jobs at the front that are of one role and fit into a batch."""
        with self._queueing:
            jobs = [self._waiting.popleft()]
            size = len(jobs[0].texts)
            while self._waiting and self._waiting[0].role == jobs[0].role:
                size += len(self._waiting[0].texts)
                if size > self._most:
                    break
                jobs.append(self._waiting.popleft())
            return jobs

    def _run(self, jobs: list[_Job]) -> None:
        try:
            vectors = self._encode([text for job in jobs for text in job.texts], jobs[0].role)
        except Exception as error:
            # What fails for any texts would fail, or hang, once more for each job.
            if len(jobs) == 1 or not isinstance(error, DataError):
                for job in jobs:
                    job.error = error
                return
            # A text that cannot be encoded fails its own request, and not its neighbours'.
            for job in jobs:
                self._run([job])
            return
        start = 0
        for job in jobs:
            job.vectors = vectors[start : start + len(job.texts)]
            start += len(job.texts)
