"""What tests of metrics of images share."""

import pytest
import torch


def no_network(*args, **options):
    raise OSError("no route to host")


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
