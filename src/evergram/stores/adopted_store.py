"""A table or collection of somebody's own, read where it is: the interface of such stores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import IntegrityError, StoreError
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.rows import Checks, Floats, Hits, Rows, Space
from evergram.stores.store import Store

# There is no checksum beside a row of somebody's own.
NO_CHECKS: Checks = np.zeros(0, dtype=np.uint32)


class AdoptedStore(Store):
    """A store that only reads what others write: no row is changed and no table is made.

    Its rows have no norms, checksums or fingerprints. Whoever knows the lineage sets `check`, which
    is called with a version before the first of its rows is returned, and raises if they are not
    that version's. Every search of it compares all rows.

    Args:
        check: shared by all views of the store.
    """

    def __init__(self) -> None:
        self._check: Callable[[int], None] | None = None
        self._checked: set[int] = set()

    # A kind of adopted store implements these, and the reading half of `Store`.

    @abstractmethod
    def nearest_by(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[Hits]:
        """Return for each query of [Q, D] the k rows of a version that are best by "ip", by
        "cosine" or by "l2", −‖q − z‖², by a comparison with all rows."""

    @abstractmethod
    def column_rows(self, version: int, ids: pa.Array | None, size: int) -> Rows:
        """Return at most `size` vectors of a version, of some ids or of any, also of rows that have
        a newer version's vector as well."""

    # All kinds inherit these; the first two a kind may override.

    def computes(self, metric: str, version: int) -> bool:
        """Return whether `nearest_by` knows a metric; rows are read and compared if it does not."""
        return True

    def remark(self, version: int) -> str:
        """Return a sentence, with a space before it, on why a version's vectors may differ from the
        published ones; "" if there is nothing to say."""
        return ""

    @property
    def side(self) -> str | None:
        """None: what it holds is proved by comparing rows, and nothing is recorded."""
        return None

    def set_check(self, check: Callable[[int], None]) -> None:
        """Have rows of each version checked before the first is returned."""
        self._check = check
        self._checked.clear()

    def require(self, version: int) -> None:
        """Check a version's rows, unless that was done. Raises: IntegrityError: by the check."""
        if self._check is not None and version not in self._checked:
            self._check(version)
            self._checked.add(version)

    def take_side(self, side: str) -> None:
        self._refuse()

    def add_space(self, space: Space) -> None:
        self._refuse()

    def upsert(self, rows: Rows) -> None:
        self._refuse()

    def load(self, space: Space, blocks: Iterable[Rows]) -> int:
        self._refuse()

    def delete(self, ids: object) -> None:
        self._refuse()

    def build_index(self, codes: IndexCodes = FLOAT32) -> list[int]:
        self._refuse()

    def _add_space(self, space: Space) -> None:
        self._refuse()

    def _set_side(self, side: str) -> None:
        self._refuse()

    def _write(self, rows: Rows, checks: Checks) -> None:
        self._refuse()

    def _delete(self, ids: pa.Array) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise read_only(self.address)

    def refuse_twice_in(self, keys: pa.Array) -> None:
        """Raises: IntegrityError: an id of rows that were read is there twice."""
        if len(pc.unique(keys)) < len(keys):
            raise IntegrityError(f"{self.address} has an id twice; each row needs its own.")

    def check_id_type(self, now: pa.DataType) -> None:
        """Raises: StoreError: its owner has given the ids another type since it was opened."""
        if now != self.id_type:
            words = {pa.int64(): "whole numbers", pa.string(): "texts"}
            raise StoreError(
                f"The ids of {self.address} are {words[now]} now, and were {words[self.id_type]} "
                "when it was opened; open it again."
            )

    def _verify(self, rows: Rows, checks: Checks) -> None:
        bad = np.flatnonzero(~np.isfinite(rows.vectors).all(axis=1))
        if len(bad):
            raise IntegrityError(
                f"The vector of id {rows.ids[bad[0]]} in {self.address} is not finite; correct it."
            )


def read_only(shown: str) -> StoreError:
    """Return the error for writing to a table or a collection of somebody's own."""
    return StoreError(
        f"{shown} is a table or a collection of your own, which Evergram only reads. Write new "
        "vectors to it by your own program, into a column (in Qdrant: a named vector) of their "
        "version, or fill a store of Evergram's: 'evergram store fill' with an address such as "
        "snapshot:DIR."
    )
