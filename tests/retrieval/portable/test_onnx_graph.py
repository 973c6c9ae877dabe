"""A past version by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.support.lineages import read_as, vectors_of
from tests.support.real_text_encoders import need
from tests.support.without_evergram import elsewhere

from evergram.lineage.lineage import Lineage
from evergram.retrieval.portable.formats import export_transform


def test_onnx_reads_without_evergram(lineage: Lineage, tmp_path: Path) -> None:
    need("onnx", "onnxruntime")
    path = tmp_path / "way.onnx"
    export_transform(lineage, path, "onnx", 0)
    np.save(tmp_path / "new.npy", vectors_of(2).numpy())
    code = """
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
(read,) = session.run(["vectors_as"], {"vectors": np.load(sys.argv[2])})
np.save(sys.argv[3], read)
"""
    elsewhere(code, path, tmp_path / "new.npy", tmp_path / "old.npy")
    read = np.load(tmp_path / "old.npy")
    np.testing.assert_allclose(read, read_as(2, 0).numpy(), rtol=1e-5, atol=1e-5)
