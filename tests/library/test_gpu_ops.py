"""Every compiled kernel on a GPU: error, exactness, and how it lives with PyTorch's machinery."""

from __future__ import annotations

import pytest
import torch
from exact import results, same
from torch import Tensor

from mirage_kernels import rms_norm_linear

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("memory_given_back")]

TOKENS = [1, 2, 7, 8, 16, 33, 64, 65, 100, 128, 300]
# A kernel may err this much more than PyTorch's own unfused program; where the op adds an option
# after its kernel, the result is rounded twice.
ERROR_ALLOWED = 1.1
ERROR_ALLOWED_AROUND = 2.0


def alike(gpu_case, a: object, b: object) -> bool:
    """Say whether results for the same values, lying elsewhere, are as alike as they must be.

    Kernels give the same bits; PyTorch's products may choose another kernel.
    """
    tokens = results(a)[0].shape[:-1].numel()
    if gpu_case.has_kernel(tokens):
        return same(a, b)
    pairs = zip(results(a), results(b), strict=True)
    return all(torch.allclose(y, z, rtol=0.02, atol=0.02) for y, z in pairs)


def relative_error(y: Tensor, oracle: Tensor) -> float:
    return float((y.double() - oracle).norm() / oracle.norm())


def between_nans(tensor: Tensor) -> Tensor:
    around = tensor.new_full((tensor.numel() + 2 * 4096,), torch.nan)
    around[4096:-4096] = tensor.flatten()
    return around[4096:-4096].view(tensor.shape)


