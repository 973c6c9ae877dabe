"""Number the ids of both sides: earlier parts' ids first, then new ones by first appearance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evergram.data.prepared.engine.database import Database

Side = Literal["query", "candidate"]
SIDES: tuple[Side, Side] = ("query", "candidate")


@dataclass(frozen=True)
class Vocabularies:
    """The tables of ids in the database, `ids_query` and `ids_candidate`, each (id, row).

    With shared ids both are `ids_entities`.

    Args:
        shared: query and candidate ids name the same things.
        known: by table, ids of earlier parts.
    """

    shared: bool
    known: dict[str, int]

    def table(self, side: Side) -> str:
        return "entities" if self.shared else side

    @property
    def tables(self) -> Sequence[str]:
        return ("entities",) if self.shared else SIDES

    def number_ids(self, database: Database) -> None:
        """Fill the tables of ids from `known_…` (id, row) and `interactions`."""
        if self.shared:
            # As `Corpus` has it: all queries' ids, and then the candidates' that are no queries'.
            first = (
                "SELECT id, min(first) AS first FROM ("
                "SELECT query AS id, min(rowid) AS first FROM interactions GROUP BY query "
                "UNION ALL SELECT candidate, min(rowid) + (SELECT count(*) FROM interactions) "
                "FROM interactions GROUP BY candidate) GROUP BY id"
            )
            self._number(database, "entities", first)
            return
        for side in SIDES:
            first = f"SELECT {side} AS id, min(rowid) AS first FROM interactions GROUP BY {side}"
            self._number(database, side, first)

    def _number(self, database: Database, table: str, first: str) -> None:
        database.run(
            f"CREATE TABLE new_{table} AS SELECT n.id FROM ({first}) n ANTI JOIN known_{table} k "
            "ON n.id = k.id ORDER BY n.first"
        )
        database.run(
            f"CREATE TABLE ids_{table} AS SELECT id, row FROM known_{table} UNION ALL "
            f"SELECT id, rowid + {self.known[table]} FROM new_{table}"
        )

    def size(self, database: Database, side: Side) -> int:
        """Return the ids of a side, of all parts."""
        table = self.table(side)
        return self.known[table] + database.number(f"SELECT count(*) FROM new_{table}")

    def counts(self, database: Database, side: Side) -> NDArray[np.int64]:
        """Return the interactions of each entity in the new part, int64 [N]."""
        counts = np.zeros(self.size(database, side), np.int64)
        query = (
            f"SELECT v.row, n.count FROM (SELECT {side} AS id, count(*) AS count FROM interactions "
            f"GROUP BY {side}) n JOIN ids_{self.table(side)} v ON n.id = v.id"
        )
        for batch in database.batches(query):
            counts[batch["row"].to_numpy()] = batch["count"].to_numpy()
        return counts
