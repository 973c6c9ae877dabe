"""A past version by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.lineages import DIMS, read_as, vectors_of
from tests.support.publishing import publish_next
from tests.support.real_text_encoders import need
from tests.support.without_evergram import elsewhere

from evergram.compatibility.transforms import LinearTransform, ResidualMLPTransform
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.retrieval.portable.formats import export_transform

CODE = """
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
(read,) = session.run(["vectors_as"], {"vectors": np.load(sys.argv[2])})
np.save(sys.argv[3], read)
"""


def run(graph: Path, vectors: np.ndarray) -> np.ndarray:
    """Return vectors as a graph reads them, in a Python without Evergram."""
    source, out = graph.with_name("new.npy"), graph.with_name("old.npy")
    np.save(source, vectors)
    elsewhere(CODE, graph, source, out)
    return np.asarray(np.load(out))


def test_onnx_reads_without_evergram(lineage: Lineage, tmp_path: Path) -> None:
    need("onnx", "onnxruntime")
    import onnx

    path = tmp_path / "way.onnx"
    export_transform(lineage, path, "onnx", 0)
    read = run(path, vectors_of(2).numpy())
    np.testing.assert_allclose(read, read_as(2, 0).numpy(), rtol=1e-5, atol=1e-5)
    # Affine transforms that follow each other are one product.
    assert [node.op_type for node in onnx.load(path).graph.node] == ["Gemm"]


def test_the_version_itself_is_read_as_it_is(lineage: Lineage, tmp_path: Path) -> None:
    need("onnx", "onnxruntime")
    export_transform(lineage, tmp_path / "way.onnx", "onnx", 2)
    np.testing.assert_array_equal(
        run(tmp_path / "way.onnx", vectors_of(2).numpy()), vectors_of(2).numpy()
    )


@pytest.mark.parametrize("last", [True, False], ids=["it is the newest", "an affine one follows"])
def test_a_residual_step_is_in_the_graph(lineage: Lineage, tmp_path: Path, last: bool) -> None:
    need("onnx", "onnxruntime")
    draw = torch.Generator().manual_seed(0)
    bent = ResidualMLPTransform(DIMS[2], 12, draw, hidden=7)
    for part in (bent.outer.weight, bent.outer.bias, bent.inner.bias):
        torch.nn.init.normal_(part, generator=draw)
    rows = torch.randn(300, 12, generator=draw)
    ids = lineage.embeddings("object")[0]
    metrics: dict[str, Any] = {"metrics": {"model": {}}}
    publish_next(lineage, Artefact(12, {"object": (ids, rows)}, bent, metrics, {}))
    if not last:
        turn = LinearTransform.from_matrix(torch.eye(12)[:, torch.randperm(12, generator=draw)])
        publish_next(lineage, Artefact(12, {"object": (ids, rows)}, turn, metrics, {}))
    export_transform(lineage, tmp_path / "way.onnx", "onnx", 0)
    # In NumPy and float64, transform by transform.
    with torch.no_grad():
        w, u, a, v, b = (
            part.numpy().astype(np.float64)
            for layer in (bent, bent.inner, bent.outer)
            for part in layer.parameters(recurse=False)
        )
    x = rows.numpy().astype(np.float64)
    if not last:
        x = x @ turn.weight.detach().numpy().T
    old = x @ w.T + np.maximum(x @ u.T + a, 0) @ v.T + b
    for version in (2, 1):  # as tests/support/lineages.py makes them
        old = old[:, : DIMS[version - 1]] * version / (version + 1) + 0.1 * version
    read = run(tmp_path / "way.onnx", rows.numpy())
    np.testing.assert_allclose(read, old, rtol=1e-4, atol=1e-4)
    lengths = np.linalg.norm(read, axis=1) * np.linalg.norm(old, axis=1)
    assert ((read * old).sum(axis=1) / lengths).min() >= 0.999999
