"""KernelBench level 1: single operators. Rows are fewer where the original fills gigabytes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from programs import program

WIDE = 16384  # of an elementwise function or a row; the original has 393216
ROWS = (4096,)
OUT = {
    "4D product (11) and symmetric, triangular inputs (13 to 15)": "11, 13 as plain products; "
    "14 and 15 need a mask of positions of two dims of one extent",
    "41 to 46": "pooling",
    "51, 52": "argmax and argmin: positions as results",
    "50, 54 to 87": "convolutions",
    "89 to 93": "scans",
    "95": "gathers by an index tensor",
}


@program("level1/1", rows=(4096,), a=("M", 4096), b=(4096, 4096))
def square_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program("level1/2", rows=(2048,), a=("M", 8192), b=(8192, 4096))
def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program("level1/3", rows=(512,), a=(128, "M", 1024), b=(128, 1024, 2048))
def batched_product(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b)


@program("level1/4", rows=(2048,), a=("M", 131072), b=(131072, 1))
def matrix_times_vector(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program("level1/5", rows=(16384,), a=("M", 16384))
def matrix_times_scalar(a: Tensor) -> Tensor:
    return a * 3.14


@program("level1/6", rows=(256,), a=("M", 131072), b=(131072, 256))
def deep_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program("level1/7", rows=(16384,), a=("M", 64), b=(64, 16384))
def shallow_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program("level1/8", rows=(8205,), a=("M", 2949), b=(2949, 5921))
def irregular_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program("level1/9", rows=(16384,), a=("M", 32), b=(32, 16384))
def tall_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program("level1/10", rows=(1024,), a=(16, "M", 2048), b=(2048, 768))
def product_of_3d(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program("level1/11", rows=(512,), a=(8, 256, "M", 256), b=(256, 768))
def product_of_4d(a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("bijl,lk->bijk", a, b)


@program("level1/12", rows=(4096,), a=("M",), b=("M", 4096))
def diagonal_product(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(1) * b


@program("level1/13", rows=(4096,), a=("M", 4096), b=(4096, 4096))
def symmetric_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@program("level1/16", rows=(2048,), a=(8192, "M"), b=(8192, 4096))
def product_of_transposed_a(a: Tensor, b: Tensor) -> Tensor:
    return a.T @ b


@program("level1/17", rows=(2048,), a=("M", 8192), b=(4096, 8192))
def product_of_transposed_b(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.T


@program("level1/18", rows=(2048,), a=(8192, "M"), b=(4096, 8192))
def product_of_transposed_both(a: Tensor, b: Tensor) -> Tensor:
    return a.T @ b.T


@program("level1/19", rows=ROWS, x=("M", WIDE))
def relu(x: Tensor) -> Tensor:
    return torch.relu(x)


@program("level1/20", rows=ROWS, x=("M", WIDE))
def leaky_relu(x: Tensor) -> Tensor:
    return F.leaky_relu(x, negative_slope=0.01)


@program("level1/21", rows=ROWS, x=("M", WIDE))
def sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


@program("level1/22", rows=ROWS, x=("M", WIDE))
def tanh(x: Tensor) -> Tensor:
    return torch.tanh(x)


@program("level1/23", rows=ROWS, x=("M", WIDE))
def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=1)


@program("level1/24", rows=ROWS, x=("M", WIDE))
def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, dim=1)


@program("level1/25", rows=ROWS, x=("M", WIDE))
def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@program("level1/26", rows=ROWS, x=("M", WIDE))
def gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


@program("level1/27", rows=ROWS, x=("M", WIDE))
def selu(x: Tensor) -> Tensor:
    return torch.selu(x)


@program("level1/28", rows=ROWS, x=("M", WIDE))
def hard_sigmoid(x: Tensor) -> Tensor:
    return F.hardsigmoid(x)


@program("level1/29", rows=ROWS, x=("M", WIDE))
def softplus(x: Tensor) -> Tensor:
    return F.softplus(x)


@program("level1/30", rows=ROWS, x=("M", WIDE))
def softsign(x: Tensor) -> Tensor:
    return x / (1 + torch.abs(x))


@program("level1/31", rows=ROWS, x=("M", WIDE))
def elu(x: Tensor) -> Tensor:
    return F.elu(x, alpha=1.0)


@program("level1/32", rows=ROWS, x=("M", WIDE))
def hard_tanh(x: Tensor) -> Tensor:
    return F.hardtanh(x, min_val=-1.0, max_val=1.0)


@program("level1/33", rows=(16,), x=("M", 64, 256, 256), mean=(64,), var=(64,), w=(64,), b=(64,))
def batch_norm(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, mean, var.square(), w, b)


@program("level1/34", rows=(16,), x=("M", 64, 128, 128))
def instance_norm(x: Tensor) -> Tensor:
    return F.instance_norm(x)


@program("level1/35", rows=(16,), x=("M", 64, 128, 128), w=(64,), b=(64,))
def group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x, 8, w, b)


@program("level1/36", rows=(16,), x=("M", 64, 256, 256))
def rms_norm_of_channels(x: Tensor) -> Tensor:
    return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5)


@program("level1/37", rows=(16,), x=("M", 64, 128, 128))
def frobenius_norm(x: Tensor) -> Tensor:
    return x / torch.norm(x, p="fro")


@program("level1/38", rows=ROWS, x=("M", 32767))
def l1_norm(x: Tensor) -> Tensor:
    return x / torch.mean(torch.abs(x), dim=1, keepdim=True)


@program("level1/39", rows=ROWS, x=("M", 32767))
def l2_norm(x: Tensor) -> Tensor:
    return x / torch.norm(x, p=2, dim=1, keepdim=True)


@program("level1/40", rows=(16,), x=("M", 64, 64, 64), w=(64, 64, 64), b=(64, 64, 64))
def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (64, 64, 64), w, b)


@program("level1/47", rows=(64,), x=("M", 4096, 4095))
def sum_of_dim(x: Tensor) -> Tensor:
    return torch.sum(x, dim=1, keepdim=True)


@program("level1/48", rows=(64,), x=("M", 4096, 4095))
def mean_of_dim(x: Tensor) -> Tensor:
    return torch.mean(x, dim=1)


@program("level1/49", rows=(64,), x=("M", 4096, 4095))
def max_of_dim(x: Tensor) -> Tensor:
    return torch.max(x, dim=1)[0]


@program("level1/53", rows=(64,), x=("M", 4096, 4095))
def min_of_dim(x: Tensor) -> Tensor:
    return torch.min(x, dim=1)[0]


@program("level1/88", rows=(8192,), x=("M", 8192))
def new_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


@program("level1/94", rows=(8192,), x=("M", 8192), y=("M", 8192))
def mean_squared_error(x: Tensor, y: Tensor) -> Tensor:
    return torch.mean((x - y) ** 2)


@program("level1/96", rows=(8192,), x=("M", 8192), y=("M", 8192))
def huber_loss(x: Tensor, y: Tensor) -> Tensor:
    return F.smooth_l1_loss(x, y)


@program("level1/97", rows=(512,), q=(32, 8, "M", 128), k=(32, 8, "M", 128), v=(32, 8, "M", 128))
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


@program("level1/98", rows=(8192,), x=("M", 8192), y=("M", 8192))
def divergence(x: Tensor, y: Tensor) -> Tensor:
    x, y = torch.softmax(x, dim=1), torch.softmax(y, dim=1)
    return F.kl_div(torch.log(x), y, reduction="batchmean")


@program("level1/99", rows=(8192,), a=("M", 8192), p=("M", 8192), n=("M", 8192))
def triplet_loss(a: Tensor, p: Tensor, n: Tensor) -> Tensor:
    return F.triplet_margin_loss(a, p, n, margin=1.0)


@program("level1/100", rows=(8192,), x=("M", 8192), y=("M", 1))
def hinge_loss(x: Tensor, y: Tensor) -> Tensor:
    return torch.mean(torch.clamp(1 - x * y, min=0))
