"""Labels, withdrawal and retirement, as pure functions, against a simple model of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from evergram.errors import LineageError, UnknownVersionError
from evergram.lineage.catalog import record_changes
from evergram.lineage.disk.lineage_record import FORMAT_VERSION, LineageRecord, Withdrawal

WHY = Withdrawal(fingerprint="sha256:0", reason="a fault", when="2026-01-01T00:00:00+00:00")
EMPTY = LineageRecord(format_version=1, name="shop", versions=[])


def versions(number: int, **fields: object) -> LineageRecord:
    values = {"format_version": 1, "name": "shop", "versions": list(range(number))}
    return LineageRecord.model_validate({**values, **fields})


@pytest.mark.parametrize(
    ("what", "number"),
    [
        (None, 1),
        (2, 2),
        ("2", 2),
        ("v" + "0" * 30 + "1", 1),
        ("v0", 0),
        ("newest", 2),
        ("stable", 1),
        ("team-a", 0),
    ],
)
def test_a_version_is_called_by_number_label_or_newest(what: int | str | None, number: int) -> None:
    assert record_changes.resolve(versions(3, labels={"stable": 1, "team-a": 0}), what) == number


@pytest.mark.parametrize(
    "what",
    [
        *(3, "3", "v3", -1, "canary", "Stable", "", "v", "1.0", " 1", "9" * 5000),
        *(1.0, 1.5, float("nan"), [], True),
    ],
)
def test_an_unknown_version_is_named_with_those_there_are(what: Any) -> None:
    record = versions(3, labels={"stable": 1}, retired=[0])
    with pytest.raises(UnknownVersionError, match=r"are: 1, 2; its labels: stable \(1\)"):
        record_changes.resolve(record, what)


def test_a_withdrawn_and_a_retired_version_are_told_apart() -> None:
    record = versions(2, withdrawn={2: WHY}, retired=[0])
    with pytest.raises(UnknownVersionError, match=r"Version 2 .* withdrawn \(a fault\)"):
        record_changes.resolve(record, 2)
    with pytest.raises(LineageError, match=r"Version 0 .* is retired") as caught:
        record_changes.resolve(record, "v0")
    assert not isinstance(caught.value, UnknownVersionError)
    with pytest.raises(UnknownVersionError, match="no version yet"):
        record_changes.resolve(EMPTY, None)


@pytest.mark.parametrize("name", ["", "newest", "v1", "v", "Stable", "a b", "-a", "1", "é", "a/b"])
def test_a_label_is_a_plain_word(name: str) -> None:
    if name == "v":  # like no number
        assert record_changes.with_label(versions(1), name, 0, [0]).labels == {"v": 0}
        return
    with pytest.raises(LineageError, match="cannot be a label"):
        record_changes.with_label(versions(2), name, 0, [0])


def test_only_a_version_with_embeddings_goes_into_production() -> None:
    record = versions(3)
    with pytest.raises(LineageError, match=r"Version 0 .* cannot be stable"):
        record_changes.with_label(record, "stable", 0, [1, 2])
    assert record_changes.with_label(record, "stable", 1, [1, 2]).labels == {"stable": 1}
    # To be read through the chain, any will do.
    assert record_changes.with_label(record, "team-a", 0, [1, 2]).labels == {"team-a": 0}


def test_a_label_or_consumer_on_a_version_keeps_it() -> None:
    record = versions(3, labels={"canary": 2, "team-a": 0})
    with pytest.raises(LineageError, match="labelled canary"):
        record_changes.without_newest(record, WHY, {}, [1, 2])
    with pytest.raises(LineageError, match="labelled team-a"):
        record_changes.with_retired(record, 0, {})
    with pytest.raises(LineageError, match="pinned to it are ads, search"):
        record_changes.with_retired(record, 1, {"search": 1, "ads": 1, "other": 0})
    with pytest.raises(LineageError, match="pinned to it is ads"):
        record_changes.without_newest(versions(3), WHY, {"ads": 2}, [1, 2])
    with pytest.raises(LineageError, match="embeddings of version 1 are no longer stored"):
        record_changes.without_newest(versions(3), WHY, {}, [2])
    with pytest.raises(LineageError, match=r"version 1, which would be the newest, is retired"):
        record_changes.without_newest(versions(3, retired=[1]), WHY, {}, [1, 2])
    with pytest.raises(LineageError, match="the only one"):
        record_changes.without_newest(versions(1), WHY, {}, [0])
    with pytest.raises(LineageError, match=r"newest .* cannot be retired"):
        record_changes.with_retired(record, "newest", {})
    with pytest.raises(LineageError, match="is retired"):
        record_changes.with_retired(versions(3, retired=[1]), 1, {})


@pytest.mark.parametrize(
    "damage",
    [
        {"versions": [0, 2]},
        {"versions": [1, 0]},
        {"versions": [0, 1], "withdrawn": {1: WHY}},
        {"versions": [0, 1], "withdrawn": {3: WHY}},
        {"versions": [0], "labels": {"stable": 1}},
        {"versions": [0], "retired": [1]},
    ],
)
def test_a_record_that_contradicts_itself_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="version"):
        LineageRecord.model_validate({"format_version": 1, "name": "shop", **damage})


NAMES = st.sampled_from(["stable", "canary", "team-a"])
NUMBERS = st.integers(0, 12)


class Machine(RuleBasedStateMachine):
    """Any order of operations. The model is a state for each number ever given out."""

    def __init__(self) -> None:
        super().__init__()
        self.record = EMPTY
        self.states: list[str] = []
        self.at: dict[str, int] = {}
        self.pins: dict[str, int] = {}
        self.held: set[int] = set()

    def live(self) -> list[int]:
        return [n for n, state in enumerate(self.states) if state != "withdrawn"]

    @rule(promote=st.booleans())
    def publish(self, promote: bool) -> None:
        before = self.live()
        if not promote and before and "stable" not in self.at:
            self.at["stable"] = before[-1]
        if promote and "stable" in self.at:
            self.at["stable"] = len(self.states)
        self.states.append("live")
        self.record = record_changes.with_version(self.record, promote=promote)
        self.held = {n for n in self.held if n in self.at.values()} | {len(self.states) - 1}

    @rule(name=NAMES, number=NUMBERS)
    def label(self, name: str, number: int) -> None:
        allowed = number < len(self.states) and self.states[number] == "live"
        allowed = allowed and (name != "stable" or number in self.held)
        try:
            self.record = record_changes.with_label(self.record, name, number, self.held)
        except LineageError:
            assert not allowed
        else:
            assert allowed
            self.at[name] = number

    @rule(name=NAMES)
    def unlabel(self, name: str) -> None:
        try:
            self.record = record_changes.without_label(self.record, name)
        except LineageError:
            assert name not in self.at
        else:
            del self.at[name]

    @rule(name=st.sampled_from(["ads", "search"]), number=NUMBERS)
    def pin(self, name: str, number: int) -> None:
        if number < len(self.states) and self.states[number] == "live":
            self.pins[name] = number

    @rule(name=st.sampled_from(["ads", "search"]))
    def unpin(self, name: str) -> None:
        self.pins.pop(name, None)

    def used(self, number: int) -> bool:
        return number in self.at.values() or number in self.pins.values()

    @rule()
    def withdraw(self) -> None:
        live = self.live()
        allowed = len(live) > 1 and not self.used(live[-1]) and live[-2] in self.held
        try:
            self.record = record_changes.without_newest(self.record, WHY, self.pins, self.held)
        except LineageError:
            assert not allowed
        else:
            assert allowed
            self.states[live[-1]] = "withdrawn"
            self.held.discard(live[-1])

    @rule(number=NUMBERS)
    def retire(self, number: int) -> None:
        allowed = number < len(self.states) and self.states[number] == "live"
        allowed = allowed and number != self.live()[-1] and not self.used(number)
        try:
            self.record = record_changes.with_retired(self.record, number, self.pins)
        except LineageError:
            assert not allowed
        else:
            assert allowed
            self.states[number] = "retired"
            self.held.discard(number)

    @invariant()
    def the_record_says_the_same(self) -> None:
        live = self.live()
        assert self.record.versions == live
        assert self.record.labels == self.at
        assert set(self.record.withdrawn) == set(range(len(self.states))) - set(live)
        assert self.record.next_version == len(self.states)
        expected = [n for n in live if self.states[n] == "live"]
        assert record_changes.readable(self.record) == expected
        # It is written and read again as it is.
        assert LineageRecord.model_validate_json(self.record.model_dump_json()) == self.record

    @invariant()
    def what_is_in_production_or_pinned_can_be_read(self) -> None:
        if not self.states:
            return
        assert self.record.format_version == FORMAT_VERSION
        newest = record_changes.newest(self.record)
        assert record_changes.resolve(self.record, None) == self.at.get("stable", newest)
        assert {record_changes.resolve(self.record, None), newest} <= self.held
        for number in (*self.at.values(), *self.pins.values(), newest):
            assert record_changes.resolve(self.record, number) == number


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
