"""Points of somebody's own collection: which there are, their ids, and the nearest of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from evergram.errors import IntegrityError, StoreError
from evergram.stores.adopted_address import canonical_uuids
from evergram.stores.qdrant.collection_facts import CollectionAddress
from evergram.stores.qdrant.qdrant_connection import QdrantConnection
from evergram.stores.qdrant.qdrant_points import blocks_of
from evergram.stores.store import Floats

# A server's answer has so many points at most, and a page of ids alone so many.
POINTS, IDS = 1_000, 10_000
LARGEST = 2**63 - 1
# Points that are looked at, to say which fields there are.
SAMPLE = 100


class OwnPoints:
    """The points of a collection, asked for in Qdrant's terms.

    Args:
        connection: to where the collection is.
        address: of the collection.
    """

    def __init__(self, connection: QdrantConnection, address: CollectionAddress) -> None:
        self._ask, self._at = connection.ask, address
        self._type: type[int] | type[str] | None = None

    def read_id_type(self) -> str:
        """Return "int64" or "string", after a look at what the address names.

        Ids of points are unique. All those in a field are read, as nothing keeps them unique.

        Raises: StoreError: there is no point, an id is twice, or no point has a field.
        """
        if not self.scroll(None, [], 1, pages=1):
            raise StoreError(
                f"{self._at.shown} has no point yet, so that nothing says whether its ids are "
                "numbers or texts; write its points first."
            )
        named = [] if self._at.field is None else [self._at.field]
        for field in [*named, *self._at.filters]:
            if not self.scroll(self._with_field(field), [], 1, pages=1):
                raise StoreError(
                    f"{self._at.shown} names the field {field!r}, which no point has; there are "
                    f"{', '.join(self._fields()) or 'none'}."
                )
        if self._at.field is None:
            self.id_of(self.scroll(None, [], 1, pages=1)[0])
        else:
            seen: set[int | str] = set()
            for page in self.pages(self.having(None), [], IDS):
                for point in page:
                    key = self.id_of(point)
                    if key in seen:
                        raise StoreError(
                            f"{self._at.shown} has the id {key!r} twice; the field of ids must "
                            "have each once: name another by id=FIELD."
                        )
                    seen.add(key)
        return "int64" if self._type is int else "string"

    def among(self, ids: pa.Array | None, size: int) -> Iterator[Any]:
        """Yield conditions for some ids, each for at most `size` of them; None for all."""
        from qdrant_client import models

        if ids is None:
            yield None
            return
        keys = ids.to_pylist()
        if self._at.field is None:
            keys = [k for k in keys if k >= 0] if self._type is int else canonical_uuids(keys)
        for some in blocks_of(keys, size):
            if self._at.field is None:
                yield models.HasIdCondition(has_id=some)
            else:
                match = models.MatchAny(any=some)
                yield models.FieldCondition(key=self._at.field, match=match)

    def having(
        self,
        vector: str | None,
        among: Any = None,
        chosen: Any = None,
        without: Sequence[str] = (),
    ) -> Any:
        """Return the filter for points with an id.

        Args:
            vector: that they have; None for any or none.
            among, chosen: further conditions.
            without: vectors that they do not have.
        """
        from qdrant_client import models

        must: list[Any] = [] if vector is None else [models.HasVectorCondition(has_vector=vector)]
        must += [one for one in (among, chosen) if one is not None]
        must_not: list[Any] = [models.HasVectorCondition(has_vector=name) for name in without]
        if self._at.field is not None:
            must.append(self._with_field(self._at.field))
        return models.Filter(must=must, must_not=must_not)

    def scroll(
        self, condition: Any, vectors: Sequence[str], size: int = POINTS, pages: int | None = None
    ) -> list[Any]:
        """Return the points of a filter, of so many pages or of all.

        Args:
            vectors: those to return with each.
        """
        return [p for page in islice(self.pages(condition, vectors, size), pages) for p in page]

    def pages(self, condition: Any, vectors: Sequence[str], size: int) -> Iterator[list[Any]]:
        """Yield the points of a filter, at most `size` at once."""
        # The local mode sorts all ids for every page.
        most = POINTS if vectors else IDS
        limit, offset = (min(size, most) if self._at.remote else size), None
        while True:
            points, offset = self._ask(
                "scroll",
                self._at.collection,
                scroll_filter=condition,
                limit=limit,
                offset=offset,
                with_payload=self._payload,
                with_vectors=_asked(vectors),
            )
            if points:
                yield points
            if offset is None:
                return

    def nearest(self, condition: Any, vector: str, queries: Floats, k: int) -> list[list[Any]]:
        """Return for each query the k nearest points of a filter, with their vectors, all compared
        by the distance that Qdrant keeps for the vector."""
        from qdrant_client import models

        # A server's own codes of vectors are left out, too. The local mode compares all in any
        # case, and warns of parameters.
        whole = models.QuantizationSearchParams(ignore=True)
        params = models.SearchParams(exact=True, quantization=whole) if self._at.remote else None
        requests = [
            models.QueryRequest(
                query=query,
                using=vector or None,
                filter=condition,
                params=params,
                limit=k,
                with_payload=self._payload,
                with_vector=_asked([vector]),
            )
            for query in queries.tolist()
        ]
        # Every request repeats the filter, which may have many ids.
        step = 10 if self._at.remote else len(requests)
        answers: list[list[Any]] = []
        for some in blocks_of(requests, max(step, 1)):
            batch = self._ask("query_batch_points", self._at.collection, some)
            answers += [answer.points for answer in batch]
        return answers

    def id_of(self, point: Any) -> int | str:
        """Return the id of a point. Raises: IntegrityError: it is of another type than others'."""
        field = self._at.field
        key = point.id if field is None else (point.payload or {}).get(field)
        if not isinstance(key, (int, str)) or isinstance(key, bool):
            raise IntegrityError(
                f"The field {field!r} of the point {point.id} of {self._at.shown} is "
                f"{str(key)[:40]!r}; an id is a whole number or a text."
            )
        if isinstance(key, int) and not -LARGEST - 1 <= key <= LARGEST:
            raise IntegrityError(f"The id {key} of {self._at.shown} has more than 63 bits.")
        sort = int if isinstance(key, int) else str
        if self._type not in (None, sort):
            raise IntegrityError(
                f"{self._at.shown} has ids that are numbers and ids that are texts, such as "
                f"{key!r}; Evergram reads those of one type: keep ids of one type in a field, and "
                "name it by id=FIELD."
            )
        self._type = sort
        return key

    def version_of(self, point: Any) -> int | None:
        """Return the newest version whose vector a point has; None if it has none."""
        held = [v for v, name in self._at.vectors.items() if self.vector_of(point, name)]
        return max(held, default=None)

    def vector_of(self, point: Any, name: str) -> list[float] | None:
        """Return one of the vectors that came with a point; None if it has none of the name."""
        vector = point.vector
        if isinstance(vector, dict):
            vector = vector.get(name)
        elif name:
            return None
        return vector or None

    @property
    def _payload(self) -> Any:
        return False if self._at.field is None else [self._at.field]

    def _with_field(self, field: str) -> Any:
        from qdrant_client import models

        empty = models.IsEmptyCondition(is_empty=models.PayloadField(key=field))
        return models.Filter(must_not=[empty])

    def _fields(self) -> list[str]:
        points, _ = self._ask(
            "scroll", self._at.collection, limit=SAMPLE, with_payload=True, with_vectors=False
        )
        return sorted({name for point in points for name in point.payload or {}})


def _asked(vectors: Sequence[str]) -> bool | list[str]:
    """Return what Qdrant is asked for: names of vectors, the one without a name, or none."""
    return True if "" in vectors else list(vectors) or False
