"""The pairs that the versions of a lineage were trained on, so that no version is tested on one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evergram.data.pair_hash import TrainedPairs
from evergram.lineage.catalog.catalog import Catalog
from evergram.lineage.disk.trained_pairs import FILE


@dataclass(frozen=True)
class PairHistory:
    """The pairs that a version of the lineage may not be tested on.

    Args:
        salt: of the pairs' hashes, recorded with version 0; None before that, and in a lineage of
            files.
        trained: the pairs that any version was trained on, hashed with this salt.
        untested: a sentence on why no pair is known to be held out from all versions; None if that
            is known.
    """

    salt: str | None = None
    trained: TrainedPairs = field(default_factory=TrainedPairs)
    untested: str | None = None

    def new(self, trained: tuple[str, TrainedPairs] | None) -> TrainedPairs | None:
        """Return the pairs that no version was trained on before; None if that is not known.

        Args:
            trained: a version's training pairs, and the salt of their hashes.
        """
        if trained is None or self.untested is not None or self.salt not in (None, trained[0]):
            return None
        return trained[1].without(self.trained)


def pair_history_of(catalog: Catalog) -> PairHistory:
    """Return the pairs that the versions of a lineage were trained on.

    Withdrawn versions do not count, as no later version is aligned to them, nor do versions that
    came from a file, as they have no model.
    """
    record = catalog.record
    pairs = {
        number: catalog.reader(number).trained_pairs()
        for number, manifest in catalog.manifests.items()
        if manifest.encoder is not None or FILE in manifest.files
    }
    unrecorded = [number for number, trained in pairs.items() if trained is None]
    if unrecorded or (record.salt is None and record.versions):
        untested = _unrecorded(unrecorded or record.versions, catalog.address)
        return PairHistory(record.salt, untested=untested)
    recorded = [trained for trained in pairs.values() if trained is not None]
    return PairHistory(record.salt, TrainedPairs().union(recorded))


def _unrecorded(versions: Sequence[int], where: str) -> str:
    """Return why nothing can be tested in a lineage whose `versions` did not record their pairs."""
    names = ", ".join(map(str, versions))
    return (
        f"No test figure: the training pairs of version{'s' * (len(versions) > 1)} {names} of "
        f"{where} were not recorded, so no pair is known to be held out from every version; train "
        "a new lineage to have test figures."
    )
