"""The notebooks: run without Jupyter, and shown on the site with their outputs.

`python -m website.notebooks` runs all of them and keeps their outputs in them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"


def names() -> list[str]:
    """Return the notebooks' names."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def load(name: str) -> dict[str, Any]:
    """Return a notebook's content."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.ipynb").read_text())
    return content


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """Run the cells one after the other; return the notebook with their outputs in it.

    A cell's output is what it prints, and its last line's value if that is an expression.
    """
    scope: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = _run_cell("".join(cell["source"]), scope)
        cell["execution_count"] = count
        cell["outputs"] = []
        if printed.getvalue():
            text = printed.getvalue().splitlines(keepends=True)
            cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": text})
        if value is not None:
            data = {"text/plain": [repr(value)]}
            if hasattr(value, "_repr_html_"):
                data["text/html"] = value._repr_html_().splitlines(keepends=True)
            cell["outputs"].append(
                {
                    "output_type": "execute_result",
                    "data": data,
                    "metadata": {},
                    "execution_count": count,
                }
            )
    return notebook


def page(notebook: dict[str, Any]) -> str:
    """Return a notebook as Markdown: its text, its code, and what its cells gave."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                text = "".join(output.get("text") or data.get("text/plain", []))
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _run_cell(source: str, scope: dict[str, Any]) -> object:
    """Run a cell; return the value of its last expression, or None."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), scope)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    value: object = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)
    return value


if __name__ == "__main__":
    for name in names():
        content = json.dumps(run(load(name)), indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.ipynb").write_text(content + "\n")
