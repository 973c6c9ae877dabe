"""The dashboard of a small lineage, and a browser that looks at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.browser import Browser, missing, open_browser
from tests.support.dashboards import Service, make_lineage, serve
from tests.support.page_views import CONSUMERS, LIVE

from evergram.serving.dashboard.data import dashboard_data
from evergram.serving.dashboard.schemas import (
    DashboardData,
)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> DashboardData:
    lineage = make_lineage(tmp_path_factory.mktemp("page") / "lineage")
    return dashboard_data(lineage, [], LIVE).model_copy(update={"consumers": CONSUMERS})


@pytest.fixture(scope="session")
def running(data: DashboardData) -> Iterator[Service]:
    with serve(data) as dashboard:
        yield dashboard


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def service(running: Service, data: DashboardData) -> Service:
    running.data, running.token, running.status = data, None, 200
    running.asked.clear()
    return running


@pytest.fixture
def browser(tab: Browser, service: Service) -> Browser:
    tab.open(service.url)
    tab.run("sessionStorage.clear()")
    tab.forget()
    tab.size(1280)
    tab.scheme("light")
    return tab
