"""Each source file with logic has a test file of its name, in the same folder of tests/.

And no name in the package is one that says nothing, such as `found`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evergram"
FILES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
Function = ast.FunctionDef | ast.AsyncFunctionDef
# Files with logic that need no test file of their name, each with the reason.
TESTED_ELSEWHERE: dict[str, str] = {
    "serving/http/call.py": "two records; the routes that pass them on are tested",
}
# Names that say nothing about what they hold, which no file may bind.
EMPTY_NAMES = {"found", "told", "given"}


def mirrored(path: Path) -> Path:
    """Return where a file is tested: `stores/rows.py` in `tests/stores/test_rows.py`."""
    inside = path.relative_to(SOURCE)
    return ROOT / "tests" / inside.parent / f"test_{inside.name}"


def behaves(source: str) -> bool:
    """Return whether a file has logic: a function or method that computes something.

    Schemas, exceptions, constants, protocols and abstract methods do not.
    """
    tree = ast.parse(source)
    return any(computes(node) for node in ast.walk(tree) if isinstance(node, Function))


def computes(function: Function) -> bool:
    """Return whether a function does more than declare, or hand on a value that is there."""
    body = [node for node in function.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    if ast.get_docstring(function) is not None:
        body = body[1:]
    match body:
        case [] | [ast.Pass()] | [ast.Expr(ast.Constant())] | [ast.Return(None)]:
            return False
        case [ast.Raise(ast.expr() as error)]:
            return "NotImplementedError" not in ast.unparse(error)
        case [ast.Return(ast.expr() as value)] | [ast.Assign(value=value)]:
            return not is_there(value)
    return True


def is_there(value: ast.expr) -> bool:
    """Return whether an expression is a constant, a name or an attribute, or a tuple of these."""
    match value:
        case ast.Constant() | ast.Name():
            return True
        case ast.Attribute(value=owner):
            return is_there(owner)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(map(is_there, parts))
    return False


def bound_names(tree: ast.AST) -> Iterator[str | None]:
    """Yield the names that a file gives to variables, parameters, attributes and functions."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name) | ast.alias(asname=name) | ast.ExceptHandler(name=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                yield name
            case ast.MatchMapping(rest=name):
                yield name


def inside(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


# A table of kinds is tested as a whole: tests/test_kinds.py takes every kind of every room.
BEHAVING = [p for p in FILES if p.name != "kinds.py" and behaves(p.read_text())]
BINDING = [p for p in FILES if EMPTY_NAMES & set(bound_names(ast.parse(p.read_text())))]


@pytest.mark.parametrize("path", BEHAVING, ids=inside)
def test_a_file_that_behaves_has_a_test_file_of_its_name(path: Path) -> None:
    if inside(path) not in TESTED_ELSEWHERE:
        place = mirrored(path).relative_to(ROOT)
        assert mirrored(path).is_file(), f"write {place}, or say in TESTED_ELSEWHERE why not"


def test_no_exception_outlives_its_reason() -> None:
    needed = {inside(path) for path in BEHAVING if not mirrored(path).is_file()}
    assert {*TESTED_ELSEWHERE} - needed == set(), "strike these out"


def test_every_name_says_what_it_holds() -> None:
    assert [inside(path) for path in BINDING] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class A(Exception):\n    'It failed.'", False),
        ("class A(BaseModel):\n    size: int = 3\n    model_config = ConfigDict()", False),
        ("class A(Protocol):\n    def f(self) -> int: ...", False),
        ("class A:\n    @abstractmethod\n    def f(self):\n        'Return f.'", False),
        ("class A:\n    def f(self):\n        raise NotImplementedError", False),
        ("class A:\n    def f(self):\n        raise NotImplementedError('no f')", False),
        ("class A:\n    def f(self):\n        'Return f.'\n        return self.g.h, 3", False),
        ("class A:\n    def f(self):\n        from a import B\n        return B", False),
        ("def f():\n    raise ValueError('no')", True),
        ("def f(x):\n    return x + 1", True),
        ("def f(x):\n    return g(x)", True),
        ("class A:\n    async def f(self):\n        await self.g()", True),
        ("class A:\n    def __init__(self, x):\n        self.x = x\n        self.y = 1", True),
    ],
)
def test_declarations_alone_need_no_test(source: str, expected: bool) -> None:
    assert behaves(source) is expected


@pytest.mark.parametrize(
    "source",
    [
        "told = 1",
        "for told in x: pass",
        "with f() as told: pass",
        "def f(told): pass",
        "def told(): pass",
        "lambda *told: 1",
        "x.told: int = 3",
        "[told for told in x]",
        "(told := 3)",
        "import x as told",
        "try: pass\nexcept E as told: pass",
        "match x:\n    case [*told]: pass",
        "match x:\n    case {'a': 1, **told}: pass",
    ],
)
def test_a_name_is_seen_wherever_it_is_bound(source: str) -> None:
    assert "told" in set(bound_names(ast.parse(source)))


def test_a_name_that_is_only_read_is_no_binding() -> None:
    assert "found" not in set(bound_names(ast.parse("x = y.found(found=3)")))