def at_the_end(tensor: Tensor) -> Tensor:
    """Return a copy that ends where its allocation ends."""
    granule = (2 << 20) // tensor.element_size()  # the allocator's, for large blocks
    block = tensor.new_full((-(-tensor.numel() // granule) * granule,), torch.nan)
    block[-tensor.numel() :] = tensor.flatten()
    return block[-tensor.numel() :].view(tensor.shape)


@pytest.mark.parametrize("tokens", TOKENS)
def test_errs_no_more_than_pytorch_unfused(kernel_case, tokens: int) -> None:
    arguments = kernel_case.arguments(tokens)
    ours = kernel_case.into(kernel_case.poisoned(tokens), arguments)
    unfused = kernel_case.program("library", arguments)
    allowed = ERROR_ALLOWED if kernel_case.kernel_takes_options else ERROR_ALLOWED_AROUND
    for y, other, exact in zip(ours, unfused, kernel_case.oracle(arguments), strict=True):
        assert relative_error(y, exact) <= allowed * relative_error(other, exact)


@pytest.mark.parametrize("tokens", TOKENS)
def test_is_exact_on_small_integers(kernel_case, tokens: int) -> None:
    if kernel_case.integers is None:
        pytest.skip("the activation is not exact")
    arguments = kernel_case.integer_arguments(tokens)
    ours = kernel_case.into(kernel_case.poisoned(tokens), arguments)
    # LayerNorm's own 0 may be 1e-7: the variance of +1 and -1 is 1 only almost.
    ours = tuple(y.round() for y in ours) if "norm_bias" in kernel_case.tensors else ours
    for y, exact in zip(ours, kernel_case.oracle(arguments), strict=True):
        assert torch.equal(y, exact.to(y.dtype))


@pytest.mark.parametrize("tokens", [1, 8, 33, 65])
def test_is_the_same_from_run_to_run(kernel_case, tokens: int) -> None:
    arguments = kernel_case.arguments(tokens)
    first = kernel_case.call(**arguments)
    assert all(same(kernel_case.call(**arguments), first) for _ in range(3))


@pytest.mark.parametrize("leading", [(), (2, 3), (2, 1, 4), (0,), (3, 0)])
def test_takes_any_leading_dims(gpu_case, leading: tuple[int, ...]) -> None:
    arguments = gpu_case.arguments(*leading)
    flat = dict(arguments)
    for name in {"x", "h", "residual", "addend", "gate", "up"} & {*arguments}:
        flat[name] = arguments[name].flatten(0, -2) if leading else arguments[name][None]
    if "adapter_ids" in flat:
        flat["adapter_ids"] = flat["adapter_ids"].reshape(-1)
    ours = results(gpu_case.call(**arguments))
    for y, expected in zip(ours, results(gpu_case.call(**flat)), strict=True):
        assert y.shape[:-1] == leading
        assert torch.equal(y.reshape(expected.shape), expected)


@pytest.mark.parametrize("extra", [8, 64, 1, 3])
def test_takes_strided_rows_aligned_or_not(gpu_case, extra: int) -> None:
    arguments = gpu_case.arguments(7)
    strided = dict(arguments)
    for name in {"x", "residual", "addend", "gate", "up"} & {*arguments}:
        x = arguments[name]
        wide = x.new_full((7, x.shape[1] + extra), torch.nan)
        wide[:, : x.shape[1]] = x
        strided[name] = wide[:, : x.shape[1]]
    assert alike(gpu_case, gpu_case.call(**strided), gpu_case.call(**arguments))


def test_takes_a_transposed_x_and_one_at_an_odd_address(gpu_case) -> None:
    arguments = gpu_case.arguments(6)
    x, expected = arguments[gpu_case.first], gpu_case.call(**arguments)
    transposed = x.t().contiguous().t()
    odd = torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    assert alike(gpu_case, gpu_case.call(**arguments | {gpu_case.first: transposed}), expected)
    assert alike(gpu_case, gpu_case.call(**arguments | {gpu_case.first: odd}), expected)


@pytest.mark.parametrize("place", [between_nans, at_the_end])
@pytest.mark.parametrize("tokens", [1, 7, 33])
def test_reads_nothing_outside_its_inputs(gpu_case, tokens: int, place) -> None:
    """Every input lies between NaNs, which would show in the result, or ends its allocation."""
    arguments = gpu_case.arguments(tokens)
    expected = gpu_case.call(**arguments)
    placed = {
        name: place(value) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }
    outs = tuple(place(out) for out in gpu_case.poisoned(tokens))
    assert alike(gpu_case, gpu_case.into(outs, placed), expected)


def test_writes_nothing_outside_its_result(gpu_case) -> None:
    arguments = gpu_case.arguments(7)
    around = tuple(torch.full_like(out, 3.0) for out in gpu_case.poisoned(9))
    gpu_case.into(tuple(t[1:8] for t in around), arguments)
    assert same(tuple(t[1:8] for t in around), gpu_case.call(**arguments))
    assert all(bool((t[[0, 8]] == 3).all()) for t in around)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("tokens", [3, 40])
def test_what_is_not_finite_spreads_as_in_pytorch(kernel_case, tokens: int, value: float) -> None:
    """One element of one token, then one of each weight."""
    for name, shape in kernel_case.tensors.items():
        if name == "adapter_ids" or (name, kernel_case.overload) == ("lora_b", "batched"):
            continue  # many tokens are multiplied by all adapters in PyTorch's program
        arguments = kernel_case.arguments(tokens)
        arguments[name][(1,) * len(shape.split())] = value
        unfused = kernel_case.program("library", arguments)
        for y, other in zip(results(kernel_case.call(**arguments)), unfused, strict=True):
            assert torch.equal(torch.isnan(y), torch.isnan(other)), name
            assert torch.equal(torch.isinf(y), torch.isinf(other)), name


def test_runs_on_the_current_stream(gpu_case) -> None:
    arguments = gpu_case.arguments(8)
    expected = gpu_case.call(**arguments)
    late = torch.zeros_like(arguments[gpu_case.first])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # a kernel on any other stream would overtake the copy
        late.copy_(arguments[gpu_case.first])
        y = gpu_case.call(**arguments | {gpu_case.first: late})
    stream.synchronize()
    assert same(y, expected)


@pytest.mark.parametrize("tokens", [8, 300])
def test_replays_in_a_cuda_graph(gpu_case, captured, tokens: int) -> None:
    arguments, outs = gpu_case.arguments(tokens), gpu_case.poisoned(tokens)
    made: list[object] = []

    def run() -> None:
        gpu_case.into(outs, arguments)
        made.append(gpu_case.call(**arguments))

    graph = captured(run)
    for seed in (3, 4):
        fresh = gpu_case.arguments(tokens, seed=seed)
        for name in gpu_case.tensors:
            arguments[name].copy_(fresh[name])
        graph.replay()
        expected = gpu_case.call(**fresh)
        assert alike(gpu_case, outs, expected)
        assert alike(gpu_case, made[-1], expected)


def test_allocates_nothing_but_the_result(gpu_case) -> None:
    if not gpu_case.kernel_takes_options:
        pytest.skip("the kernel does not take the option")
    if gpu_case.overload == "batched":
        pytest.skip("its kernels need a workspace")

    def allocated() -> int:
        return int(torch.cuda.memory_stats()["allocation.all.allocated"])

    arguments, outs = gpu_case.arguments(8), gpu_case.poisoned(8)
    gpu_case.call(**arguments)
    before = allocated()
    gpu_case.into(outs, arguments)
    assert allocated() == before
    gpu_case.call(**arguments)
    assert allocated() == before + len(outs)


def test_compiles_in_one_graph(gpu_case) -> None:
    torch.compiler.reset()
    arguments = gpu_case.arguments(8)
    compiled = torch.compile(gpu_case.call, fullgraph=True)
    assert same(compiled(**arguments), gpu_case.call(**arguments))


def test_follows_its_inputs_to_another_gpu(gpu_case) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    arguments = gpu_case.arguments(8)
    there = {n: v.to("cuda:1") if isinstance(v, Tensor) else v for n, v in arguments.items()}
    expected = results(gpu_case.call(**arguments))
    for y, here in zip(results(gpu_case.call(**there)), expected, strict=True):
        assert y.device.index == 1
        assert torch.equal(y.cpu(), here.cpu())


def test_uncovered_shape_is_refused_with_the_command_that_makes_it() -> None:
    x, weight = (torch.ones(n, 4096, device="cuda").half() for n in (2, 6143))
    with pytest.raises(RuntimeError, match=r"no kernel covers K=4096,N=6143 in fp16; the nearest"):
        rms_norm_linear(x, x[0], weight)


def test_tensors_of_two_devices_are_refused_by_name() -> None:
    x, weight = torch.ones(2, 4096, device="cuda").half(), torch.ones(6144, 4096).half()
    with pytest.raises(RuntimeError, match="weight is on cpu, but x is on cuda:0; move both"):
        rms_norm_linear(x, x[0], weight)


def test_floor_kernels_run() -> None:
    ops = torch.ops.mirage_kernels
    data = torch.randn(1 << 20, device="cuda")
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    for variant in range(ops._read_floor_variants()):
        ops._read_floor(data, variant, sink)
    torch.cuda.synchronize()
