"""A processor without bfloat16 products is named once; one that has them never."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from evergram.tasks.partition import bfloat16_products
from evergram.tasks.partition.bfloat16_products import warn_without_bfloat16
from evergram.tasks.partition.log_partition import log_partition_sum


@pytest.fixture(autouse=True)
def not_warned_yet() -> Iterator[None]:
    warn_without_bfloat16.cache_clear()
    yield
    warn_without_bfloat16.cache_clear()


@pytest.mark.parametrize("can", [False, True])
def test_products_that_stay_float32_are_a_warning_once(
    can: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bfloat16_products, "multiplies_bfloat16", lambda device: can)
    rows = torch.eye(3)
    with caplog.at_level(logging.WARNING):
        log_partition_sum(rows, rows, torch.ones(3), 1.0)
        assert not caplog.records
        for _ in range(2):
            log_partition_sum(rows, rows, torch.ones(3), 1.0, lower_products=True)
    assert len(caplog.records) == (0 if can else 1)
    if not can:
        assert "task.products = 'bfloat16' changes nothing here: this processor" in caplog.text


def test_a_processor_says_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16_products, "machine", lambda: "x86_64")
    for name, can in (("_is_avx512_bf16_supported", True), ("_is_amx_tile_supported", False)):
        monkeypatch.setattr(torch.cpu, name, lambda can=can: can, raising=False)
    assert bfloat16_products.multiplies_bfloat16("cpu")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False, raising=False)
    assert not bfloat16_products.multiplies_bfloat16("cpu")
