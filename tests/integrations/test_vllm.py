"""The vLLM plugin against stand-ins with the signatures of vLLM 0.18 to 0.33, not installed.

`test_vllm_classes.py` has its own classes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
from torch import Tensor  # noqa: E402
from torch.library import infer_schema  # noqa: E402

from mirage_kernels import gqa  # noqa: E402
from mirage_kernels.integrations import vllm as plugin  # noqa: E402

BLOCK, HEADS, KV_HEADS, D = 16, 4, 2, 64
LENGTHS = (19, 5)


class NativeOp:
    """As `vllm.ir.op.IrOp`: an implementation has the schema of the native one."""

    def __init__(self, native: Callable[..., Any]) -> None:
        self.schema = infer_schema(native, mutates_args=[])
        self.impls: dict[str, Any] = {}

    def register_impl(
        self, provider: str, *, supported: bool = True, supports_args: Any = None, inplace: Any = 0
    ) -> Callable[[Callable[..., Any]], None]:
        def register(program: Callable[..., Any]) -> None:
            assert infer_schema(program, mutates_args=[]) == self.schema
            self.impls[provider] = SimpleNamespace(run=program, fits=supports_args)

        return register


def _rms_norm(x, weight, epsilon, variance_size=None): ...  # type: ignore[no-untyped-def]


_rms_norm.__annotations__ = {
    "x": Tensor,
    "weight": Tensor | None,
    "epsilon": float,
    "variance_size": int | None,
    "return": Tensor,
}


def _fused(x, x_residual, weight, epsilon, variance_size=None): ...  # type: ignore[no-untyped-def]


_fused.__annotations__ = {
    **{"x": Tensor, "x_residual": Tensor, "weight": Tensor | None, "epsilon": float},
    **{"variance_size": int | None, "return": tuple[Tensor, Tensor]},
}


class TritonImpl:
    """As vLLM's `TritonAttentionImpl`, as far as the plugin reads it."""

    def __init__(self, window: int = -1) -> None:
        self.head_size, self.scale, self.kv_cache_dtype = D, D**-0.5, "auto"
        self.sliding_window = (window, 0 if window >= 0 else -1)
        self.logits_soft_cap, self.sinks, self.alibi_slopes = 0.0, None, None

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor | None = None,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        assert output is not None
        return output.fill_(7)


class TritonBackend:
    """As vLLM's `TritonAttentionBackend`."""

    forward_includes_kv_cache_update = False


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    registered: dict[Any, str] = {}
    ops = SimpleNamespace(rms_norm=NativeOp(_rms_norm), fused_add_rms_norm=NativeOp(_fused))
    modules = {
        "vllm.v1.attention.backends.registry": {
            "AttentionBackendEnum": SimpleNamespace(CUSTOM="custom"),
            "register_backend": lambda backend, class_path: registered.update(
                {backend: class_path}
            ),
        },
        "vllm.v1.attention.backends.triton_attn": {
            "TritonAttentionBackend": TritonBackend,
            "TritonAttentionImpl": TritonImpl,
        },
        "vllm.ir": {"ops": ops},
    }
    for name, members in modules.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in sys.modules or end == len(parts):
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
        vars(sys.modules[name]).update(members)
    plugin.backend_class.cache_clear()
    return SimpleNamespace(registered=registered, ops=ops)


def batch(queries: tuple[int, ...] = (1, 1)) -> tuple[SimpleNamespace, Tensor]:
    """Return metadata of two sequences, and queries `[tokens, Hq * D]`."""
    torch.manual_seed(0)
    starts = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    metadata = SimpleNamespace(
        num_actual_tokens=sum(queries),
        max_query_len=max(queries),
        max_seq_len=max(LENGTHS),
        query_start_loc=starts,
        seq_lens=torch.tensor(LENGTHS, dtype=torch.int32),
        block_table=torch.tensor([[2, 0], [1, 3]], dtype=torch.int32),
    )
    return metadata, torch.randn(sum(queries), HEADS * D, dtype=torch.bfloat16)


def backend_of(vllm: SimpleNamespace) -> Any:
    plugin.register()
    module, _, name = vllm.registered["custom"].rpartition(".")
    return getattr(import_module(module), name)


def run(vllm: SimpleNamespace, cache: Tensor, metadata: Any, query: Tensor, **more: Any) -> Tensor:
    implementation = backend_of(vllm).get_impl_cls()()
    output = torch.zeros_like(query)
    made = implementation.forward(None, query, None, None, cache, metadata, output, **more)
    assert made is output
    return output


@pytest.mark.parametrize("layout", ["[blocks, 2, block, Hkv, D]", "[blocks, Hkv, block, 2 D]"])
@pytest.mark.parametrize("queries", [(1, 1), (3, 2)])
def test_decoding_batches_are_attended_over_the_cache_in_place(
    vllm: SimpleNamespace, layout: str, queries: tuple[int, ...]
) -> None:
    metadata, query = batch(queries)
    k, v = (torch.randn(4, BLOCK, KV_HEADS, D, dtype=torch.bfloat16) for _ in range(2))
    cache = torch.stack([k, v], 1) if layout[9] == "2" else torch.cat([k, v], -1).transpose(1, 2)
    made = run(vllm, cache, metadata, query)
    wanted = gqa(
        query.view(-1, HEADS, D),
        k,
        v,
        metadata.block_table,
        metadata.seq_lens,
        cu_seqlens_q=metadata.query_start_loc,
        max_q_len=max(queries),
    )
    torch.testing.assert_close(made.view(-1, HEADS, D), wanted)


