"""Rates are a function of the epoch, whatever was set before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evergram.training.optimizers.rate_decay import decay_rates


def test_every_group_has_its_rate_times_the_decay_to_the_epoch() -> None:
    one, two = (nn.Parameter(torch.ones(1)) for _ in range(2))
    adam = torch.optim.Adam([{"params": [one], "lr": 0.5}, {"params": [two], "lr": 0.1}])
    for epoch in (0, 1, 4, 2):
        decay_rates([adam], 0.9, epoch)
        rates = [group["lr"] for group in adam.param_groups]
        assert rates == pytest.approx([0.5 * 0.9**epoch, 0.1 * 0.9**epoch])


def test_no_decay_changes_no_rate() -> None:
    sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.3)
    decay_rates([sgd], 1.0, 7)
    assert sgd.param_groups[0]["lr"] == 0.3
