"""Consumers: names, pins, tokens, and the models and data of probes."""

from __future__ import annotations

import pyarrow as pa
from tests.support.bad_input.case import Case, Content, nothing, put
from tests.support.bad_input.good_files import IDS, ROWS


def probe(
    name: str,
    content: Content,
    file: str,
    model: str = "plain.onnx",
    data: str = "data.parquet",
    names: str = "",
) -> Case:
    """Return the case of a probe of which one file has this content."""
    command = f"consumer add l new --pin v0 --probe {model} --data {data}"
    return Case(name, command, names or file, put(content, file))


def model(name: str, content: Content, file: str = "bad.onnx") -> Case:
    return probe(name, content, file, model=file)


def data(name: str, content: Content, file: str = "bad.parquet", names: str = "") -> Case:
    return probe(name, content, file, data=file, names=names)


LABELS = [i % 2 == 0 for i in range(ROWS)]

CASES = [
    Case("a consumer that is there already", "consumer add l ads --pin v0", "ads"),
    Case("a consumer's name with a slash", "consumer add l a/b --pin v0", "a/b"),
    Case("a consumer without a version", "consumer add l new", "--pin"),
    Case("a pin to no version", "consumer add l new --pin v9", "no version 9"),
    Case("a pin to a label that is not there", "consumer add l new --pin gold", "gold"),
    Case("a move of nobody", "consumer pin l nobody v1", "nobody"),
    Case("a move to no version", "consumer pin l ads v9", "no version 9"),
    Case("a token of nobody", "consumer token l nobody", "nobody"),
    Case("a removal of nobody", "consumer remove l nobody", "nobody"),
    Case("probes where there is none", "consumer probe l", "l"),
    Case("a probe of nobody", "consumer probe l nobody", "nobody"),
    Case("a probe without data", "consumer add l new --pin v0 --probe plain.onnx", "--data"),
    Case("a limit without a probe", "consumer add l new --pin v0 --min 0.5", "--min"),
    Case(
        "a metric that there is not",
        "consumer add l new --pin v0 --probe plain.onnx --data data.parquet --metric f1",
        "f1",
    ),
    Case(
        "a side that has no such ids",
        "consumer add l new --pin v0 --probe plain.onnx --data data.parquet --side user",
        "user",
    ),
    Case(
        "a limit that its own version passes not",
        "consumer add l new --pin v0 --probe plain.onnx --data data.parquet --min 2",
        "2",
    ),
    Case(
        "a most of a metric that has a least",
        "consumer add l new --pin v0 --probe plain.onnx --data data.parquet --max 0.5",
        "not max",
    ),
    model("no such model of a probe", lambda p: None),
    model("a model that is no ONNX", b"nothing"),
    model("a linear model that is no .safetensors", b"x", "bad.safetensors"),
    data("data of no rows", pa.table({"id": IDS, "label": LABELS}).slice(0, 0)),
    data(
        "data of other objects",
        pa.table({"id": [f"x{i}" for i in range(ROWS)], "label": LABELS}),
    ),
    Case(
        "a record of consumers that is no JSON",
        "consumer list l",
        "consumers.json",
        put("{", "l/consumers.json"),
    ),
    Case(
        "a record of consumers of a later format",
        "consumer list l",
        "consumers.json",
        put('{"format_version": 99, "consumers": []}', "l/consumers.json"),
    ),
    Case("consumer list of no lineage", "consumer list gone", "gone", nothing),
]
