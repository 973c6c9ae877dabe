"""Any order of writes, reads and searches, by every kind of store and by the slow oracle."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.support.agreement import Id, as_dict, same_hits
from tests.support.dictionary_store import DictionaryStore
from tests.support.store_kinds import STORES

from evergram.stores.store import Floats, Rows, Space, Store

DIMS = {0: 3, 1: 5, 2: 2}
NUMBERS = st.lists(st.integers(0, 30), unique=True, max_size=12)


def vectors(count: int, dim: int, seed: int) -> Floats:
    drawn = np.random.default_rng(seed).standard_normal((count, dim))
    return drawn.astype(np.float32)


class Machine(RuleBasedStateMachine):
    kind: ClassVar[str]

    @initialize(id_type=st.sampled_from(["int64", "string"]))
    def start(self, id_type: str) -> None:
        self.id_type = id_type
        self.folder = Path(tempfile.mkdtemp(prefix="evergram-stateful-"))
        self.store: Store = STORES[self.kind](self.folder, id_type)
        self.oracle = DictionaryStore(id_type)
        for store in (self.store, self.oracle):
            for version, dim in DIMS.items():
                store.add_space(Space(version, dim, f"sha256:{version}"))

    def names(self, numbers: list[int]) -> list[Id]:
        return [n if self.id_type == "int64" else f"ü{n}" for n in numbers]

    def rows(self, version: int, numbers: list[int], seed: int) -> Rows:
        ids = pa.array(self.names(numbers), self.store.id_type)
        return Rows(version, ids, vectors(len(numbers), DIMS[version], seed))

    @rule(version=st.sampled_from(list(DIMS)), numbers=NUMBERS, seed=st.integers(0, 99))
    def upsert(self, version: int, numbers: list[int], seed: int) -> None:
        for store in (self.store, self.oracle):
            store.upsert(self.rows(version, numbers, seed))

    @rule(
        version=st.sampled_from(list(DIMS)),
        blocks=st.lists(NUMBERS, max_size=3),
        seed=st.integers(0, 99),
    )
    def load(self, version: int, blocks: list[list[int]], seed: int) -> None:
        for store in (self.store, self.oracle):
            rows = [self.rows(version, numbers, seed + i) for i, numbers in enumerate(blocks)]
            store.load(Space(version, DIMS[version], f"sha256:{version}"), rows)

    @rule(numbers=NUMBERS)
    def delete(self, numbers: list[int]) -> None:
        for store in (self.store, self.oracle):
            store.delete(self.names(numbers))

    @rule(numbers=NUMBERS)
    def fetch(self, numbers: list[int]) -> None:
        asked = self.names(numbers)
        assert as_dict(self.store.fetch(asked)) == as_dict(self.oracle.fetch(asked))

    @rule(
        versions=st.sets(st.sampled_from(list(DIMS)), min_size=1),
        k=st.integers(1, 40),
        among=st.none() | NUMBERS,
        seed=st.integers(0, 99),
    )
    def search(self, versions: set[int], k: int, among: list[int] | None, seed: int) -> None:
        queries = {v: vectors(2, DIMS[v], seed) for v in sorted(versions)}
        ids = None if among is None else self.names(among)
        same_hits(self.store, self.oracle, queries, k, ids=ids)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = STORES[self.kind](self.folder, self.id_type)

    @rule()
    def build_index(self) -> None:
        self.store.build_index()

    @invariant()
    def holds_the_same(self) -> None:
        if hasattr(self, "store"):
            assert self.store.count() == self.oracle.count()
            assert as_dict(self.store.scan(size=7)) == as_dict(self.oracle.scan())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind for kind in STORES if kind != "dictionary"])
def test_any_order(kind: str) -> None:
    machine = type(f"Machine_{kind}", (Machine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
