"""Settings of the process inside a block: memory that is kept, denormals that are zero."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest
import torch

from evergram import process_settings
from evergram.process_settings import (
    CHOSEN,
    kept_memory,
    no_denormals,
    ordered_sums,
    while_training,
)

# Prints the pages that are made for twenty tensors of 64 MiB, one after the other, in a block; and
# the resident pages when all are freed, in the block and after it, beyond those before it.
PAGES = """
import resource
import torch
from evergram.process_settings import kept_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1])

torch.ones(1)
first = resident()
with kept_memory():
    for _ in range(20):  # until each finds a place that fits
        torch.ones(2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2**24)
    made = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    kept = resident() - first
print(made, kept, resident() - first)
"""
A_TENSOR = 2**26 // os.sysconf("SC_PAGE_SIZE")


def pages(**environment: str) -> tuple[int, int, int]:
    """Return what `PAGES` prints, in a process of its own."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(CHOSEN)}
    # Pages of two megabytes would be fewer.
    result = subprocess.run(
        [sys.executable, "-c", PAGES],
        env={**clean, "THP_MEM_ALLOC_ENABLE": "0", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    made, kept, left = map(int, result.stdout.split())
    return made, kept, left


@pytest.fixture
def glibc() -> None:
    if process_settings._glibc() is None:
        pytest.skip("the C library is not glibc, or its settings were chosen")


@pytest.mark.usefixtures("glibc")
def test_freed_memory_is_used_again_inside_the_block_and_given_back_after_it() -> None:
    made, kept, left = pages()
    assert made < A_TENSOR
    assert kept >= A_TENSOR
    assert left < A_TENSOR / 2


@pytest.mark.usefixtures("glibc")
def test_settings_that_somebody_chose_stay() -> None:
    made, kept, _ = pages(MALLOC_MMAP_MAX_="65536")
    assert made > 10 * A_TENSOR
    assert kept < A_TENSOR / 2


def test_the_last_of_nested_blocks_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []

    class Library:
        def mallopt(self, *arguments: int) -> int:
            calls.append(arguments)
            return 1

        def malloc_trim(self, pad: int) -> int:
            calls.append((pad,))
            return 1

    monkeypatch.setattr(process_settings, "_glibc", Library)
    with kept_memory():
        begun = len(calls)

        def inner() -> None:
            with kept_memory():
                pass

        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()
        with pytest.raises(ValueError, match="wrong"), kept_memory():
            raise ValueError("wrong")
        assert len(calls) == begun
    assert calls[-1] == (0,)
    assert calls[0] == (process_settings.MMAP_MAX, 0)
    assert (process_settings.MMAP_MAX, process_settings.USUAL_MMAP_MAX) in calls


def test_denormals_are_zero_inside_the_block_alone() -> None:
    tiny = torch.tensor([1e-310], dtype=torch.float64)
    with no_denormals():
        inside = float(tiny * 0.5)
    assert (inside, float(tiny * 0.5) > 0) == (0.0, True)


@pytest.mark.parametrize(("large", "kept"), [(8, True), (7, False)])
def test_beside_many_parameters_memory_is_given_back(
    monkeypatch: pytest.MonkeyPatch, large: int, kept: bool
) -> None:
    monkeypatch.setattr(process_settings, "LARGE", large)
    tiny = torch.tensor([1e-310], dtype=torch.float64)
    with while_training([torch.zeros(2)]):
        assert (process_settings._KEEPING.blocks == 1) is kept
        assert float(tiny * 0.5) == 0
    assert process_settings._KEEPING.blocks == 0


def test_sums_have_one_order_inside_the_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    chosen: Any = torch.utils.deterministic
    fills = chosen.fill_uninitialized_memory
    with ordered_sums():
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert not chosen.fill_uninitialized_memory
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        warnings.warn("x does not have a deterministic implementation", UserWarning, stacklevel=1)
        with ordered_sums():
            assert torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert chosen.fill_uninitialized_memory == fills
