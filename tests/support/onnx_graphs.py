"""ONNX models that no honest team would hand over."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

DIM = 64


def model_of(
    nodes: list[Any], *initializers: Any, functions: list[Any] | None = None
) -> ModelProto:
    """Return a model from x [n, DIM] to y [n, ?]."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", DIM])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(initializers),
    )
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid("own", 1)] if functions else [])]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions or [])
    model.ir_version = 8
    return model


def number(name: str, value: Any, kind: Any = np.int64) -> Any:
    return numpy_helper.from_array(np.array(value, dtype=kind), name)


def weights(name: str = "w") -> Any:
    return number(name, np.ones((DIM, 1)), np.float32)


def elsewhere(tensor: Any, location: str = "w.bin") -> Any:
    """Return the same tensor with its numbers in another file."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    return tensor


def plain() -> ModelProto:
    return model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], weights())


def looping() -> ModelProto:
    """Return a model that loops 2⁶² times."""
    carried = helper.make_graph(
        [
            helper.make_node("Identity", ["c_in"], ["c_out"]),
            helper.make_node("Add", ["v_in", "v_in"], ["v_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v_in", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("c_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v_out", TensorProto.FLOAT, None),
        ],
    )
    loop = helper.make_node("Loop", ["times", "go", "x"], ["y"], body=carried)
    return model_of([loop], number("times", 2**62), number("go", True, np.bool_))


def hungry(gib: int = 64) -> ModelProto:
    """It asks for so much memory at once, and uses it."""
    fill = helper.make_node("ConstantOfShape", ["shape"], ["huge"])
    total = helper.make_node("ReduceSum", ["huge"], ["sum"], keepdims=0)
    added = helper.make_node("Add", ["x", "sum"], ["y"])
    return model_of([fill, total, added], number("shape", [gib, 2**28]))


def single() -> ModelProto:
    """Return a model that gives one number, however many rows there are."""
    return model_of([helper.make_node("ReduceMean", ["x"], ["y"], keepdims=1, axes=[0, 1])])


def external(where: str) -> ModelProto:
    """Return a model whose weights are in another file, named by an initializer or an attribute."""
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    if where == "initializer":
        return model_of([product], elsewhere(weights()))
    if where == "attribute":
        constant = helper.make_node("Constant", [], ["w"], value=weights())
        elsewhere(constant.attribute[0].t)
        return model_of([constant, product])
    if where == "function":
        constant = helper.make_node("Constant", [], ["w"], value=weights())
        elsewhere(constant.attribute[0].t)
        opsets = [helper.make_opsetid("", 17)]
        own = helper.make_function("own", "Own", ["x"], ["y"], [constant, product], opsets)
        return model_of([helper.make_node("Own", ["x"], ["y"], domain="own")], functions=[own])
    assert where == "subgraph"
    inner = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["inner"])],
        "inner",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
        [elsewhere(weights())],
    )
    chosen = helper.make_node("If", ["yes"], ["y"], then_branch=inner, else_branch=inner)
    return model_of([chosen], number("yes", True, np.bool_))
