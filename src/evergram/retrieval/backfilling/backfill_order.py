"""The rows of a store that a backfill refreshes, the largest predicted error first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.compatibility.certificate import certify
from evergram.lineage.lineage import Lineage
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.rows import Floats
from evergram.stores.store import ReadableStore

# The error of a row of a withdrawn version, which is refreshed before all others.
UNREADABLE = 1e9


@dataclass(frozen=True)
class BackfillOrder:
    """Rows to refresh, worst first.

    Args:
        ids: [n].
        errors: [n], descending: the predicted error of reading each row as the new version.
        without: how many older rows have no embedding in the new version.
        absent: how many objects of the new version have no row at all.
    """

    ids: pa.Array
    errors: npt.NDArray[np.float64]
    without: int
    absent: int


def backfill_order(
    lineage: Lineage, store: ReadableStore, source: ReadableStore, target: int
) -> BackfillOrder:
    """Return the rows of a store that another version has an embedding for.

    Args:
        source: holds the embeddings of version `target`.
    """
    maps = VersionMaps(lineage)
    ids, held = [pa.array([], store.id_type)], [pa.array([], store.id_type)]
    errors = [np.zeros(0)]
    without = 0
    for version in store.count():
        for rows in store.scan(version):
            new_ids = [pa.array([], store.id_type), *(new.ids for new in source.fetch(rows.ids))]
            has_new = pc.is_in(rows.ids, value_set=pa.concat_arrays(new_ids))
            mask = has_new.to_numpy(zero_copy_only=False)
            held.append(rows.ids.filter(has_new))
            if version == target:
                continue
            without += int((~mask).sum())
            ids.append(held[-1])
            if version in lineage.withdrawn:
                errors.append(np.full(int(mask.sum()), UNREADABLE))
                continue
            dim = lineage.manifest(version).dim
            vectors = np.ascontiguousarray(rows.vectors[mask, :dim])
            errors.append(predicted_errors(lineage, maps, vectors, version, target))
    all_ids, all_errors = pa.concat_arrays(ids), np.concatenate(errors)
    # A row that another writer moves meanwhile may be met in both of its versions.
    absent = source.count().get(target, 0) - len(pa.concat_arrays(held).unique())
    order = np.argsort(-all_errors, kind="stable")
    return BackfillOrder(all_ids.take(pa.array(order)), all_errors[order], without, absent)


def predicted_errors(
    lineage: Lineage, maps: VersionMaps, vectors: Floats, version: int, target: int
) -> npt.NDArray[np.float64]:
    """Return the predicted error [n] of reading rows [n, D_v] as another version.

    With a forward map F it is ‖z − W F z‖, which is lost by the way forward and back, together with
    the chain's own error by its certificate. Without a forward map a row cannot be read forward,
    and its own error is not known: it is the certificate's, so the oldest come first.
    """
    certificate = None
    if version < target:
        certificate = certify(lineage.chain, lineage.step_errors, target, version)
    floor = float(abs(target - version)) if certificate is None else certificate.estimate
    if version > target or lineage.forward(version, target) is None:
        return np.full(len(vectors), floor)
    forward = maps.rows(vectors, version, target)
    back = maps.rows(np.ascontiguousarray(forward), target, version)
    lost = ((back.astype(np.float64) - vectors) ** 2).sum(axis=1)
    return np.asarray(np.sqrt(lost + floor**2))
