"""A loader for Amazon reviews in the formats of McAuley's group: JSON lines or columns."""

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
    """Yield a table with the columns of `schema` for each block of lines; other keys are skipped.

    Arrow parses the blocks. A block that it rejects (Python literals, a key with several types, an
    error) is read again line by line.

    Args:
        path: one object per line; empty lines are skipped.
        schema: keys and their types; keys that are not nullable are required.
        convert: returns the values of an object by name, or raises ValueError with the problem;
            called only for blocks that Arrow rejects.
    Raises: DataError: the file or a line is damaged; the error gives the line number.
    """
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    for first, block in blocks(path):
        try:
            table = arrow_json.read_json(pa.BufferReader(block), parse_options=options)
            table = table.select(schema.names).cast(schema)  # restore "not null"
            table.validate(full=True)  # the parser does not check UTF-8
        except pa.ArrowException:
            table = None
        if table is not None and _is_sound(table):
            yield table
            continue
        # Python literals, a type that Arrow does not accept, or an error to be reported by line.
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
    """Return True if no id is empty and no rating is NaN; Arrow accepts both."""
    return all(
        not pc.any(pc.equal(column, "")).as_py()
        if pa.types.is_string(column.type)
        else not pa.types.is_floating(column.type) or pc.all(pc.is_finite(column)).as_py()
        for column, field in zip(table.columns, table.schema, strict=True)
        if not field.nullable
    )


def _record(line: bytes) -> dict[str, Any]:
    """Parse the object on a line. Raises: ValueError: the line is not an object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        try:
            with warnings.catch_warnings():  # ignore warnings about invalid escapes
                warnings.simplefilter("ignore")
                record = ast.literal_eval(line.decode())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            record = None
    if not isinstance(record, dict):
        raise ValueError(f"the line is {short(line)}; it must be one whole JSON object")
    return record


def read_lines(path: Path) -> list[str]:
    """Return all lines of a small file. Raises: DataError: a line is damaged, with its number."""
    lines: list[str] = []
    for first, block in blocks(path):
        try:
            lines += block.decode().split("\n")
        except UnicodeDecodeError as error:
            row = first + block[: error.start].count(b"\n")
            raise DataError(f"{path} row {row} is not UTF-8; fetch the file again.") from error
    return lines


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines of a file, gzipped or not, with the number of the first line."""
    row, block = 1, bytearray()
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.GzipFile(path) if zipped else path.open("rb") as stream:
            # read1 returns all bytes before damaged data, so its line number is known.
            while piece := stream.read1(BLOCK):
                block += piece
                if len(block) < BLOCK:
                    continue
                end = block.rfind(b"\n")
                if end < 0:
                    raise DataError(
                        f"{path} row {row} is longer than {BLOCK >> 20} MiB; write one object per "
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
    """Return a value for an error message, truncated to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz")
IN_COLUMNS = "events.tsv.gz"  # in the folder of Beauty in columns
LARGEST = 2**53  # floats cannot represent all integers above it

# Arrow rejects rows without a key that is not nullable, and skips keys that are not listed.
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
    """Load reviewers as queries, products (asin) as candidates, and ratings as values.

    With metadata, the candidate features are `brand` and `category`, both bags.

    Args:
        path: a file of reviews, one object per line, in the format of 2014 or 2018, gzipped or not;
            or a folder with such a file and optionally metadata in a file named `meta…`; or the
            folder of Beauty in columns (`events.tsv.gz`), which has no ratings.
        minimum_products: leave out brands and categories with fewer reviewed products; 5 in [BC]'s
            code.
        described_only: if there is metadata, leave out reviews of products without metadata, as in
            [BC]'s code.
    Raises: DataError: there are no reviews, or a file is damaged; the error gives the line number.
    Source: R. He, J. McAuley, "Ups and downs", WWW 2016 (2014 format); J. Ni et al., "Justifying
        recommendations using distantly-labeled reviews", EMNLP 2019 (2018 format).
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
    """Return the file of reviews and the file of metadata, or None if there is no metadata.

    Raises: DataError: the folder does not have exactly one file of reviews, or has several of
        metadata.
    """
    if not path.is_dir():
        return path, None
    files = sorted(f for f in path.iterdir() if f.name.endswith(SUFFIXES) and f.is_file())
    reviews = [f for f in files if not f.name.startswith("meta")]
    products = [f for f in files if f.name.startswith("meta")]
    if len(reviews) != 1 or len(products) > 1:
        names = ", ".join(f.name for f in files) or "none"
        raise DataError(
            f"{path} must contain one file of reviews ({', '.join(SUFFIXES)}) and at most one of "
            f"metadata (meta…), but contains {names}; give the file of reviews itself."
        )
    return reviews[0], next(iter(products), None)


def _features(metadata: Path, ids: pa.Array) -> pa.Table:
    """Return the features of the products in `ids`, and log the number of repeated products.

    Each line is JSON or, in 2014, a Python dictionary; `category` (2018) is a list, `categories`
    (2014) a list of lists, which are concatenated. A product's first line counts. HTML entities
    are decoded and spaces normalised; empty keys and keys with HTML tags are left out.

    Args:
        metadata: one product per line, gzipped or not.
        ids: the products to keep, strings.
    Returns: a table with `id`, and lists of strings `brand` and `category`.
    Raises: DataError: the file is damaged (with the line number), or contains none of `ids`.
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
            f"{metadata} has none of the reviewed products; give the metadata of these reviews."
        )
    if repeated:
        logging.getLogger(__name__).info(
            "%s: %d rows repeat a product; the first row is used.", metadata, repeated
        )
    return pa.Table.from_pylist(list(rows.values()), FEATURES)


def _features_in_columns(folder: Path) -> pa.Table | None:
    """Return Beauty's features; line n of `brand_p_b` has the lines of `brand` for product n."""
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
    """Return the features without keys that occur in fewer than `minimum` of the products `ids`."""
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
    """Return the distinct, cleaned keys in a string or in nested lists."""
    keys = (" ".join(html.unescape(text).split()) for text in _strings(value))
    return list(dict.fromkeys(key for key in keys if key and not MARKUP.search(key)))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for part in value:
            yield from _strings(part)
    elif isinstance(value, str):
        yield value.encode(errors="replace").decode()  # JSON can contain lone surrogates


def _review(review: dict[str, Any]) -> dict[str, Any]:
    for name in ("reviewerID", "asin"):
        _check_id(review, name)
    for name, kinds, wanted in NUMBERS:
        value = review.get(name)
        # This comparison is False for NaN. In Python, a boolean is an int.
        if not isinstance(value, kinds) or isinstance(value, bool) or not abs(value) <= LARGEST:
            raise ValueError(f"{name} is {short(value)}; it must be {wanted}")
    return review


def _product(product: dict[str, Any]) -> dict[str, Any]:
    """Return a product with the same types as a block parsed by Arrow."""
    _check_id(product, "asin")
    return {
        "asin": product["asin"],
        "brand": next(_strings(product.get("brand")), None),
        "category": list(_strings([product.get("category"), product.get("categories")])),
    }


def _check_id(record: dict[str, Any], name: str) -> None:
    value = record.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {short(value)}; it must be a non-empty string")
    value.encode()  # raises ValueError for lone surrogates
