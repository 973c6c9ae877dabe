"""A version is refused unless the probe of every consumer was run on it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from evergram.errors import LineageError
from evergram.lineage.consumers.record import Consumer, Resolve
from evergram.lineage.consumers.registry import ConsumerRegistry


def refuse_unprobed(
    address: str, metrics: Mapping[str, Any], number: int, resolve: Resolve
) -> None:
    """Refuse a version that a consumer's probe was not run on, or for which the consumer has had
    another probe, or has read another version, since the probe was run.

    Args:
        metrics: of the version; `evergram.publish` adds the reading of each probe, as "probes".
        number: of the version.
        resolve: returns the number of a version or label of the lineage as it is now.
    Raises: LineageError.
    """
    readings = {reading.get("consumer"): reading for reading in metrics.get("probes", ())}
    missing = [
        consumer.name
        for consumer in ConsumerRegistry.open(address).list()
        if consumer.probe is not None
        and not _is_of(readings.get(consumer.name), consumer, number, resolve)
    ]
    if missing:
        who = ", ".join(missing)
        raise LineageError(
            f"The new version was not published: the probe of {who} has not been run on it as it "
            "is now; publish it by evergram.publish(lineage, artefact), which runs every "
            "consumer's probe first."
        )


def _is_of(
    reading: Mapping[str, Any] | None, consumer: Consumer, number: int, resolve: Resolve
) -> bool:
    """Say whether a reading is of this consumer's probe as it is now, on this version."""
    probe = consumer.probe
    assert probe is not None
    if reading is None:
        return False
    read = number
    if consumer.pinned != "newest":
        # If the label is gone, the probe could not be run, and its reading says so.
        with suppress(LineageError):
            read = resolve(consumer.pinned)
    expected = (consumer.pinned, number, probe.model_sha256, probe.data_sha256)
    actual = tuple(reading.get(k) for k in ("pinned", "source", "model_sha256", "data_sha256"))
    return actual == expected and (reading.get("version") == read or reading.get("value") is None)
