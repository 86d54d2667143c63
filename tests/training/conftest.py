from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.job import Job, make_model, write_data
from tests.training.template import Template

LENGTHS = [5, 12, 3, 30, 8, 21, 16, 4, 9, 40, 6, 11, 2, 25, 7, 18] * 5


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    template = Template()
    yield template
    template.close()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onyx")


@pytest.fixture
def job(template: Template, home: Path, tmp_path: Path) -> Job:
    """80 samples of 2 to 40 tokens, in 10 windows an epoch, 2 epochs."""
    data = home / "data" / "plain"
    if not data.exists():
        write_data(data, LENGTHS)
    return Job(template=template, home=tmp_path, model=make_model(home), data=data)
