"""The smallest real model's tokenizer, made once."""

from pathlib import Path
from typing import Any

import pytest

from onyx.training.models.tiny import make_tiny
from onyx.training.models.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models"))


@pytest.fixture
def tokenizer(tiny: Path) -> Any:
    return load_tokenizer(tiny)
