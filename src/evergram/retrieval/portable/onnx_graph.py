"""The way back as an ONNX graph: vectors [N, D_k] to vectors [N, D_j]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evergram.atomic_files import write_bytes
from evergram.errors import DataError
from evergram.retrieval.portable.map_steps import AffineStep, MapSteps, Matrix

# Read by ONNX Runtime since 1.8.
OPSET, IR_VERSION = 13, 7
INPUT, OUTPUT = "vectors", "vectors_as"


def write_onnx_graph(path: Path, way: MapSteps) -> None:
    """Write a graph with the input "vectors" and the output "vectors_as", float32.

    Affine transforms that follow each other are one node; one of kind residual_mlp is five.

    Raises: DataError: onnx is not installed.
    """
    try:
        from onnx import TensorProto, checker, helper
    except ModuleNotFoundError:
        raise DataError("A graph needs onnx: pip install 'evergram[onnx]'.") from None

    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", dim))
        for name, dim in ((INPUT, way.source_dim), (OUTPUT, way.dim))
    ]
    nodes, weights = _nodes(way)
    graph = helper.make_graph(nodes, way.name, ends[:1], ends[1:], weights)
    model = helper.make_model(
        graph,
        producer_name="evergram",
        doc_string=way.about,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    checker.check_model(model)
    write_bytes(path, model.SerializeToString())


def _nodes(way: MapSteps) -> tuple[list[Any], list[Any]]:
    """Return the nodes of all steps and their tensors; the last node's output is the graph's."""
    from onnx import helper, numpy_helper

    nodes: list[Any] = []
    tensors: list[Any] = []

    def product(source: str, name: str, weight: Matrix, offset: Matrix | None) -> str:
        arrays = {f"{name}_weight": weight}
        if offset is not None:
            arrays[f"{name}_offset"] = offset
        tensors.extend(numpy_helper.from_array(array, key) for key, array in arrays.items())
        nodes.append(helper.make_node("Gemm", [source, *arrays], [name], transB=1))
        return name

    last = INPUT
    for number, step in enumerate(way.steps, 1):
        name = OUTPUT if number == len(way.steps) else f"step_{number}"
        if isinstance(step, AffineStep):
            last = product(last, name, step.weight, step.offset)
            continue
        straight = product(last, f"{name}_straight", step.weight, None)
        hidden = product(last, f"{name}_inner", step.inner.weight, step.inner.offset)
        nodes.append(helper.make_node("Relu", [hidden], [f"{name}_relu"]))
        bent = product(f"{name}_relu", f"{name}_outer", step.outer.weight, step.outer.offset)
        nodes.append(helper.make_node("Add", [straight, bent], [name]))
        last = name
    return nodes, tensors
