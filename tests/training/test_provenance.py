"""Tests of the message that says how to resume a stopped job of a sweep."""

from eblvm_lit.training import provenance
from eblvm_lit.training.provenance import Job, resume_command


def test_a_stopped_job_of_a_sweep_prints_only_the_command_of_its_sweep(monkeypatch):
    monkeypatch.setattr(provenance.Job, "current", classmethod(lambda cls: Job(sweep="2026-01-01/10-00-00")))
    assert resume_command("multirun/2026-01-01/10-00-00/0") == (
        "resume the sweep with the same command and sweep.resume=true"
    )
