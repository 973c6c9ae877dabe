"""Labels move, and versions are withdrawn and retired, each in one step."""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.dying import is_alone, run_until
from tests.support.exact_versions import DIMS, SIDE, exact_lineage, exact_version, vectors_of
from tests.support.publishing import publish_next
from torch import Tensor

from evergram.errors import (
    LineageError,
    UnknownVersionError,
)
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.lineage.record import FORMAT_VERSION, LineageRecord, Withdrawal


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 and 1."""
    return exact_lineage(tmp_path / "lineage")


def stored(lineage: Lineage) -> list[int]:
    return sorted(int(p.name) for p in (lineage.path / "embeddings").iterdir())


def pin(lineage: Lineage, **consumers: str) -> None:
    registry = ConsumerRegistry.open(lineage.path)
    for consumer in registry.list():
        registry.remove(consumer.name)
    for name, to in consumers.items():
        registry.add(name, to, lineage.resolve)


def reads(lineage: Lineage, version: int | str, source: int | None = None) -> Tensor:
    return lineage.view(version, source).embeddings(SIDE)[1]


def test_a_version_that_is_not_promoted_is_beside_the_one_in_production(lineage: Lineage) -> None:
    assert (lineage.labels, lineage.production) == ({}, 1)
    publish_next(lineage, exact_version(2, 1), promote=False)
    again = Lineage.open(lineage.path)
    for line in (lineage, again):
        assert (line.newest, line.production) == (2, 1)
        assert line.labels == {"stable": 1}
        assert line.resolve(None) == line.resolve("stable") == 1
        assert line.versions_with_embeddings == stored(line) == [1, 2]
        # Each by its own embeddings, and the older one through the chain too.
        assert torch.equal(line.embeddings(SIDE, 1)[1], vectors_of(1))
        assert torch.equal(line.embeddings(SIDE, 2)[1], vectors_of(2))
        assert torch.equal(reads(line, "stable", source=1), vectors_of(1))
        torch.testing.assert_close(reads(line, "stable"), vectors_of(1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(reads(line, 0, source=1), vectors_of(0), rtol=1e-4, atol=1e-4)
        with pytest.raises(LineageError, match=r"embeddings of version 0 .* read those of 1, 2 as"):
            line.embeddings(SIDE, 0)
        with pytest.raises(UnknownVersionError, match="map to earlier versions only"):
            line.view(2, source=1)


def test_a_label_keeps_embeddings_over_publications(lineage: Lineage) -> None:
    lineage.label("team-a", 1)
    publish_next(lineage, exact_version(2, 1))
    publish_next(lineage, exact_version(3, 2))
    assert lineage.versions_with_embeddings == stored(lineage) == [1, 3]
    lineage.unlabel("team-a")
    assert lineage.versions_with_embeddings == [1, 3]  # until the next is published
    publish_next(lineage, exact_version(4, 3))
    assert lineage.versions_with_embeddings == stored(lineage) == [4]


def test_a_withdrawn_version_leaves_its_number_and_an_identity(lineage: Lineage) -> None:
    publish_next(lineage, exact_version(2, 1), promote=False)
    fingerprint = lineage.manifest(2).fingerprint
    with pytest.raises(LineageError, match="Only the newest version, 2, can be withdrawn, not 0"):
        lineage.withdraw(0, "a fault")
    lineage.withdraw(2, "  trained on last year's data ")
    again = Lineage.open(lineage.path)
    for line in (lineage, again):
        assert (line.newest, line.production, line.next_version) == (1, 1, 3)
        assert [m.version for m in line.versions] == [0, 1]
        assert line.withdrawn[2].reason == "trained on last year's data"
        assert line.withdrawn[2].fingerprint == fingerprint
        assert line.version_of(fingerprint) == 2
        assert torch.equal(reads(line, 1), vectors_of(1))
        assert line.chain.dim(2) == DIMS[1]
        with pytest.raises(UnknownVersionError, match=r"withdrawn .trained on last year"):
            line.view(2)
        with pytest.raises(UnknownVersionError, match="withdrawn"):
            line.manifest(2)
    assert stored(lineage) == [1]
    # The next one has the next number, and leads over the gap.
    assert publish_next(again, exact_version(3, 1)) == 3
    torch.testing.assert_close(reads(again, 1), vectors_of(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(reads(again, 0), vectors_of(0), rtol=1e-4, atol=1e-4)
    assert again.active_chain.newest == 2  # steps: 0 to 1, 1 to 3
    torch.testing.assert_close(again.active_chain.matrix(2, 0), again.chain.matrix(3, 0))
    errors = again.step_errors
    assert not errors[2].sigma.any()
    assert (errors[2].objects, math.isnan(errors[2].power)) == (0, True)
    assert errors[3].objects == len(vectors_of(3))
    map_forward = again.forward(0, 3)
    assert map_forward is not None
    weight, offset = map_forward
    moved = vectors_of(0).double() @ weight.T + offset
    torch.testing.assert_close(moved, vectors_of(3).double(), rtol=1e-2, atol=1e-2)
    with pytest.raises(LineageError, match="open it again"):
        publish_next(lineage, exact_version(2, 1))


def test_the_chain_leads_through_a_retired_version_that_is_not_read(lineage: Lineage) -> None:
    lineage.label("old", 1)
    publish_next(lineage, exact_version(2, 1))
    with pytest.raises(LineageError, match="labelled old"):
        lineage.retire(1)
    lineage.unlabel("old")
    lineage.retire("v1")
    again = Lineage.open(lineage.path)
    assert (again.retired, again.readable, again.versions_with_embeddings) == ([1], [0, 2], [2])
    assert [m.version for m in again.versions] == [0, 1, 2]
    for refused in (lambda: again.view(1), lambda: again.embeddings(SIDE, 1)):
        with pytest.raises(LineageError, match="retired") as caught:
            refused()
        assert not isinstance(caught.value, UnknownVersionError)
    torch.testing.assert_close(reads(again, 0), vectors_of(0), rtol=1e-4, atol=1e-4)
    again.check()
    publish_next(again, exact_version(3, 2))
    assert stored(again) == [3]


def test_a_version_that_consumers_are_pinned_to_stays(lineage: Lineage) -> None:
    publish_next(lineage, exact_version(2, 1), promote=False)
    pin(lineage, ads="v0", search="newest", shop="stable")
    with pytest.raises(LineageError, match="search is pinned to it"):
        lineage.withdraw(2, "a fault")
    with pytest.raises(LineageError, match="ads is pinned to it"):
        lineage.retire(0)
    with pytest.raises(LineageError, match=r"'stable' .* cannot be removed; pin shop to"):
        lineage.unlabel("stable")
    pin(lineage, shop="v1")
    lineage.retire(0)
    lineage.unlabel("stable")
    with pytest.raises(LineageError, match="shop is pinned to it"):
        lineage.retire(1)
    lineage.withdraw(2, "a fault")
    assert lineage.newest == 1


def test_a_change_against_an_older_state_is_refused(lineage: Lineage) -> None:
    stale = Lineage.open(lineage.path)
    lineage.label("team-a", 0)
    before = (lineage.path / "lineage.json").read_bytes()
    changes: list[Any] = [
        lambda: stale.label("team-b", 0),
        lambda: stale.retire(0),
        lambda: stale.withdraw(1, "a fault"),
    ]
    for change in changes:
        with pytest.raises(LineageError, match="has changed since it was opened"):
            change()
    assert (lineage.path / "lineage.json").read_bytes() == before
    with FileLock(lineage.path / ".lock"), pytest.raises(LineageError, match="Another process"):
        lineage.label("team-a", 1)
    # A long training is not lost because a label was moved meanwhile; the label is kept.
    assert publish_next(stale, exact_version(2, 1), promote=False) == 2
    assert stale.labels == Lineage.open(lineage.path).labels == {"team-a": 0, "stable": 1}
    assert stale.versions_with_embeddings == [1, 2]


def withdraw_newest(path: Path, _: int) -> None:
    Lineage.open(path).withdraw("newest", "a fault")


@pytest.mark.long
def test_death_at_any_moment_of_a_withdrawal_is_before_or_after_it(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not is_alone(request):
        return
    whole = Lineage.create(tmp_path / "whole")
    publish_next(whole, exact_version(0, None))
    publish_next(whole, exact_version(1, 0), promote=False)
    ends = set()
    for operation in range(1, 100):
        path = tmp_path / str(operation)
        shutil.copytree(whole.path, path)
        killed, _ = run_until(operation, partial(withdraw_newest, path), path)
        reopened = Lineage.open(path)
        reopened.check()
        ends.add((killed, reopened.newest))
        if reopened.newest == 0:
            assert publish_next(reopened, exact_version(1, 0)) == 2
            folders = sorted(p.name for p in (reopened.path / "versions").iterdir())
            assert folders == ["0", "2"]
        if not killed:
            break
    assert ends == {(True, 1), (True, 0), (False, 0)}


def test_a_label_is_a_word_that_is_no_other_in_other_capitals(lineage: Lineage) -> None:
    lineage.label("Prod", 0)
    same = ("Stable", "NEWEST", "V1", "prod", "newest", "v1", "1")
    for name in (*same, "", "a b", "-a", "é", "a/b"):
        with pytest.raises(LineageError, match="cannot be a label"):
            lineage.label(name, 1)


WHY = Withdrawal(fingerprint="sha256:0", reason="a fault", when="2026-01-01T00:00:00+00:00")
EMPTY = LineageRecord(format_version=1, name="shop", versions=[])


def versions(number: int, **fields: object) -> LineageRecord:
    values = {"format_version": 1, "name": "shop", "versions": list(range(number))}
    return LineageRecord.model_validate({**values, **fields})


def test_a_version_is_called_by_number_label_or_newest() -> None:
    record = versions(3, labels={"stable": 1, "team-a": 0})
    called = {None: 1, 2: 2, "2": 2, "v" + "0" * 30 + "1": 1, "v0": 0, "newest": 2, "stable": 1}
    for what, number in (called | {"team-a": 0}).items():
        assert record.resolve(what) == number, what


def test_an_unknown_version_is_named_with_those_there_are() -> None:
    record = versions(3, labels={"stable": 1}, retired=[0])
    texts = ("3", "v3", "canary", "Stable", "", "v", "1.0", " 1", "9" * 5000)
    others: list[Any] = [3, -1, 1.0, 1.5, float("nan"), [], True]
    for what in (*texts, *others):
        with pytest.raises(UnknownVersionError, match=r"are: 1, 2; its labels: stable \(1\)"):
            record.resolve(what)


def test_a_record_that_contradicts_itself_is_refused() -> None:
    for damage in (
        {"versions": [0, 2]},
        {"versions": [1, 0]},
        {"versions": [0, 1], "withdrawn": {1: WHY}},
        {"versions": [0, 1], "withdrawn": {3: WHY}},
        {"versions": [0], "labels": {"stable": 1}},
        {"versions": [0], "retired": [1]},
    ):
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
        self.record = self.record.with_version(promote=promote)
        self.held = {n for n in self.held if n in self.at.values()} | {len(self.states) - 1}

    @rule(name=NAMES, number=NUMBERS)
    def label(self, name: str, number: int) -> None:
        allowed = number < len(self.states) and self.states[number] == "live"
        allowed = allowed and (name != "stable" or number in self.held)
        try:
            self.record = self.record.with_label(name, number, self.held)
        except LineageError:
            assert not allowed
        else:
            assert allowed
            self.at[name] = number

    @rule(name=NAMES)
    def unlabel(self, name: str) -> None:
        try:
            self.record = self.record.without_label(name)
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
            self.record = self.record.without_newest(WHY, self.pins, self.held)
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
            self.record = self.record.with_retired(number, self.pins)
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
        assert self.record.readable == expected
        # It is written and read again as it is.
        assert LineageRecord.model_validate_json(self.record.model_dump_json()) == self.record

    @invariant()
    def what_is_in_production_or_pinned_can_be_read(self) -> None:
        if not self.states:
            return
        assert self.record.format_version == FORMAT_VERSION
        newest = self.record.newest
        assert self.record.resolve(None) == self.at.get("stable", newest)
        assert {self.record.resolve(None), newest} <= self.held
        for number in (*self.at.values(), *self.pins.values(), newest):
            assert self.record.resolve(number) == number


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
