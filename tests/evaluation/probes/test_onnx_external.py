"""Numbers of an ONNX model in other files are noticed, wherever the model names them."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import onnx_graphs as graphs

from evergram.evaluation.probes.onnx_external import (
    DATA_LOCATION,
    EXTERNAL_DATA,
    FIELDS,
    has_external_data,
)


def test_all_ways_from_a_model_to_a_tensor_are_known() -> None:
    """Compared with the definition of ONNX itself."""
    leads = {"TensorProto"}
    kinds = vars(onnx)
    messages = {n: c.DESCRIPTOR for n, c in kinds.items() if n.endswith("Proto") and n != "Proto"}
    while True:
        more = {
            name
            for name, descriptor in messages.items()
            for field in descriptor.fields
            if field.message_type is not None and field.message_type.name in leads
        }
        if more <= leads:
            break
        leads |= more
    # A model is looked at from its beginning; a map or a sequence stands alone.
    for name in leads - {"TensorProto"}:
        wanted = {
            field.number: field.message_type.name
            for field in messages[name].fields
            if field.message_type is not None and field.message_type.name in leads
        }
        if name in FIELDS:
            assert FIELDS[name] == wanted, name
    reached = {"ModelProto"} | {kind for fields in FIELDS.values() for kind in fields.values()}
    assert reached == set(FIELDS) | {"TensorProto"}
    tensor = messages["TensorProto"].fields_by_name
    assert tensor["external_data"].number == EXTERNAL_DATA
    assert tensor["data_location"].number == DATA_LOCATION


@given(st.binary(max_size=200))
def test_bytes_that_are_no_model_end_the_looking(content: bytes) -> None:
    try:
        has_external_data(content)
    except ValueError:
        return
    assert not has_external_data(graphs.plain().SerializeToString())


def test_a_field_whose_number_some_readers_cut_off_is_refused() -> None:
    """The graph under the number 7 + 2²⁹, which is 7 in 32 bits: not looked at, but read."""
    content = graphs.external("initializer").SerializeToString()
    graph = onnx.load_from_string(content).graph.SerializeToString()
    tag = (7 << 3 | 2) + (1 << 32)
    head = bytes((tag >> shift & 0x7F) | (0x80 if shift < 28 else 0) for shift in range(0, 35, 7))
    size = len(graph)
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F])
    with pytest.raises(ValueError, match="too large"):
        has_external_data(head + length + graph)


@pytest.mark.parametrize("where", ["initializer", "attribute", "function", "subgraph"])
def test_numbers_in_other_files_are_noticed(where: str) -> None:
    assert has_external_data(graphs.external(where).SerializeToString())


def test_a_model_in_one_file_has_none() -> None:
    for model in (graphs.plain(), graphs.looping(), graphs.single()):
        assert not has_external_data(model.SerializeToString())


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_model_that_is_cut_is_refused(cut: int) -> None:
    content = graphs.plain().SerializeToString()
    with pytest.raises(ValueError, match="ends after its message"):
        has_external_data(content[: len(content) - cut])
