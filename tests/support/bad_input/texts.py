"""Texts and their encoders, and judgements of a migration."""

from __future__ import annotations

import pyarrow as pa
from tests.support.bad_input.case import Case, Content, nothing, put

PLAN = "vectors plan-migration old.parquet new.parquet --new-queries new.parquet"
LETTERS = "--encoder python:evergram.texts.canaries:letters"


def texts(
    name: str,
    content: Content,
    file: str = "bad.csv",
    names: str = "",
    options: str = LETTERS,
) -> Case:
    """Return the case of encoding a file of this content."""
    return Case(
        name, f"vectors encode '{file}' o.parquet {options}", names or file, put(content, file)
    )


def encoder(name: str, address: str, names: str = "") -> Case:
    """Return the case of an encoder's address."""
    return Case(
        name, f"vectors encode texts.csv o.parquet --encoder '{address}'", names or address, nothing
    )


CASES = [
    texts("no such file of texts", lambda p: None),
    texts("an empty file of texts", ""),
    texts("texts of no rows", "id,text\n"),
    texts("texts of an unknown suffix", "x", "bad.docx"),
    texts("no column of texts", "id,body\n1,a\n"),
    texts("an empty text", "id,text\n1,a\n2,\n"),
    texts("an id of a text twice", "id,text\n1,a\n1,b\n"),
    texts("an id of a text empty", "id,text\n1,a\n,b\n"),
    texts("texts in UTF-16", "id,text\n1,a\n".encode("utf-16")),
    texts("a quotation mark of texts that never ends", 'id,text\n1,a\n2,"b\n3,c\n'),
    texts("a quotation mark of a JSON line that never ends", '{"id": 1, "text": "a\n', "bad.jsonl"),
    texts("a column of texts twice", "id,text,text\n1,a,b\n"),
    texts("texts of numbers", pa.table({"id": [1], "text": [3.5]}), "bad.parquet"),
    texts("a line of JSON without a text", '{"id": 1}\n', "bad.jsonl"),
    texts("a line of JSON that is a list", "[1, 2]\n", "bad.jsonl"),
    texts(
        "lines of JSON with ids of two types",
        '{"id": 1, "text": "a"}\n{"id": "b", "text": "a"}\n',
        "bad.jsonl",
    ),
    texts(
        "lines of JSON with an id past 64 bits",
        '{"id": 99999999999999999999, "text": "a"}\n',
        "bad.jsonl",
    ),
    texts("lines of JSON with half a letter", b'{"id": 1, "text": "\\ud800"}\n', "bad.jsonl"),
    texts(
        "lines of JSON in latin-1",
        '{"id": 1, "text": "café"}\n'.encode("latin-1"),
        "bad.jsonl",
    ),
    encoder("an encoder without a kind", "minilm"),
    encoder("an encoder of nothing", "model2vec:"),
    encoder("a module that is not there", "python:no_such_module:f", "no_such_module"),
    encoder("a function that is not there", "python:evergram.texts.canaries:nothing", "nothing"),
    encoder(
        "a module without a function",
        "python:evergram.texts.canaries",
        "python:evergram.texts.canaries",
    ),
    encoder("a folder of a model that is not there", "model2vec:./gone", "gone"),
    encoder(
        "an endpoint without a model",
        "openai:http://127.0.0.1:9/v1",
        "name after the #",
    ),
    encoder("an endpoint that nobody listens at", "openai:http://127.0.0.1:9/v1#m", "127.0.0.1:9"),
    encoder("a dim that a static model has not", "wordllama:7", "7"),
    Case("no encoder", "vectors encode texts.csv o.parquet", "--encoder"),
    Case(
        "a role of another word",
        f"vectors encode texts.csv o.parquet {LETTERS} --role title",
        "title",
    ),
    Case("encoded to an unknown suffix", f"vectors encode texts.csv o.xlsx {LETTERS}", "o.xlsx"),
    Case(
        "encoded over a file that is there",
        f"vectors encode texts.csv old.parquet {LETTERS}",
        "old.parquet",
    ),
    Case(
        "encoded into a folder that is not there",
        f"vectors encode texts.csv no/o.parquet {LETTERS}",
        "no",
    ),
    Case(
        "queries of a migration that are not there",
        PLAN + " --old-queries gone.parquet",
        "gone.parquet",
    ),
    Case(
        "judgements that are not there",
        PLAN + " --old-queries old.parquet --judgements gone.tsv",
        "gone.tsv",
    ),
    Case(
        "judgements of other texts",
        PLAN + " --old-queries old.parquet --judgements j.tsv",
        "'none'",
        put("query-id\tcorpus-id\tscore\n" + "id1\tnone\t1\n" * 30, "j.tsv"),
    ),
    Case(
        "judgements of no form",
        PLAN + " --old-queries old.parquet --judgements j.tsv",
        "j.tsv",
        put("nothing\n", "j.tsv"),
    ),
]
