"""Private doors of torch and Lightning: with each of them shut, the public fallback gives the same numbers."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from eblvm_lit.core import fast_paths, functional
from eblvm_lit.core.fast_paths import compile_step, compiler_available, inside_torch_func
from eblvm_lit.core.functional import is_plain_first_order, plain_autograd
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import StatefulOptimizer
from eblvm_lit.networks.resnet import ResNet
from eblvm_lit.optimizers.adam import Adam

CPU = torch.device("cpu")


def test_without_inductors_internals_torch_compile_is_used_as_it_is(monkeypatch):
    monkeypatch.setattr(fast_paths, "lookup_backend", None)
    used, plain = [], torch.compile

    def public(fn, **options):
        used.append(options)
        return plain(fn, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", public)
    step = compile_step(lambda state, v: {"sum": (state["x"] * v).sum()}, CPU)
    x = torch.arange(3.0)
    for v in (x, x + 1):
        assert torch.equal(step({"x": x}, v)["sum"], (x * v).sum())
    assert used == [{"fullgraph": True, "dynamic": False}]


def test_the_compilers_cache_is_asked_for_the_vector_width(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    wide = fast_paths._OnceAndInOrder().uuid()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert fast_paths._OnceAndInOrder().uuid() != wide


@pytest.mark.slow
@pytest.mark.skipif(compiler_available(CPU) is None, reason="no C++ compiler")
def test_kernels_for_one_vector_width_are_not_used_for_another(tmp_path):
    """Inductor's cache of graphs knows no vector width: AVX512 kernels, compiled for AVX2, gave 5e252 instead of 2."""
    script = """
        import torch
        from eblvm_lit.core import functional
from eblvm_lit.core.fast_paths import compile_step

        v = torch.linspace(-1, 1, 37, dtype=torch.float64)
        step = lambda v: {"sum": (v.sin() + v * v).cumsum(0).tanh()}
        torch.testing.assert_close(compile_step(step, torch.device("cpu"))(v), step(v))
    """
    for capability in ({}, {"ATEN_CPU_CAPABILITY": "avx2"}, {"ATEN_CPU_CAPABILITY": "default"}):
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **capability}
        subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment, check=True)


def test_without_inductors_search_the_compiler_is_found_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch._inductor.cpp_builder", None)
    compiler = tmp_path / "my-c++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert compiler_available(CPU) == str(compiler)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler_available(CPU) is None


def test_where_torch_does_not_tell_about_transforms_nothing_is_specialised(monkeypatch):
    network, v = ResNet(v_shape=[1, 8, 8], n_blocks=1, channels=2, checkpoint=True), torch.rand(2, 1, 8, 8)
    with plain_autograd():
        assert is_plain_first_order()
        expected = network(v)
    monkeypatch.delattr(torch._C._functorch, "peek_interpreter_stack")
    with plain_autograd():
        assert inside_torch_func()
        assert not is_plain_first_order()
        with pytest.raises(ConfigError, match=r"network\.checkpoint=false"):
            network(v)
        network.checkpoint = False
        torch.testing.assert_close(network(v), expected)


def test_where_torch_does_not_tell_about_transforms_they_differentiate(monkeypatch):
    monkeypatch.setattr(functional, "innermost_transform", lambda: "unknown")
    v = torch.tensor([1.0, 2.0])
    with plain_autograd():
        assert functional.share_features(lambda p, x: p["w"] * x, params := {"w": v}, v) is params
        torch.testing.assert_close(functional.grad(lambda x: functional.grad(torch.sum)(x**2).dot(x**3))(v), 3 * v**2)


def test_an_optimizer_with_torchs_hooks_returns_what_the_bare_one_does():
    class Hooked(StatefulOptimizer):
        def step(self, closure):
            return closure()

    x = nn.Parameter(torch.zeros(2))
    bare, hooked = (kind({"x": x}, Adam(lr=0.1)) for kind in (StatefulOptimizer, Hooked))
    calls = []
    hooked.register_step_post_hook(lambda *_: calls.append("hook"))
    assert bare.step(closure=lambda: 7) == hooked.step(closure=lambda: 7) == 7
    assert calls == ["hook"]
