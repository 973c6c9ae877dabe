"""That no version is published past its consumers: each probe must have been run on it."""

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
    """Raises: LineageError: a consumer has a probe that was not run on the version, or has another
    probe, or reads another version, since it was.

    Args:
        metrics: of the version; `evergram.publish` adds what each probe said, as "probes".
        number: the version's.
        resolve: of the lineage as it is now.
    """
    said = {reading.get("consumer"): reading for reading in metrics.get("probes", ())}
    missing = [
        consumer.name
        for consumer in ConsumerRegistry.open(address).list()
        if consumer.probe is not None
        and not _is_of(said.get(consumer.name), consumer, number, resolve)
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
    """Whether a reading is of this consumer's probe as it is now, on this version."""
    probe = consumer.probe
    assert probe is not None
    if reading is None:
        return False
    read = number
    if consumer.pinned != "newest":
        # A label that is gone: the probe could not be run, which its reading says.
        with suppress(LineageError):
            read = resolve(consumer.pinned)
    expected = (consumer.pinned, number, probe.model_sha256, probe.data_sha256)
    found = tuple(reading.get(k) for k in ("pinned", "source", "model_sha256", "data_sha256"))
    return found == expected and (reading.get("version") == read or reading.get("value") is None)
