"""Who may use a service, and the names that it answers to."""

from __future__ import annotations

import pytest

from evergram.errors import ServiceError
from evergram.serving.settings import ServiceSettings, admin_token


@pytest.mark.parametrize(
    ("host", "open_", "starts"),
    [
        ("127.0.0.1", True, True),
        ("::1", True, True),
        ("localhost", True, True),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("example.org", False, False),
    ],
)
def test_others_are_let_in_with_tokens_alone(host: str, open_: bool, starts: bool) -> None:
    assert ServiceSettings(host=host).is_open(False) == open_
    assert not ServiceSettings(host=host).is_open(True)
    assert not ServiceSettings(host=host, admin_token="x").is_open(False)
    assert ServiceSettings(host=host, no_auth=True).is_open(True)
    if starts:
        ServiceSettings(host=host).check(False)
    else:
        with pytest.raises(ServiceError, match="--no-auth"):
            ServiceSettings(host=host).check(False)
        ServiceSettings(host=host, no_auth=True).check(False)
        ServiceSettings(host=host).check(True)


@pytest.mark.parametrize("token", ["pass word", "schlüssel"])
def test_an_administrators_token_that_no_request_can_carry_is_refused(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("EVERGRAM_ADMIN_TOKEN", token)
    with pytest.raises(ServiceError, match="beyond ASCII") as refusal:
        admin_token()
    assert token not in str(refusal.value)


def test_an_empty_token_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERGRAM_ADMIN_TOKEN", "")
    assert admin_token() is None
    monkeypatch.setenv("EVERGRAM_ADMIN_TOKEN", "s3cret!")
    assert admin_token() == "s3cret!"


@pytest.mark.parametrize(
    "name", ["shop.example", "*.shop.example", "*", "a_b-c", "::1", "10.0.0.7"]
)
def test_a_host_may_be_a_name_an_address_or_all_below_a_name(name: str) -> None:
    ServiceSettings(allowed_hosts=(name,)).check(False)


@pytest.mark.parametrize(
    "name", ["http://shop.example", "shop.example:80", "shop.*", "", "a b", "*.", ".shop"]
)
def test_a_pattern_that_no_request_could_match_is_refused(name: str) -> None:
    with pytest.raises(ServiceError, match="is no name of a host"):
        ServiceSettings(allowed_hosts=("shop.example", name)).check(False)


def test_texts_need_an_encoder_and_their_vectors_need_texts() -> None:
    with pytest.raises(ServiceError, match="no --encoder is given"):
        ServiceSettings(texts="texts.csv").check(tokens=False)
    with pytest.raises(ServiceError, match="which are not given"):
        ServiceSettings(encoders=("recorded",), kept="kept").check(tokens=False)
    ServiceSettings(encoders=("recorded",), texts="texts.csv", kept="kept").check(tokens=False)
