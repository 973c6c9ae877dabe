"""The way back as an ONNX graph: vectors [N, D_k] to vectors [N, D_j]."""

from __future__ import annotations

from pathlib import Path

from evergram.atomic_files import write_bytes
from evergram.errors import DataError
from evergram.retrieval.portable.affine_map import AffineMap

# Read by ONNX Runtime since 1.8.
OPSET, IR_VERSION = 13, 7


def write_onnx_graph(path: Path, way: AffineMap) -> None:
    """Write a graph with the input "vectors" and the output "vectors_as", float32.

    Raises: DataError: onnx is not installed.
    """
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ModuleNotFoundError:
        raise DataError("A graph needs onnx: pip install 'evergram[onnx]'.") from None

    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", dim))
        for name, dim in (("vectors", way.source_dim), ("vectors_as", way.dim))
    ]
    weights = [
        numpy_helper.from_array(array, name)
        for name, array in (("weight", way.weight), ("offset", way.offset))
    ]
    node = helper.make_node("Gemm", ["vectors", "weight", "offset"], ["vectors_as"], transB=1)
    graph = helper.make_graph([node], way.name, ends[:1], ends[1:], weights)
    model = helper.make_model(
        graph,
        producer_name="evergram",
        doc_string=way.about,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    checker.check_model(model)
    write_bytes(path, model.SerializeToString())
