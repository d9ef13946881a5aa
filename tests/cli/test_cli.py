"""The command's end: the metric that a sweeper asks for."""

import pytest
from omegaconf import OmegaConf

from eblvm_lit.cli import cli


def test_main_returns_the_metric_a_sweeper_asks_for(caplog):
    cfg = OmegaConf.create({"optimized_metric": "test/fisher"})
    assert cli.main(lambda cfg: {"test/fisher": -3.0}, cfg) == -3.0
    with pytest.raises(SystemExit) as end:
        cli.main(lambda cfg: {"test/fid": 1.0}, cfg)
    assert end.value.code == 1
    assert "optimized_metric=test/fisher" in caplog.text
