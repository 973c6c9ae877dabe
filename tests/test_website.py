"""The site's pages: all public objects, all commands, and links that stay on it."""

from __future__ import annotations

import importlib

import pytest
import typer
from website.__main__ import ROOT
from website.api_pages import api_pages, homes, rooms
from website.command_pages import commands_page, listed
from website.docstrings import fenced
from website.http_page import http_page, openapi

from evergram.cli import app


def test_every_public_object_of_every_room_has_its_place_in_the_reference() -> None:
    pages = dict(api_pages())
    for room in rooms():
        package = importlib.import_module(f"evergram.{room}")
        assert sorted(homes(f"evergram.{room}")) == sorted(package.__all__)
        for home in homes(f"evergram.{room}").values():
            assert f"::: {home}\n" in pages[f"api/{room}.md"]
    described = "".join(pages.values())
    for name, home in homes("evergram").items():
        assert f"::: {home}\n" in described or home.startswith("evergram.errors."), name


def test_the_navigation_names_a_page_for_each_room() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert all(f"api/{room}.md" in navigation for room in (*rooms(), "evergram", "errors"))


def test_every_command_and_option_that_help_shows_is_on_the_page() -> None:
    page = commands_page()
    shown = list(listed(typer.main.get_command(app)))
    assert len(shown) > 20
    for name, command in shown:
        section = page.split(f"## `{name}`\n")[1].split("\n## ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert f"`{parameter.opts[0]}`" in section, (name, parameter.opts)


@pytest.mark.long
def test_every_path_of_the_service_is_on_the_page() -> None:
    description = openapi()
    page = http_page(description)
    for path, methods in description["paths"].items():
        for method in methods:
            assert f"## `{method.upper()} {path}`" in page
    search = page.split("## `POST /v1/search`")[1].split("\n## ")[0]
    assert "| `k` |" in search
    assert "| 404 |" in search


def test_an_example_in_a_docstring_is_fenced_up_to_the_next_empty_line() -> None:
    text = "Do it.\n\n>>> 1 + 1\n2\n\nArgs:\n    x: one.\n\n    >>> x"
    first = "Do it.\n\n```pycon\n>>> 1 + 1\n2\n```\n\n"
    assert fenced(text) == f"{first}Args:\n    x: one.\n\n    ```pycon\n    >>> x\n    ```"
