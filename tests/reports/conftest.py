import pytest

from helpers.run_folders import Simple


@pytest.fixture
def simple(tmp_path):
    return Simple(tmp_path / "runs")
