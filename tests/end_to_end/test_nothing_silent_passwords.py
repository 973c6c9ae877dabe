"""A database's password is shown nowhere: promise 20."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command import Command
from tests.support.postgres_server import postgres
from tests.support.serving_thread import no_address_listened_on

SECRET = "s3cret-w0rd"


@pytest.fixture(scope="module")
def guarded() -> str:
    """A database that asks for a password: an address without a table, and without it."""
    return postgres().address_with_password("", "keeper", SECRET)


@pytest.mark.parametrize("way", ["PGPASSWORD", "pgpass", "address"])
def test_20_a_password_is_given_without_the_command_line_and_shown_nowhere(
    trained_lineage: Path,
    tmp_path: Path,
    evergram: Command,
    guarded: str,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    address = f"{guarded}films_{way.lower()}"
    monkeypatch.delenv("PGPASSWORD", raising=False)
    # What the user of the machine has there himself is not looked at.
    passwords = tmp_path / "pgpass"
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    for wrong in (None, "wrong-w0rd"):
        if wrong is not None:
            monkeypatch.setenv("PGPASSWORD", wrong)
        sentence = evergram.refused(
            "store", "fill", trained_lineage, "--store", f"candidate={address}"
        )
        assert "in the environment as PGPASSWORD, or in ~/.pgpass" in sentence
        assert str(wrong) not in sentence
    monkeypatch.delenv("PGPASSWORD")
    if way == "PGPASSWORD":
        monkeypatch.setenv("PGPASSWORD", SECRET)
    elif way == "pgpass":
        passwords.write_text(f"*:*:*:keeper:{SECRET}\n")
        passwords.chmod(0o600)
    else:
        address = address.replace("keeper@", f"keeper:{SECRET}@")
    store = ("--store", f"candidate={address}")
    for arguments in (
        ("store", "fill", trained_lineage, *store, "--json"),
        ("store", "fill", trained_lineage, *store),
        ("store", "backfill", "plan", trained_lineage, *store, "--json"),
        ("store", "backfill", "status", trained_lineage, *store),
        ("store", "fill", trained_lineage, "--store", store[1].replace("candidate", "query")),
    ):
        code, out, err = evergram(*arguments)
        assert code == (2 if "query=" in str(arguments[-1]) else 0), err
        assert SECRET not in out + err
    for path in (p for p in trained_lineage.rglob("*") if p.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    "store",
    [
        f"postgresql://ann:{SECRET}@db/films#t",
        f"candidate=qdrant:http://ann:{SECRET}@db#t",
        f"candidate=postgresql://ann:{SECRET}@127.0.0.1:9/films#t",
    ],
)
def test_20_an_address_that_is_wrong_is_not_repeated_with_its_password(
    trained_lineage: Path,
    tmp_path: Path,
    evergram: Command,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with no_address_listened_on():
        for command in (["store", "fill"], ["store", "backfill", "plan"], ["serve"]):
            code, out, err = evergram(*command, trained_lineage, "--store", store)
            assert (code, out) == (2, "")
            assert err.startswith("error: ")
            assert SECRET not in err
    assert [p.name for p in tmp_path.iterdir()] == ["shop"]
