"""A server's index of a collection: of whole vectors, or quantized to bytes or to bits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from evergram.errors import DataError, StoreError
from evergram.stores.index_codes import FLOAT32, IndexCodes

# Qdrant's float16 is a type of the vectors that are stored, so there is none of an index.
KINDS = (FLOAT32.kind, "int8", "binary")

INDEXING = 3_600.0  # seconds that a server may take
UNFINISHED, FAILED = "yellow", "red"
# A search of the graph looks at so many points at least.
LOOKED_AT = 128

# So many stored rows are the queries by which codes are measured; codes must find this share of the
# ten that the graph finds of whole vectors.
SAMPLE, NEAREST, RECALL = 100, 10, 0.95

# A method of the client by its name, with its arguments.
Ask = Callable[..., Any]


def check_codes(codes: IndexCodes, *, remote: bool, shown: str) -> None:
    """Refuse codes that Qdrant does not have.

    Args:
        remote: whether it is a server.
        shown: how errors name the store.
    Raises: DataError: there are no such codes; it is a folder of the local mode.
    """
    if remote:
        codes.check(KINDS, shown)
    elif not codes.whole:
        raise DataError(
            f"{shown} cannot build an index of {codes.kind}: it is a folder of Qdrant's local "
            "mode, which keeps whole vectors in memory and compares all of them. Run a Qdrant "
            "server and give its URL, or take another store."
        )


def index_collection(
    ask: Ask, collection: str, version: int, codes: IndexCodes, shown: str
) -> None:
    """Have a server index a collection, and wait until it has.

    Args:
        ask: calls a method of the client.
        version: of the rows.
    Raises: DataError: the codes find too few of the best; whole vectors are then indexed.
        StoreError: the server has no such codes, takes too long, or fails.
    """
    _quantize(ask, collection, codes, shown)
    until = time.monotonic() + INDEXING
    while (status := ask("get_collection", collection).status.value) == UNFINISHED:
        if time.monotonic() > until:
            raise StoreError(f"{shown} is still indexing after {INDEXING:.0f} s.")
        time.sleep(0.5)
    if status == FAILED:
        raise StoreError(f"The server of {shown} could not index: see its log, and try again.")
    share = 1.0 if codes.whole else _share_found(ask, collection, codes.oversample)
    if share < RECALL:
        _quantize(ask, collection, FLOAT32, shown)
        raise DataError(
            f"An index of {codes.kind} with oversample {codes.oversample} finds {share:.0%} of the "
            f"ten best of version {version}, and {RECALL:.0%} are needed; give a larger "
            "oversample, or codes of more bytes."
        )


def search_params(k: int, oversample: int | None, *, exact: bool = False) -> Any:
    """Return how a server is to search for the k best.

    Args:
        oversample: of the collection's codes; None for a search by whole vectors, also where the
            server has codes.
        exact: whether to compare all points.
    """
    from qdrant_client import models

    codes = models.QuantizationSearchParams(ignore=True)
    if oversample is not None and not exact:
        # Without `rescore` scores may be those of the codes.
        codes = models.QuantizationSearchParams(
            ignore=False, rescore=True, oversampling=float(oversample)
        )
    return models.SearchParams(hnsw_ef=max(LOOKED_AT, k), exact=exact, quantization=codes)


def _quantize(ask: Ask, collection: str, codes: IndexCodes, shown: str) -> None:
    """Have a collection quantized as the codes say, with whole vectors on the disk; for whole
    vectors take both back."""
    from qdrant_client import models

    if codes.whole and _quantized(ask, collection) is None:
        return
    # `always_ram` is what servers of every age know.
    scalar = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True)
    config = {
        FLOAT32.kind: models.Disabled.DISABLED,
        "int8": models.ScalarQuantization(scalar=scalar),
        "binary": models.BinaryQuantization(
            binary=models.BinaryQuantizationConfig(always_ram=True)
        ),
    }[codes.kind]
    vectors = {"": models.VectorParamsDiff(on_disk=not codes.whole)}
    ask("update_collection", collection, quantization_config=config, vectors_config=vectors)
    held = _quantized(ask, collection)
    if held != (None if codes.whole else codes.kind):
        raise StoreError(
            f"The server of {shown} was asked for an index of {codes.kind} and has one of "
            f"{held or FLOAT32.kind}; see that it is a recent Qdrant, and try again."
        )


def _share_found(ask: Ask, collection: str, oversample: int) -> float:
    """Return which share of the best that the graph finds among whole vectors it finds by codes,
    with stored rows as queries."""
    from qdrant_client import models

    # Ids of points are hashes of the rows' ids, so the first of them are drawn by chance.
    points, _ = ask("scroll", collection, limit=SAMPLE, with_payload=False, with_vectors=True)
    matched, wanted = 0, 0
    for point in points:
        requests = [
            models.QueryRequest(
                query=point.vector, limit=NEAREST, params=search_params(NEAREST, chosen)
            )
            for chosen in (None, oversample)
        ]
        answers = ask("query_batch_points", collection, requests)
        whole, codes = ([hit.score for hit in answer.points] for answer in answers)
        wanted += len(whole)
        # Rows with the same vector are as good as one another.
        matched += sum(score >= min(whole, default=score) for score in codes[: len(whole)])
    return matched / wanted if wanted else 0.0  # nothing measured is nothing found


def _quantized(ask: Ask, collection: str) -> str | None:
    """Return the kind of codes that a collection has; None for whole vectors."""
    config = ask("get_collection", collection).config.quantization_config
    if config is None:
        return None
    kinds = {"scalar": "int8", "binary": "binary"}
    return next((kinds[name] for name in kinds if hasattr(config, name)), type(config).__name__)
