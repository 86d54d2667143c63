"""onyx/tiny has the same bits everywhere and encodes any text."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyx.training.models.load import load_model
from onyx.training.models.tiny import CHAT_TEMPLATE, make_tiny

BITS = "d645854c456386cd"


def digest(directory: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def test_every_process_makes_the_same_bits(tiny: Path, tmp_path: Path) -> None:
    code = (
        f"from pathlib import Path; from onyx.training.models.tiny import *; print(make_tiny(Path({str(tmp_path)!r})))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}, cwd="."
    ).stdout.strip()
    assert digest(Path(made)) == digest(tiny)


def test_the_weights_are_the_ones_of_version_1(tiny: Path) -> None:
    # Other bits change users' results: raise VERSION with them.
    assert hashlib.sha256((tiny / "model.safetensors").read_bytes()).hexdigest()[:16] == BITS


def test_it_is_made_once(tiny: Path) -> None:
    before = (tiny / "model.safetensors").stat().st_mtime_ns
    assert make_tiny(tiny.parent) == tiny
    assert (tiny / "model.safetensors").stat().st_mtime_ns == before


def test_it_is_small_and_complete(tiny: Path, tokenizer: Any) -> None:
    model: Any = load_model(tiny)
    assert sum(each.numel() for each in model.parameters()) < 1_000_000
    assert model.config.vocab_size == len(tokenizer)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id}) == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_encoded_and_decoded(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
