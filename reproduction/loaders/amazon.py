"""The loader of Amazon reviews in the layouts of McAuley's group: JSON lines or columns."""

from __future__ import annotations

import ast
import gzip
import html
import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from evergram.data.corpus import Corpus
from evergram.data.reading.files import DAMAGED
from evergram.data.tables import read_interactions
from evergram.errors import DataError

BLOCK = 8 << 20  # bytes of text in memory at once; a row may not be longer


def read_objects(
    path: Path, schema: pa.Schema, convert: Callable[[dict[str, Any]], dict[str, Any]]
) -> Iterator[pa.Table]:
    """Yield a table of the columns of `schema` for each block of lines; other keys are skipped.

    Arrow reads the blocks. A block that it refuses (Python literals, a key of several types, a
    fault) is read again line by line.

    Args:
        path: one object a line; empty lines are skipped.
        schema: keys and their types; a row must have those that are not nullable.
        convert: returns the values of an object by name, or raises a ValueError that says what is
            wrong; it is called only for the objects of blocks that Arrow refuses.
    Raises: DataError: the file or a line of it is damaged; the error names the row, its line.
    """
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    for first, block in blocks(path):
        try:
            table = arrow_json.read_json(pa.BufferReader(block), parse_options=options)
            table = table.select(schema.names).cast(schema)  # Arrow forgets "not null"
            table.validate(full=True)  # its parser lets broken UTF-8 pass
        except pa.ArrowException:
            table = None
        if table is not None and _is_sound(table):
            yield table
            continue
        # Python literals, a type that Arrow does not take, or a fault whose row is to be named.
        rows = []
        for row, line in enumerate(block.split(b"\n"), first):
            if not line.strip():
                continue
            try:
                rows.append(convert(_record(line)))
            except ValueError as error:
                raise DataError(f"{path} row {row}: {error}; correct or remove it.") from error
        yield pa.Table.from_pylist(rows, schema)


def _is_sound(table: pa.Table) -> bool:
    """Return True if no id is empty and no rating is NaN, which Arrow accepts."""
    return all(
        not pc.any(pc.equal(column, "")).as_py()
        if pa.types.is_string(column.type)
        else not pa.types.is_floating(column.type) or pc.all(pc.is_finite(column)).as_py()
        for column, field in zip(table.columns, table.schema, strict=True)
        if not field.nullable
    )


def _record(line: bytes) -> dict[str, Any]:
    """Return the object of a line. Raises: ValueError: the line is not one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        try:
            with warnings.catch_warnings():  # of odd escapes in strings
                warnings.simplefilter("ignore")
                record = ast.literal_eval(line.decode())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            record = None
    if not isinstance(record, dict):
        raise ValueError(f"the line is {short(line)}; it must be one whole JSON object")
    return record


def read_lines(path: Path) -> list[str]:
    """Return all lines of a small file. Raises: DataError: a row, which it names, is damaged."""
    lines: list[str] = []
    for first, block in blocks(path):
        try:
            lines += block.decode().split("\n")
        except UnicodeDecodeError as error:
            row = first + block[: error.start].count(b"\n")
            raise DataError(f"{path} row {row} is not UTF-8; fetch the file again.") from error
    return lines


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines of a file, gzipped or not, and the row of the first of them."""
    row, block = 1, bytearray()
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.GzipFile(path) if zipped else path.open("rb") as stream:
            # read1 returns all bytes before a damaged place, so the row of the damage is known.
            while piece := stream.read1(BLOCK):
                block += piece
                if len(block) < BLOCK:
                    continue
                end = block.rfind(b"\n")
                if end < 0:
                    raise DataError(
                        f"{path} row {row} is longer than {BLOCK >> 20} MiB; write one object a "
                        "line."
                    )
                yield row, bytes(block[:end])
                row += block.count(b"\n")
                del block[: end + 1]
    except DAMAGED as error:
        row += block.count(b"\n")
        raise DataError(
            f"{path} row {row} cannot be read: {str(error).rstrip('.')}; fetch the file again."
        ) from error
    if block:
        yield row, bytes(block.removesuffix(b"\n"))


