"""Tests of the log file of a run: an earlier log is unchanged until the new run has begun."""

import logging

import pytest

from eblvm_lit.utils.printing import RunLog


@pytest.fixture
def logger():
    """Return a logger for one test, and close its handlers afterwards."""
    logger = logging.Logger("test")
    yield logger
    for handler in logger.handlers:
        handler.close()


def test_the_log_of_an_earlier_run_gets_nothing_before_its_next_run_has_begun(tmp_path, logger):
    log = tmp_path / "train.log"
    log.write_text("earlier\n")
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    logger.addHandler(RunLog(str(log)))
    logger.warning("one")
    assert log.read_text() == "earlier\n"
    (tmp_path / "new").write_text("seed: 2\n")
    (tmp_path / "new").replace(tmp_path / "config.yaml")
    logger.warning("two")
    assert log.read_text() == "earlier\none\ntwo\n"


@pytest.mark.parametrize("names", [(), ("train.log", "command.yaml")])
def test_an_unused_folder_has_its_log_at_once(names, tmp_path, logger):
    for name in names:
        (tmp_path / name).touch()
    logger.addHandler(RunLog(str(tmp_path / "train.log")))
    logger.warning("one")
    assert (tmp_path / "train.log").read_text() == "one\n"
