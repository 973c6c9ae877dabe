"""Settings of the process inside a block, its spans, and its share of rows."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evergram import process_settings, tracing
from evergram.collectives import Collectives
from evergram.process_settings import (
    CHOSEN,
    no_denormals,
    ordered_sums,
)
from evergram.tracing import span, trace_with

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


def test_denormals_are_zero_inside_the_block_alone() -> None:
    tiny = torch.tensor([1e-310], dtype=torch.float64)
    with no_denormals():
        inside = float(tiny * 0.5)
    assert (inside, float(tiny * 0.5) > 0) == (0.0, True)


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


def test_a_provider_gets_spans_until_it_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs evergram[telemetry]")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    monkeypatch.setattr(tracing, "_tracer", None)
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace_with(provider)
    with span("beside all requests"):
        pass
    with provider.get_tracer("a caller's").start_as_current_span("request"):
        with span("outer", rows=3), span("inner"):
            pass
        trace_with(None)
        with span("unseen"):
            pass
    inner, outer, request = kept.get_finished_spans()
    assert [s.name for s in (inner, outer, request)] == [
        "evergram.inner", "evergram.outer", "request",
    ]  # fmt: skip
    assert dict(outer.attributes) == {"evergram.rows": 3}
    assert inner.parent.span_id == outer.context.span_id
    assert outer.parent.span_id == request.context.span_id


@given(st.integers(0, 200), st.integers(1, 9))
def test_shares_are_all_rows_once_and_in_order(count: int, size: int) -> None:
    rows: list[int] = []
    for rank in range(size):
        collectives = Collectives()
        collectives.rank, collectives.size = rank, size
        place = collectives.share(count)
        mine = range(count)[place]
        assert len(mine) == collectives.counts(count)[rank]
        rows += mine
    assert rows == list(range(count))
    sizes = collectives.counts(count)
    assert max(sizes) - min(sizes) <= 1