def short(value: Any) -> str:
    """Return a value for an error, cut after 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz")
IN_COLUMNS = "events.tsv.gz"  # of the folder of Beauty in columns
LARGEST = 2**53  # beyond it a float skips integers

# Arrow refuses a row that lacks a key that is not nullable, and skips keys that are not here.
REVIEW = pa.schema(
    [
        pa.field("reviewerID", pa.string(), nullable=False),
        pa.field("asin", pa.string(), nullable=False),
        pa.field("overall", pa.float64(), nullable=False),
        pa.field("unixReviewTime", pa.int64(), nullable=False),
    ]
)
PRODUCT = pa.schema(
    [
        pa.field("asin", pa.string(), nullable=False),
        pa.field("brand", pa.string()),
        pa.field("category", pa.list_(pa.string())),  # 2018
        pa.field("categories", pa.list_(pa.list_(pa.string()))),  # 2014
    ]
)
ROLES = ["query", "candidate", "value", "time"]
BAG = pa.list_(pa.string())
FEATURES = pa.schema([("id", pa.string()), ("brand", BAG), ("category", BAG)])
EVENT = {"query": "user", "candidate": "item", "time": "unix_time"}
NUMBERS = (
    ("overall", (int, float), "a number"),
    ("unixReviewTime", (int,), "a whole number of seconds"),
)
MARKUP = re.compile(r"<[a-zA-Z/!]")


def load_amazon(
    path: Path,
    *,
    minimum_products: int = 1,
    described_only: bool = False,
) -> Corpus:
    """Return reviewers as queries, products (their asin) as candidates, and ratings as values.

    With metadata, the candidate features are `brand` and `category`, both bags.

    Args:
        path: a file of reviews, one object a line, in the layout of 2014 or of 2018, gzipped or
            not; or a folder with one, and perhaps its metadata in a file named `meta…`; or the
            folder of Beauty in columns (`events.tsv.gz`), which has no ratings.
        minimum_products: leave out brands and categories that fewer of the reviewed products have;
            [BC]'s code has 5.
        described_only: leave out reviews of products that the metadata lacks, if there is any, as
            [BC]'s code does.
    Raises: DataError: there are no reviews, or a file is damaged; the error names the row.
    Source: R. He, J. McAuley, "Ups and downs", WWW 2016 (2014 layout); J. Ni et al., "Justifying
        recommendations using distantly-labeled reviews", EMNLP 2019 (2018 layout).
    """
    if not path.exists():
        raise DataError(f"There is no file or folder {path}; correct the path.")
    features = None
    source = path / IN_COLUMNS
    if source.is_file():
        table = read_interactions(source, EVENT)
        features = _features_in_columns(path)
    else:
        source, metadata = _files(path)
        tables = [REVIEW.empty_table(), *read_objects(source, REVIEW, _review)]
        table = pa.concat_tables(tables).rename_columns(ROLES)
        if metadata is not None:
            features = _features(metadata, pc.unique(table["candidate"]))
    if not len(table):
        raise DataError(f"{source} has no rows; at least one interaction is needed.")
    if features is not None and described_only:
        table = table.filter(pc.is_in(table["candidate"], value_set=features["id"]))
    if features is not None and minimum_products > 1:
        features = _frequent(features, pc.unique(table["candidate"]), minimum_products)
    return Corpus.of(table, candidate_features=features)


def _files(path: Path) -> tuple[Path, Path | None]:
    """Return the file of reviews, and in a folder its file of metadata, if there is one.

    Raises: DataError: the folder has not one file of reviews, or several of metadata.
    """
    if not path.is_dir():
        return path, None
    files = sorted(f for f in path.iterdir() if f.name.endswith(SUFFIXES) and f.is_file())
    reviews = [f for f in files if not f.name.startswith("meta")]
    products = [f for f in files if f.name.startswith("meta")]
    if len(reviews) != 1 or len(products) > 1:
        names = ", ".join(f.name for f in files) or "none"
        raise DataError(
            f"{path} must hold one file of reviews ({', '.join(SUFFIXES)}) and at most one of "
            f"metadata (meta…), and holds {names}; give the file of reviews itself."
        )
    return reviews[0], next(iter(products), None)


def _features(metadata: Path, ids: pa.Array) -> pa.Table:
    """Return the products of a file that are among `ids`, and log how many rows repeat one.

    Each line is strict JSON or, as in 2014, a Python dictionary; `category` (2018) is a list,
    `categories` (2014) a list of lists, laid end to end. A product's first row counts. Keys lose
    HTML entities and needless spaces; empty ones, and those with HTML tags, are left out.

    Args:
        metadata: one product a line, gzipped or not.
        ids: the products to keep, strings.
    Returns: a table with `id`, `brand` and `category`, lists of strings.
    Raises: DataError: the file is damaged (the row is named), or has none of `ids`.
    """
    wanted: set[str] = set(ids.to_pylist())
    rows: dict[str, dict[str, Any]] = {}
    repeated = 0
    for table in read_objects(metadata, PRODUCT, _product):
        kept = table.filter(pa.array([a in wanted for a in table["asin"].to_pylist()], pa.bool_()))
        for product in kept.to_pylist():
            asin = product["asin"]
            if asin in rows:
                repeated += 1
                continue
            category = [product["category"], product["categories"]]
            brand = _keys(product["brand"])
            rows[asin] = {"id": asin, "brand": brand, "category": _keys(category)}
    if wanted and not rows:
        raise DataError(
            f"{metadata} has none of the products reviewed; give the metadata of the same."
        )
    if repeated:
        logging.getLogger(__name__).info(
            "%s: %d rows repeat a product; the first of each counts.", metadata, repeated
        )
    return pa.Table.from_pylist(list(rows.values()), FEATURES)


def _features_in_columns(folder: Path) -> pa.Table | None:
    """Return Beauty's features: line n of `brand_p_b` lists lines of `brand` for product n."""
    source = folder / "product.txt.gz"
    if not source.is_file():
        return None
    columns: dict[str, list[Any]] = {"id": read_lines(source)}
    for name in ("brand", "category"):
        keys = [_keys(line) for line in read_lines(folder / f"{name}.txt.gz")]
        places = folder / f"{name}_p_{name[0]}.txt.gz"
        columns[name] = []
        for row, line in enumerate(read_lines(places), 1):
            words = line.split()
            if not all(word.isdecimal() and int(word) < len(keys) for word in words):
                raise DataError(
                    f"{places} row {row}: the line is {line[:60]!r}; it must be numbers from 0 to "
                    f"{len(keys) - 1}, the lines of {name}.txt.gz, or empty."
                )
            columns[name].append([key for word in words for key in keys[int(word)]])
        if len(columns[name]) != len(columns["id"]):
            raise DataError(
                f"{places} has {len(columns[name])} rows; it must have {len(columns['id'])}, one "
                f"for each of {source.name}."
            )
    return pa.table(columns, FEATURES)


