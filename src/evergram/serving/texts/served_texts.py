"""The encoders of text of a lineage's versions, and the vectors of recent texts."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from functools import partial
from time import monotonic

import numpy as np

from evergram.errors import ServiceError
from evergram.lineage.lineage import Lineage
from evergram.serving.texts.checked_encoder import CheckedEncoder, TextEncoderError, replaced_error
from evergram.serving.texts.documents import Documents
from evergram.serving.texts.vector_cache import VectorCache
from evergram.texts.addresses import open_text_encoder
from evergram.texts.record import TextEncoderRecord
from evergram.texts.recorded_encoder import open_recorded
from evergram.texts.text_encoder import Prompts, Role, TextEncoder, Vectors

log: logging.Logger = logging.getLogger("evergram.serving")

# Seconds between two looks whether a check is due.
LOOK = 0.5
# Seconds until an encoder that failed its check is tried again.
RETRY_AFTER = 10.0


class ServedTexts:
    """Encodes texts as versions do, while their encoders are the recorded ones.

    Several threads may use one.

    Args:
        addresses: encoders that may be opened; "recorded" stands for the address that a version
            records, which is never one of `addresses.TRUSTED_ONLY`: those must be named here.
        cache: bytes of the vectors of recent texts.
        every: seconds between two checks of the canaries.
        documents: the texts of stored objects; None if they were not given.
        limit: seconds in which a request must be answered. A model elsewhere has half of it for a
            batch, so that a request that waited for another batch may still be answered; any call
            that takes longer than the whole hangs.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        cache: int = 64 * 2**20,
        every: float = 300.0,
        documents: Documents | None = None,
        limit: float = 30.0,
    ) -> None:
        self.documents = documents
        self.limit: float = limit
        self._addresses, self._every = tuple(addresses), every
        self._cache = VectorCache(cache)
        self._encoders: dict[int, CheckedEncoder] = {}
        # Those that were replaced, until their last call has ended.
        self._retired: list[CheckedEncoder] = []
        # By address and prompts: versions of the same encoder share it.
        self._open: dict[tuple[str, str, str], TextEncoder] = {}
        self._loading, self._opening = threading.Lock(), threading.Lock()
        self._checked_at = monotonic()
        self._production = 0

    @property
    def problem(self) -> str | None:
        """Why strings cannot be encoded at production or a later version; None if they can."""
        encoders = sorted(self._encoders.items())
        problems = [e.problem for n, e in encoders if n >= self._production and e.problem]
        return problems[0] if problems else None

    def can_encode(self, version: int) -> bool:
        """Return whether a version's own encoder is at hand, and is the recorded one."""
        encoder = self._encoders.get(version)
        return encoder is not None and encoder.problem is None

    def load(self, lineage: Lineage) -> None:
        """Open and check the encoders of production and of later versions.

        Those of the production before stay, for requests under way; others are closed after their
        last call. A failure is a problem of the version, and is tried again by `check`.
        """
        with self._loading:
            production = lineage.production
            kept = min(self._production, production)
            encoders = {n: e for n, e in self._encoders.items() if n >= kept}
            for manifest in lineage.versions:
                n, record = manifest.version, manifest.text_encoder
                # A lineage restored from a copy may have published another version under a number.
                if n < production or (n in encoders and encoders[n].record == record):
                    continue
                encoders.pop(n, None)
                if record is not None:
                    failed = partial(self._failed, n)
                    encoders[n] = CheckedEncoder(n, record, self._recorded, failed, self.limit)
                    encoders[n].check()
            before, self._encoders, self._production = self._encoders, encoders, production
            for n, encoder in before.items():
                if encoders.get(n) is not encoder:
                    encoder.retire()
                    self._retired.append(encoder)
                    if self.documents is not None:  # no check will come after its vectors
                        self.documents.distrust(n)
            self._release()

    def encode(
        self,
        version: int,
        texts: Sequence[str],
        role: Role,
        record: TextEncoderRecord | None = None,
    ) -> Vectors:
        """Return the vectors [n, D] of texts, as a version's encoder makes them.

        Args:
            record: of the encoder in the caller's lineage, where another is refused; None takes
                the one of the lineage that was loaded last.
        Raises: as `CheckedEncoder.encode`.
        """
        encoder, rows = self._looked_up(version, texts, role, record)
        absent = list(dict.fromkeys(t for t, row in zip(texts, rows, strict=True) if row is None))
        if absent:
            vectors = encoder.encode(absent, role)
            for text, vector in zip(absent, vectors, strict=True):
                self._cache.put((encoder.key, role, text), vector, 4 * len(text))
            if len(absent) == len(texts):
                return vectors
            fresh = dict(zip(absent, vectors, strict=True))
            rows = [fresh[t] if row is None else row for t, row in zip(texts, rows, strict=True)]
        return np.stack([row for row in rows if row is not None])

    def cached(
        self,
        version: int,
        texts: Sequence[str],
        role: Role,
        record: TextEncoderRecord | None = None,
    ) -> Vectors | None:
        """Return the vectors [n, D] of texts if all are kept; None if `encode` would have to wait.

        Args:
            record: as of `encode`.
        Raises: TextEncoderError: `encode` would raise it at once.
        """
        _, rows = self._looked_up(version, texts, role, record)
        known = [row for row in rows if row is not None]
        return np.stack(known) if len(known) == len(rows) else None

    def _looked_up(
        self, version: int, texts: Sequence[str], role: Role, record: TextEncoderRecord | None
    ) -> tuple[CheckedEncoder, list[Vectors | None]]:
        """Return a version's encoder and what is kept of texts, None for others.

        Raises: TextEncoderError: the version has no encoder, or it may not be used.
        """
        encoder = self._encoders.get(version)
        if encoder is None:
            raise TextEncoderError(
                f"Version {version} records no encoder of text, so strings cannot be encoded; ask "
                "for the embeddings of ids."
            )
        if record is not None and encoder.record != record:
            raise replaced_error(version)
        encoder.require()
        return encoder, [self._cache.get((encoder.key, role, text)) for text in texts]

    def is_due(self) -> bool:
        """Return whether `check` should be called now: every so often, sooner after a failure."""
        pause = self._every if self.problem is None else min(self._every, RETRY_AFTER)
        return monotonic() - self._checked_at >= pause

    def check(self) -> None:
        """Compare the canaries of all encoders, and open those that could not be opened."""
        for encoder in self._encoders.values():
            # What is kept while the check runs may be of an encoder replaced after it.
            counts = {} if self.documents is None else self.documents.counts()
            if encoder.check() and self.documents is not None:
                self.documents.trust(encoder.version, counts.get(encoder.version, 0))
        self._checked_at = monotonic()
        if self.documents is not None:
            self.documents.save()

    def look(self) -> None:
        """Note the encoders of which a call hangs, and close unused ones. Never waits for them."""
        for encoder in self._encoders.values():
            encoder.look()
        if self._loading.acquire(blocking=False):
            try:
                self._release()
            finally:
                self._loading.release()

    async def watch(self) -> None:
        """Check the encoders again and again, until cancelled.

        Apart from requests and from reloads, as an encoder elsewhere may keep a check waiting.
        """
        while True:
            await asyncio.sleep(LOOK)
            await asyncio.to_thread(self.look)
            if not self.is_due():
                continue
            checking = asyncio.get_running_loop().run_in_executor(None, self.check)
            # The check itself may hang.
            while not (await asyncio.wait({checking}, timeout=LOOK))[0]:
                await asyncio.to_thread(self.look)
            try:
                checking.result()
            except Exception:
                log.exception("Checking the encoders of text failed; it is tried again.")

    def close(self) -> None:
        """Save the kept vectors, after a last check, and release all encoders."""
        if self.documents is not None and self.documents.folder is not None:
            self.check()
        for encoder in self._open.values():
            encoder.close()

    def _release(self) -> None:
        """Close the encoders that no version uses any more, but those with a call under way."""
        # One that is being opened may take long, and is nobody's yet: `look` comes again.
        if not self._opening.acquire(blocking=False):
            return
        try:
            for retired in [e for e in self._retired if e.is_idle]:
                retired.close()
                self._retired.remove(retired)
            users = [*self._encoders.values(), *self._retired]
            for key, encoder in list(self._open.items()):
                if not any(user.may_use(encoder) for user in users):
                    del self._open[key]
                    encoder.close()
        finally:
            self._opening.release()

    def _failed(self, version: int) -> None:
        """Forget the vectors of an encoder that is not the recorded one, or is out of reach."""
        self._cache.clear()
        if self.documents is not None:
            self.documents.distrust(version)

    def _recorded(self, record: TextEncoderRecord) -> TextEncoder:
        """Return the recorded encoder. Raises: MismatchError: those at the addresses are others."""
        return open_recorded(record, self._addresses, self._shared)

    def _shared(self, address: str, prompts: Prompts) -> TextEncoder:
        """Return the encoder at an address with prompts, opened once."""
        key = address, prompts.query, prompts.document
        with self._opening:
            encoder = self._open.get(key)
            if encoder is None:
                encoder = self._open[key] = open_text_encoder(address, prompts)
                encoder.limit = self.limit / 2
        if not encoder.is_free(self.limit):
            raise ServiceError(f"{address} has not answered for {self.limit:g} seconds.")
        return encoder
