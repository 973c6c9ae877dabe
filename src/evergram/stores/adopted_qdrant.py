"""A collection of the user's own in Qdrant, with a named vector for each version.

A search by the distance that Qdrant keeps for a vector is Qdrant's, exact and without its graph;
others are by reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.adopted_store import (
    NO_CHECKS,
    AdoptedNames,
    AdoptedStore,
    TableFacts,
    canonical_uuids,
    wrong_address,
)
from evergram.stores.filters import Condition, type_of
from evergram.stores.open_store import is_url
from evergram.stores.qdrant_store import KEY, QdrantConnection, blocks_of
from evergram.stores.rows import ID_TYPES, Floats, Hits, Rows, best_by, merge_hits
from evergram.stores.store import ReadableStore

# After the import above, which says so where qdrant-client is missing.
from qdrant_client import models  # isort: skip

T = TypeVar("T")

# The id that an address names where the points' own ids are meant.
POINT = "point"
# Qdrant reads other fields as paths into the payload.
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
# By the distance of a vector, the metrics by which Qdrant orders its rows as a comparison of all
# would. Vectors under Cosine have length 1, or 0, so the order by inner product is that by cosine.
COMPUTED = {"Dot": ("ip",), "Cosine": ("ip", "cosine"), "Euclid": ("l2",)}
# The most points in a server's answer, and in a page of ids alone.
POINTS, IDS = 1_000, 10_000
# Qdrant compares bounds as doubles, which hold whole numbers up to here.
EXACT = 2**53


class AdoptedCollection(AdoptedStore):
    kind: ClassVar[str] = "qdrant-collection"
    form: ClassVar[str] = (
        "qdrant-collection:http://HOST:6333#collection=NAME&v0=VECTOR, or with a folder of the "
        "local mode in place of the URL, with v1=VECTOR … for later versions, v0= for a vector "
        "without a name, and if need be id=FIELD and filter=FIELD,FIELD; write & in a name as %26, "
        "# as %23, a comma as %2C and % as %25. A key is not part of it but of the environment, as "
        f"{KEY}"
    )
    keys: ClassVar[tuple[str, ...]] = ("collection", "id", "filter")

    # None until the first id was seen.
    _kind_of_id: pa.DataType | None = None

    @classmethod
    def _place_of(cls, place: str, names: AdoptedNames) -> str:
        if "://" in place and not is_url(place):
            why = "before the # there is a URL that is neither http nor https"
            raise wrong_address(why, cls.form)
        if is_url(place) and set("@?") & set(place):
            why = "the URL before the # has a user, a password or a key in it"
            raise wrong_address(why, cls.form)
        if not _PLAIN.fullmatch(names.id or POINT):
            raise DataError(
                f"Ids cannot be read from the field {names.id!r}; name a field of the payload "
                "itself, of ASCII letters, digits, _ and -."
            )
        if "" in names.vectors.values() and len(names.vectors) > 1:
            raise DataError("A collection with a vector without a name, v0=, has no other vector.")
        if not is_url(place) and not (Path(place) / "meta.json").exists():
            raise DataError(
                f"There is no folder {place} of Qdrant's local mode; give the folder of your "
                "collections, or the URL of a server."
            )
        return place

    @property
    def _anywhere(self) -> str:
        return self._where if self._remote else str(Path(self._where).resolve())

    def _connect(self) -> None:
        self._name, self._remote = self._names.table, is_url(self._where)
        self._field = None if self._names.id in (None, POINT) else self._names.id
        self._connection = QdrantConnection(self._where, self.address, create=False)
        self._ask = self._connection.ask

    def _disconnect(self) -> None:
        self._connection.close()

    def _look(self) -> TableFacts:
        try:
            params = self._ask("get_collection", self._name).config.params
        except StoreError:
            there = sorted(one.name for one in self._ask("get_collections").collections)
            if self._name in there:
                raise
            raise DataError(
                f"There is no collection {self._name!r} at {self._where}; it has "
                f"{', '.join(there) or 'none'}."
            ) from None
        vectors = params.vectors or {}
        by_name = vectors if isinstance(vectors, dict) else {"": vectors}
        dims: dict[int, int] = {}
        distances = {}
        for version, name in self._names.vectors.items():
            if name not in by_name:
                has = [f"{own!r}" if own else "one without a name, v0=" for own in sorted(by_name)]
                raise StoreError(
                    f"{self.address} names the vector {name!r}, which the collection does not "
                    f"have; it has {', '.join(has) or 'none'}."
                )
            dims[version] = int(by_name[name].size)
            distance = by_name[name].distance
            distances[name] = str(getattr(distance, "value", distance))
            if by_name[name].multivector_config is not None or distances[name] not in COMPUTED:
                raise StoreError(
                    f"The vector {name!r} of {self.address} must be one vector a point, of the "
                    "distance Dot, Cosine or Euclid."
                )
        if self._kind_of_id is None:
            self._kind_of_id = self._read_id_type()
        return TableFacts(self._kind_of_id, dims, distances)

    def _read_id_type(self) -> pa.DataType:
        """Return the type of the ids. Raises: StoreError: there is no point with an id."""
        first = next(self._pages(self._having(None), [], 1), None)
        if first is None:
            what = "" if self._field is None else f" with the field {self._field!r}"
            raise StoreError(
                f"{self.address} has no point{what} yet, so that nothing says whether its ids are "
                "numbers or texts; write its points first."
            )
        key = self._id_of(first[0])
        if isinstance(key, bool) or not isinstance(key, (int, str)):
            raise StoreError(
                f"The field {self._field!r} of the points of {self.address} holds {str(key)[:40]}; "
                "an id is a whole number or a text."
            )
        return ID_TYPES["int64" if isinstance(key, int) else "string"]

    def _filter_of(self, conditions: list[Condition]) -> Any:
        return models.Filter(must=[_condition(one) for one in conditions])

    def _distance_of(self, version: int) -> str:
        return str(self._known.types[self._names.vectors[version]])

    def computes(self, metric: str, version: int) -> bool:
        return metric in COMPUTED[self._distance_of(version)]

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        # In the local mode, the other threads of the process are kept from writing. A server has no
        # view of one moment. Versions are read from the oldest to the newest, so a row that gets a
        # newer vector meanwhile is in one of them, or in both and returned once.
        with nullcontext() if self._remote else self._connection.writing:
            self._facts()
            return work(self._at_this_moment())

    def _rows(
        self, version: int, ids: pa.Array | None, size: int, *, own: bool = True
    ) -> Iterator[Rows]:
        name = self._names.vectors[version]
        for among in self._among(ids):
            for page in self._pages(self._of(version, among, own), [name], size):
                yield self._block(version, page)

    def _count(self, version: int) -> int:
        condition = self._of(version, None)
        return int(self._ask("count", self._name, count_filter=condition, exact=True).count)

    def _has_rows(self, version: int) -> bool:
        return next(self._pages(self._of(version, None), [], 1), None) is not None

    def _by_database(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[Hits]:
        # A server's own codes of vectors are left out, too. The local mode compares all in any
        # case, and warns of parameters.
        whole = models.QuantizationSearchParams(ignore=True)
        params = models.SearchParams(exact=True, quantization=whole) if self._remote else None
        name, id_type = self._names.vectors[version], self._id_type
        nothing = Hits(pa.array([], id_type), np.zeros(0, np.float32), np.zeros(0, np.int64))
        best = [nothing] * len(queries)
        for among in self._among(ids):
            request = {
                "using": name or None,
                "filter": self._of(version, among),
                "params": params,
                "limit": k,
                "with_payload": self._payload,
                "with_vector": _asked([name]),
            }
            asked = [models.QueryRequest(query=query, **request) for query in queries.tolist()]
            # Every request repeats the filter, which may have many ids.
            answers: list[Any] = []
            for some in blocks_of(asked, 10 if self._remote else max(len(asked), 1)):
                answers += self._ask("query_batch_points", self._name, some)
            for i, answer in enumerate(answers):
                rows = self._block(version, answer.points)
                self._verify(rows, NO_CHECKS)
                # Scores are of the vectors themselves, to the last digit.
                (hits,) = best_by(metric, queries[i : i + 1], k, [rows], version, id_type)
                best[i] = merge_hits([best[i], hits], k)
        return best

    def _pages(self, condition: Any, vectors: Sequence[str], size: int) -> Iterator[list[Any]]:
        """Yield the points of a filter with some of their vectors, at most `size` at once."""
        # The local mode sorts all ids for every page.
        limit = min(size, POINTS if vectors else IDS) if self._remote else size
        asked = {"with_payload": self._payload, "with_vectors": _asked(vectors)}
        yield from self._connection.pages(self._name, limit, scroll_filter=condition, **asked)

    def _block(self, version: int, points: Sequence[Any]) -> Rows:
        name, dim = self._names.vectors[version], self._known.dims[version]
        keys = self._ids_of(points)
        vectors = [_vector_of(point, name) for point in points]
        if any(vector is None or len(vector) != dim for vector in vectors):
            raise IntegrityError(
                f"A vector {name!r} of {self.address} does not have {dim} dims, as the collection "
                "says; write it again."
            )
        with np.errstate(over="ignore"):
            block = np.array(vectors, dtype=np.float32).reshape(len(vectors), dim)
        if self._distance_of(version) == "Cosine":
            # A server has brought them to length 1; the local mode returns them as they were
            # written until they are first searched.
            lengths = np.linalg.norm(block.astype(np.float64), axis=1, keepdims=True)
            block = (block / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
        return Rows(version, keys, block)

    def _id_of(self, point: Any) -> Any:
        return point.id if self._field is None else (point.payload or {}).get(self._field)

    def _ids_of(self, points: Sequence[Any]) -> pa.Array:
        """Return the ids of points. Raises: IntegrityError: one is of another type than others."""
        try:
            return pa.array([self._id_of(point) for point in points], self._id_type)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise IntegrityError(
                f"The ids of {self.address} must all be whole numbers of at most 63 bits, or all "
                f"be texts ({error}): keep ids of one type in a field, and name it by id=FIELD."
            ) from None

    def _among(self, ids: pa.Array | None) -> Iterator[Any]:
        """Yield conditions for some ids, or None for all."""
        if ids is None:
            yield None
            return
        keys: list[Any] = ids.to_pylist()
        if self._field is None:
            number = pa.types.is_integer(ids.type)
            keys = [key for key in keys if key >= 0] if number else canonical_uuids(keys)
        for some in blocks_of(keys, IDS):
            if self._field is None:
                yield models.HasIdCondition(has_id=some)
            else:
                yield models.FieldCondition(key=self._field, match=models.MatchAny(any=some))

    def _of(self, version: int, among: Any, own: bool = True) -> Any:
        """Return the filter for the rows of a version, or for all with its vector."""
        later = [name for one, name in self._names.vectors.items() if own and one > version]
        return self._having(self._names.vectors[version], [among, self._chosen], later)

    def _having(
        self, vector: str | None, more: Sequence[Any] = (), without: Sequence[str] = ()
    ) -> Any:
        """Return the filter for points with an id, a vector and not others, and more conditions."""
        must: list[Any] = [] if vector is None else [models.HasVectorCondition(has_vector=vector)]
        must += [one for one in more if one is not None]
        must_not: list[Any] = [models.HasVectorCondition(has_vector=name) for name in without]
        if self._field is not None:
            field = models.PayloadField(key=self._field)
            must_not.append(models.IsEmptyCondition(is_empty=field))
        return models.Filter(must=must, must_not=must_not)

    @property
    def _payload(self) -> Any:
        return False if self._field is None else [self._field]


def _vector_of(point: Any, name: str) -> list[float] | None:
    """Return one of the vectors that came with a point; None if it has none of the name."""
    vector = point.vector
    if isinstance(vector, dict):
        vector = vector.get(name)
    elif name:
        return None
    return vector or None


def _asked(vectors: Sequence[str]) -> bool | list[str]:
    """Return what Qdrant is asked for: names of vectors, the one without a name, or none."""
    return True if "" in vectors else list(vectors) or False


def _condition(condition: Condition) -> Any:
    def of_field(**test: Any) -> Any:
        return models.FieldCondition(key=condition.field, **test)

    values: list[Any] = list(condition.values)
    sort = type_of(condition)
    if condition.operator != "in":
        return of_field(range=_range(condition, values[0]))
    if sort == "text":
        return of_field(match=models.MatchAny(any=values))
    if sort == "boolean":
        same = [of_field(match=models.MatchValue(value=value)) for value in values]
        return models.Filter(should=same)
    # Qdrant matches a whole number with whole numbers alone, and 3 shall be 3.0; it compares ranges
    # as doubles.
    equal = [
        of_field(match=models.MatchValue(value=v))
        if isinstance(v, int) and abs(v) > EXACT
        else of_field(range=models.Range(gte=v, lte=v))
        for v in values
    ]
    return models.Filter(should=equal)


def _range(condition: Condition, bound: Any) -> Any:
    """Return a range of numbers, or of times, which without a zone are of UTC."""
    named = condition.field[:80]
    if type_of(condition) == "number":
        if isinstance(bound, int) and abs(bound) > EXACT:
            raise DataError(
                f"A bound of field {named!r} is {bound}; Qdrant compares doubles, so give one from "
                f"{-EXACT} to {EXACT}."
            )
        return models.Range(**{condition.operator: bound})
    try:
        if type_of(condition) == "boolean":
            raise ValueError
        moment = datetime.fromisoformat(bound)
    except ValueError:
        raise DataError(
            f"A bound of field {named!r} is {str(bound)[:40]!r}; Qdrant orders numbers and times "
            "alone: give a number, or a date or a time such as '2026-01-31T12:00:00Z'."
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return models.DatetimeRange(**{condition.operator: moment})
