import json
from pathlib import Path

from onyx.api.portable import rewritten


def test_an_adapter_names_its_base_as_it_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({"base_model_name_or_path": "/srv/onyx/models/base", "r": 8}))
    (found,) = rewritten(tmp_path, "owner/base").items()
    assert found[0] == path
    assert json.loads(found[1]) == {"base_model_name_or_path": "owner/base", "r": 8}
    assert "/srv" in path.read_text()  # on this host it loads as it is


def test_a_whole_model_is_sent_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert rewritten(tmp_path, "owner/base") == {}
