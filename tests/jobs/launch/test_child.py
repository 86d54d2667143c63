import pytest

from onyx.jobs.launch.child import inherited


@pytest.mark.parametrize("secret", ["ONYX_HUB_TOKEN", "ONYX_WANDB_API_KEY", "ONYX_WEBHOOK_SECRET", "WANDB_API_KEY"])
def test_children_inherit_all_but_secrets(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret, "hush")
    monkeypatch.setenv("ONYX_LOG_LEVEL", "debug")
    assert "hush" not in inherited().values()
    assert inherited()["ONYX_LOG_LEVEL"] == "debug"
