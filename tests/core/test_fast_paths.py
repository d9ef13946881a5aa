"""Tests of workarounds that use private interfaces of torch: the compiler's cache, and the order of exchanges."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch

from eblvm_lit.core import fast_paths


def test_the_compilers_cache_is_asked_for_the_vector_width(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    wide = fast_paths._ExchangesInOrder().uuid()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert fast_paths._ExchangesInOrder().uuid() != wide


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_kernels_for_one_vector_width_are_not_used_for_another(tmp_path):
    """Run a compiled function with several vector widths and one cache.

    Inductor's cache ignored the widths, so that kernels for AVX512 ran as AVX2 and gave 5e252 instead of 2.
    """
    script = """
        import torch
        from eblvm_lit.core.fast_paths import compile_step

        v = torch.linspace(-1, 1, 37, dtype=torch.float64)
        step = lambda v: {"sum": (v.sin() + v * v).cumsum(0).tanh()}
        torch.testing.assert_close(compile_step(step)(v), step(v))
    """
    for capability in ({}, {"ATEN_CPU_CAPABILITY": "avx2"}, {"ATEN_CPU_CAPABILITY": "default"}):
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **capability}
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment)
        assert done.returncode == 0
