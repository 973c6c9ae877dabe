"""Counters stay on the host when an estimator moves, and are saved and read as before."""

from __future__ import annotations

import pytest
import torch

from evergram.gramian.averaging_rate import AveragingRate
from evergram.gramian.host_buffers import HostBuffers
from evergram.gramian.sagram import SAGram
from evergram.gramian.sogram import SOGram
from evergram.gramian.storm import Storm


def test_counters_stay_and_all_else_moves() -> None:
    rate = AveragingRate(torch.Size([2, 2]), "auto")
    share = torch.full((3,), 1 / 3)
    for module in (SOGram(2), Storm(2), SAGram(2, share), rate):
        module.to("meta")
        for part in module.modules():
            assert isinstance(part, HostBuffers)
            for name, buffer in part.named_buffers(recurse=False):
                assert (buffer.device.type == "cpu") == (name in part.on_host), name
                assert not (name in part.on_host and buffer.ndim)


def test_counters_are_part_of_the_state() -> None:
    one, other = (AveragingRate(torch.Size([1, 1]), 0.5, decay=0.5) for _ in range(2))
    one.skip()
    one.skip()
    other.to(torch.float64).load_state_dict(one.state_dict())
    assert int(other.steps) == 2
    assert float(other()) == float(one()) == pytest.approx(0.5 * 3**-0.5)