def _frequent(features: pa.Table, ids: pa.Array, minimum: int) -> pa.Table:
    """Return the features without keys that fewer than `minimum` of the products `ids` have."""
    reviewed = features.filter(pc.is_in(features["id"], value_set=ids))
    for name in ("brand", "category"):
        counts = Counter(key for bag in reviewed[name].to_pylist() for key in bag)
        bags = [
            [key for key in bag if counts[key] >= minimum] for bag in features[name].to_pylist()
        ]
        column = features.column_names.index(name)
        features = features.set_column(column, FEATURES.field(name), pa.array(bags, BAG))
    return features


def _keys(value: Any) -> list[str]:
    """Return the keys in a string or in nested lists, cleaned, each once."""
    keys = (" ".join(html.unescape(text).split()) for text in _strings(value))
    return list(dict.fromkeys(key for key in keys if key and not MARKUP.search(key)))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for part in value:
            yield from _strings(part)
    elif isinstance(value, str):
        yield value.encode(errors="replace").decode()  # JSON can escape half a character


def _review(review: dict[str, Any]) -> dict[str, Any]:
    for name in ("reviewerID", "asin"):
        _check_id(review, name)
    for name, kinds, wanted in NUMBERS:
        value = review.get(name)
        # Written so that NaN fails; a boolean is an int to Python.
        if not isinstance(value, kinds) or isinstance(value, bool) or not abs(value) <= LARGEST:
            raise ValueError(f"{name} is {short(value)}; it must be {wanted}")
    return review


def _product(product: dict[str, Any]) -> dict[str, Any]:
    """Return a product with the types that a block read by Arrow has."""
    _check_id(product, "asin")
    return {
        "asin": product["asin"],
        "brand": next(_strings(product.get("brand")), None),
        "category": list(_strings([product.get("category"), product.get("categories")])),
    }


def _check_id(record: dict[str, Any], name: str) -> None:
    value = record.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {short(value)}; it must be a string that is not empty")
    value.encode()  # raises a ValueError where half a character was escaped