def test_prompts_run_vllms_kernel(vllm: SimpleNamespace) -> None:
    metadata, query = batch((40, 1))
    cache = torch.zeros(4, 2, BLOCK, KV_HEADS, D, dtype=torch.bfloat16)
    assert bool((run(vllm, cache, metadata, query) == 7).all())


def test_quantised_results_run_vllms_kernel(vllm: SimpleNamespace) -> None:
    metadata, query = batch()
    cache = torch.zeros(4, 2, BLOCK, KV_HEADS, D, dtype=torch.bfloat16)
    made = run(vllm, cache, metadata, query, output_scale=torch.ones(1))
    assert bool((made == 7).all())


@pytest.mark.parametrize(
    "asked",
    [
        {"causal": False},
        {"causal": torch.tensor([True, False])},
        {"mm_prefix_range_tensor": torch.zeros(2, 1, 2, dtype=torch.int32)},
        {"rswa_window": 4},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_batches_that_gqa_does_not_compute_run_vllms_kernel(
    vllm: SimpleNamespace, asked: dict[str, Any]
) -> None:
    metadata, query = batch()
    vars(metadata).update(asked)
    cache = torch.zeros(4, 2, BLOCK, KV_HEADS, D, dtype=torch.bfloat16)
    assert bool((run(vllm, cache, metadata, query) == 7).all())


@pytest.mark.parametrize(
    "asked",
    [{"attn_type": "encoder_only"}, {"chunk_lookback": 1}, {"total_cp_world_size": 2}],
    ids=lambda asked: next(iter(asked)),
)
def test_layers_that_gqa_does_not_compute_run_vllms_kernel(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    metadata, query = batch()
    for name, value in asked.items():
        monkeypatch.setattr(TritonImpl, name, value, raising=False)
    cache = torch.zeros(4, 2, BLOCK, KV_HEADS, D, dtype=torch.bfloat16)
    assert bool((run(vllm, cache, metadata, query) == 7).all())


def test_a_profiling_run_without_metadata_is_vllms(vllm: SimpleNamespace) -> None:
    _, query = batch()
    cache = torch.zeros(4, 2, BLOCK, KV_HEADS, D, dtype=torch.bfloat16)
    assert bool((run(vllm, cache, None, query) == 7).all())


def test_the_backend_names_itself_and_the_heads_it_serves(vllm: SimpleNamespace) -> None:
    made = backend_of(vllm)
    assert made.get_name() == "CUSTOM"
    assert made.supports_head_size(128)
    assert not made.supports_head_size(100)


def test_a_vllm_whose_attention_writes_the_cache_is_refused(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TritonBackend, "forward_includes_kv_cache_update", True)
    with pytest.raises(RuntimeError, match=r"vllm >= 0\.18"):
        plugin.backend_class()


def test_norms_have_the_schemas_of_vllms_and_their_values(vllm: SimpleNamespace) -> None:
    plugin.register()
    plugin.register()  # vLLM may load plugins again
    x, residual = torch.randn(2, 3, 64, dtype=torch.bfloat16)
    weight = torch.rand(64, dtype=torch.bfloat16)
    made = vllm.ops.rms_norm.impls["mirage_kernels"]
    assert made.fits(x, weight, 1e-6)
    torch.testing.assert_close(
        made.run(x, weight, 1e-6), torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)
    )
    y, total = vllm.ops.fused_add_rms_norm.impls["mirage_kernels"].run(x, residual, weight, 1e-6)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(total, (64,), weight, 1e-6))


@pytest.mark.parametrize("given", [{"weight": None}, {"variance_size": 8}])
def test_norms_that_kernels_lack_are_not_served(
    vllm: SimpleNamespace, given: dict[str, Any]
) -> None:
    plugin.register()
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    arguments = {"weight": torch.ones_like(x[0]), "variance_size": None, **given}
    fits = vllm.ops.rms_norm.impls["mirage_kernels"].fits
    assert not fits(x, arguments["weight"], 1e-6, arguments["variance_size"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_types_that_kernels_lack_are_not_served(
    vllm: SimpleNamespace, dtype: torch.dtype
) -> None:
    plugin.register()
    x, weight = torch.ones(3, 64, dtype=dtype), torch.ones(64)
    ops = vllm.ops
    assert not ops.rms_norm.impls["mirage_kernels"].fits(x, weight, 1e-6)
    assert not ops.fused_add_rms_norm.impls["mirage_kernels"].fits(x, x, weight, 1e-6)


def test_an_old_vllm_starts_without_the_plugin_and_says_so(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends.registry", None)
    with pytest.warns(UserWarning, match=r"vllm >= 0\.18"):
        plugin.register()
    assert "mirage_kernels" in vllm.ops.rms_norm.impls


def test_a_vllm_without_an_ir_keeps_its_norms(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm.ir", None)
    plugin.register()
    assert vllm.registered
