import sys

import pytest

from onyx.jobs.engine import make_engine, parse_url
from onyx.jobs.errors import StoreUrlError


def test_addresses_get_the_drivers_that_onyx_uses() -> None:
    assert parse_url("sqlite:////home/x/onyx.db").drivername == "sqlite+aiosqlite"
    for url in ("postgres://u:p@h/d", "postgresql://u:p@h/d", "postgresql+psycopg2://u:p@h/d"):
        assert parse_url(url).drivername == "postgresql+asyncpg"


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "mysql://u:secret@h/d", "secret", "postgresql://u:secret@h:x/d"]
)
def test_other_addresses_are_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)
    assert "sqlite:///path" in str(caught.value)


def test_postgresql_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(StoreUrlError, match=r"pip install 'onyx-finetune\[postgres\]'") as caught:
        make_engine("postgresql://u:secret@127.0.0.1/d")
    assert "secret" not in str(caught.value)
