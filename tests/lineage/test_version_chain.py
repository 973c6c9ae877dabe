"""The transforms between versions: back by the chain, forward by the published maps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.support.exact_versions import DIMS, exact_lineage, exact_version, vectors_of
from tests.support.publishing import publish_next

from evergram.errors import LineageError, UnknownVersionError
from evergram.lineage.catalog.catalog import Catalog
from evergram.lineage.lineage import Lineage
from evergram.lineage.version_chain import VersionChain


@pytest.fixture
def gap(tmp_path: Path) -> VersionChain:
    """Versions 0, 1 and 3; version 2 was withdrawn."""
    lineage = exact_lineage(tmp_path / "shop")
    publish_next(lineage, exact_version(2, 1), promote=False)
    lineage.withdraw(2, "a fault")
    publish_next(lineage, exact_version(3, 1))
    return VersionChain(Catalog.open(lineage.path))


def test_a_withdrawn_version_is_an_identity_in_the_chain(gap: VersionChain) -> None:
    whole = gap.whole
    assert [whole.dim(n) for n in range(4)] == [DIMS[0], DIMS[1], DIMS[1], DIMS[3]]
    assert torch.equal(whole.matrix(2, 1), torch.eye(DIMS[1]).double())
    read = whole.apply(vectors_of(3).double(), 3, 0)
    torch.testing.assert_close(read, vectors_of(0).double(), rtol=1e-4, atol=1e-4)


def test_the_active_chain_leaves_it_out(gap: VersionChain) -> None:
    assert gap.active.newest == 2
    torch.testing.assert_close(gap.active.matrix(2, 0), gap.whole.matrix(3, 0))


def test_a_withdrawn_step_has_no_error(gap: VersionChain) -> None:
    errors = gap.step_errors
    assert errors.keys() == {1, 2, 3}
    assert not errors[2].sigma.any()
    assert (errors[2].objects, math.isnan(errors[2].power)) == (0, True)
    assert errors[3].objects == len(vectors_of(3))


def test_forward_maps_are_multiplied_out_step_by_step(gap: VersionChain) -> None:
    forward = gap.forward(0, 3)
    steps = gap.forward(0, 1), gap.forward(1, 3)
    assert forward is not None
    assert steps[0] is not None
    assert steps[1] is not None
    vectors = vectors_of(0).double()
    between = vectors @ steps[0][0].T + steps[0][1]
    expected = between @ steps[1][0].T + steps[1][1]
    torch.testing.assert_close(vectors @ forward[0].T + forward[1], expected)
    identity = gap.forward(3, 3)
    assert identity is not None
    assert torch.equal(identity[0], torch.eye(DIMS[3]).double())


def test_forward_leads_to_a_later_version_alone(gap: VersionChain) -> None:
    with pytest.raises(LineageError, match="Version 0 is before version 1; the chain leads back"):
        gap.forward(1, 0)
    with pytest.raises(UnknownVersionError, match="withdrawn"):
        gap.forward(0, 2)


def test_the_chain_is_read_again_when_a_version_is_added(tmp_path: Path) -> None:
    lineage = Lineage.open(exact_lineage(tmp_path / "shop").path)
    first = lineage.chain
    assert lineage.chain is first
    publish_next(lineage, exact_version(2, 1))
    assert lineage.chain.newest == 2
