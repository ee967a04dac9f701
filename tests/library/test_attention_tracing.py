"""What torch.compile, torch.export and opcheck ask of the ops of attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import Case, latent_case, made
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from mirage_kernels import gqa, gqa_csr, qk_norm_rope_append, supports

OPS = torch.ops.mirage_kernels
pytestmark = pytest.mark.usefixtures("fresh_compiler")
PAGED, LATENT = Case(), latent_case()
CASES = {
    "paged": PAGED,
    "heads first": replace(PAGED, layout="HND"),
    "several tokens": replace(PAGED, lengths=(5, 40), tokens=(3,)),
    "varlen": replace(PAGED, tokens=(2, 0, 4), sinks=True, options={"window_left": 3}),
    "dense": replace(PAGED, page_size=0, lengths=(33, 33), tokens=(4,)),
    "prefill": replace(PAGED, page_size=0, lengths=(130, 130), tokens=(130,)),
    "causal prefill of a part": replace(
        PAGED, page_size=0, lengths=(140, 140), tokens=(130,), options={"causal": True}
    ),
    "normed": replace(PAGED, norm="rms"),
    "normed prefill": replace(PAGED, page_size=0, lengths=(130, 130), tokens=(130,), norm="layer"),
    "latents": LATENT,
    "latents in two tensors each": replace(LATENT, apart=True),
    "latents, varlen": replace(LATENT, tokens=(2, 0, 7), lengths=(3, 40, 16)),
}


@pytest.mark.parametrize("name", CASES)
def test_compiles_without_a_graph_break(name: str) -> None:
    call = made(CASES[name])
    compiled = torch.compile(call.run, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(), call.run(), atol=2e-3)


@pytest.mark.parametrize("name", ["paged", "dense", "normed"])
def test_lse_and_given_results_compile(name: str) -> None:
    call = made(CASES[name])

    def both() -> Tensor:
        out = torch.empty_like(call.q)
        _, lse = call.run(out=out, return_lse=True)
        return (out + 1) * lse[..., None]

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(), both())


def test_compiles_once_for_every_batch() -> None:
    counter = CompileCounter()
    compiled = torch.compile(gqa, fullgraph=True, backend=counter, dynamic=True)
    for lengths in ((90, 5, 0), (90,) * 8, (33,) * 5):  # at first no two sizes are alike
        call = made(replace(PAGED, lengths=lengths))
        given = (call.q, call.k, call.v, call.given["block_table"], call.given["seq_lens"])
        assert torch.equal(compiled(*given), call.run())
    assert counter.frame_count == 1


def test_compiles_once_for_every_bound_and_number_of_query_tokens() -> None:
    def run(
        q: Tensor, k: Tensor, v: Tensor, table: Tensor, lens: Tensor, tokens: int, most: int
    ) -> Tensor:
        return gqa(q, k, v, table, lens, max_q_len=tokens, max_seq_len=most, causal=True)

    counter = CompileCounter()
    compiled = torch.compile(run, fullgraph=True, backend=counter, dynamic=True)
    for tokens, most in ((5, 90), (7, 95), (9, 93)):  # at first no two sizes are alike
        call = made(replace(PAGED, lengths=(90, 7, 33), tokens=(tokens,)))
        given = (call.q, call.k, call.v, call.given["block_table"], call.given["seq_lens"])
        assert torch.equal(compiled(*given, tokens, most), run(*given, tokens, most))
    assert counter.frame_count == 1


def test_page_lists_compile() -> None:
    call = made(replace(PAGED, lengths=(16, 16)))
    starts, last = torch.tensor([0, 1, 2]).int(), torch.tensor([16, 16]).int()
    pages = call.given["block_table"][:, 0].contiguous()

    def run() -> Tensor:
        return gqa_csr(call.q, call.k, call.v, starts, pages, last, max_seq_len=32)

    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(), call.run())


def test_supports_is_a_constant_of_the_graph() -> None:
    def chosen(x: Tensor) -> Tensor:
        sizes = {"B": x.shape[0], "Hq": x.shape[1], "D": x.shape[2]}
        return x + supports("gqa", **sizes, dtype=x.dtype, device=x.device)

    counter = CompileCounter()
    compiled = torch.compile(chosen, fullgraph=True, backend=counter, dynamic=True)
    for batch in (3, 5, 7):  # may be any
        assert compiled(torch.zeros(batch, 4, 64).half()).all()
    assert counter.frame_count == 1
    assert not compiled(torch.zeros(3, 4, 60).half()).any()


def test_prefill_compiles_under_autocast() -> None:
    call = made(CASES["prefill"])
    compiled = torch.compile(call.run, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = compiled()
    assert torch.equal(found, call.run())


def test_exports() -> None:
    call = made(PAGED)

    class Attention(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor):
            return gqa(q, k, v, table, lengths)

    given = (call.q, call.k, call.v, call.given["block_table"], call.given["seq_lens"])
    program = torch.export.export(Attention(), given)
    ours = [n for n in program.graph.nodes if str(n.target).startswith("mirage_kernels.gqa")]
    assert len(ours) == 1


def op_arguments(op: str) -> tuple[object, ...]:
    """Return the arguments of an op of ragged queries, as it takes them."""
    if op == "mla_decode":
        latents = made(replace(LATENT, tokens=(2, 1, 4)))
        q, cache = latents.q, latents.k.nan_to_num()
        lengths = (latents.given[n] for n in ("block_table", "seq_lens", "cu_seqlens_q"))
        parts = (q[..., :32], q[..., 32:], cache[..., :32], cache[..., 32:])
        return (*parts, *lengths, -1, -1, 0.125, True)
    norm = "" if op == "gqa" else "rms"
    call = made(replace(PAGED, tokens=(2, 1, 4), sinks=True, norm=norm))
    names = ("block_table", "seq_lens", "cu_seqlens_q", "sinks")
    given = tuple(call.given.get(name) for name in names)
    common = (call.q, call.k.nan_to_num(), call.v.nan_to_num(), *given, -1, -1, 0.125, True, 3, 2.0)
    weights = (call.norms.get("q_weight"), call.norms.get("k_weight"), None, None)
    return (*common, *weights, 1e-6, 0.5, "rms") if norm else common


@pytest.mark.parametrize("overload", ["default", "lse", "out", "lse_out"])
@pytest.mark.parametrize("op", ["gqa", "qk_norm_attention", "mla_decode"])
def test_passes_opcheck(op: str, overload: str) -> None:
    arguments = op_arguments(op)
    q = arguments[0]
    assert isinstance(q, Tensor)
    outs = {"out": torch.zeros_like(q)} if "out" in overload else {}
    if overload == "lse_out":
        outs["lse"] = torch.zeros(q.shape[:2])
    torch.library.opcheck(getattr(getattr(OPS, op), overload), arguments, outs)


def append_arguments() -> tuple[object, ...]:
    qkv = torch.randn(3, 8 * 16).half()
    weight = torch.ones(16).half()
    caches = (torch.zeros(2, 8, 2, 16).half(), torch.zeros(2, 8, 2, 16).half())
    angles, positions = torch.rand(9, 16), torch.tensor([0, 4, 8])
    slots = torch.tensor([3, -1, 9])
    sizes = (4, 2, 1e-6, 0.0, "rms", "neox")
    return (qkv, weight, weight.clone(), None, None, angles, positions, *caches, slots, *sizes)


def test_append_passes_opcheck() -> None:
    torch.library.opcheck(OPS.qk_norm_rope_append.default, append_arguments())


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_append_compiles_as_a_mutation(layout: str) -> None:
    def run(both: Tensor) -> Tensor:
        qkv, q_weight, k_weight, _, _, angles, positions, _, _, slots, *_ = append_arguments()
        k, v = both.chunk(2, dim=-1)
        heads = {"num_heads": 4, "num_kv_heads": 2, "kv_layout": layout}
        q = qk_norm_rope_append(
            qkv.mul(0) + 1, q_weight, k_weight, angles.mul(0) + 1, positions, k, v, slots, **heads
        )
        return q.sum() + both.sum()

    shape = (2, 8, 2, 32) if layout == "NHD" else (2, 2, 8, 32)
    caches = [torch.zeros(shape).half() for _ in range(2)]
    expected = run(caches[0])
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(caches[1]), expected)
    assert torch.equal(caches[0], caches[1])
    assert caches[0].any()


def test_shapes_are_known_without_data() -> None:
    q = torch.empty(3, 4, 64).half()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(q)
        k = torch.empty(9, 16, 2, 64, dtype=torch.float16)
        table, lengths = torch.zeros(3, 2).int(), torch.ones(3).int()
        out, lse = gqa(fake, k, k, table, lengths, return_lse=True)
        assert (out.shape, out.dtype) == ((3, 4, 64), torch.float16)
        assert (lse.shape, lse.dtype) == ((3, 4), torch.float32)
        with pytest.raises(RuntimeError, match="gqa: k_cache and q differ in D"):
            gqa(fake, k[..., :56], k[..., :56], table, lengths)
        with pytest.raises(RuntimeError, match=r"gqa: v_cache has dtype torch\.bfloat16, q"):
            gqa(fake, k, k.bfloat16(), table, lengths)
