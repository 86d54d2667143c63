import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from onyx.accumulation.system.statefile import LEFTOVER_SECONDS, read_state, write_state

scalars = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5)
trees = st.recursive(
    scalars,
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.text(max_size=3), children, max_size=3)
        | st.dictionaries(st.integers(0, 9), children, max_size=3)
    ),
    max_leaves=8,
)


@given(state=st.dictionaries(st.text(max_size=4), trees, max_size=4))
def test_any_json_state_comes_back(state: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("state") / "state.safetensors"
    write_state(path, state)
    assert read_state(path) == state


def test_an_optimizer_comes_back_to_the_bit(tmp_path: Path) -> None:
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    write_state(tmp_path / "deep" / "optimizer", {"optimizer": optimizer.state_dict()})
    other = torch.optim.AdamW(layer.parameters(), lr=9.0)
    other.load_state_dict(read_state(tmp_path / "deep" / "optimizer")["optimizer"])
    assert other.param_groups[0]["lr"] == 1e-3
    for before, after in zip(optimizer.state.values(), other.state.values(), strict=True):
        for name, value in before.items():
            assert torch.equal(value, after[name])


def test_tensors_that_share_storage_are_saved(tmp_path: Path) -> None:
    tensor = torch.arange(6.0)
    write_state(tmp_path / "s", {"a": tensor, "b": tensor[:3], "c": tensor.reshape(2, 3).t()})
    state = read_state(tmp_path / "s")
    assert torch.equal(state["b"], tensor[:3])
    assert torch.equal(state["c"], tensor.reshape(2, 3).t())


def test_nothing_is_left_beside_the_file(tmp_path: Path) -> None:
    write_state(tmp_path / "state", {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


KILLED = """
import os, signal, sys
from onyx import fs
from onyx.accumulation.system.statefile import write_state

fs.move_into_place = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
write_state(sys.argv[1], {"a": 1})
"""


def test_writing_again_removes_what_a_killed_process_left_of_this_file_and_nothing_else(tmp_path: Path) -> None:
    for name in ("state", "state.best"):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name)], check=False)
        assert killed.returncode == -signal.SIGKILL
    (tmp_path / ".state.mine.part").write_text("a file of the user")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 3
    write_state(tmp_path / "state", {"a": 2})  # the leftover is young: another process may be writing it
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "state"]

    old = time.time() - LEFTOVER_SECONDS - 60
    for path in tmp_path.iterdir():
        os.utime(path, (old, old))
    write_state(tmp_path / "state", {"a": 3})
    other = [name for name in names if name.startswith(".state.best.")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".state.mine.part", *other, "state"])
    assert read_state(tmp_path / "state") == {"a": 3}


def test_what_is_neither_tensor_nor_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"state\.a\.0 cannot be saved: object"):
        write_state(tmp_path / "state", {"a": [object()]})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x80\x04pickle", json.dumps({"a": 1}).encode()])
def test_a_foreign_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a state file that Onyx saved"):
        read_state(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no saved state"):
        read_state(tmp_path / "nowhere")
