"""Products of two matrices by the quicker of the libraries that PyTorch carries.

On a CPU `a @ b.T` goes to MKL, which on processors of another maker than its own runs at about half of what oneDNN
reaches in float32. Both are exact float32 arithmetic: they differ by rounding, as two MKLs do. oneDNN's product is an
operator without a public name (torch.compile uses it), so wherever it is missing `a @ b.T` takes its place.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_SMALLEST = 8  # rows below which finding a kernel costs more than the product


def matmul_t(a: Float[Tensor, "row d"], b: Float[Tensor, "column d"]) -> Float[Tensor, "row column"]:
    """`a @ b.T`: the inner product of every row of a with every row of b."""
    if _takes(a, b):
        return _ONEDNN(_dense(a), _dense(b), None, "none", [], "")
    return a @ b.T


def _dense(a: Tensor) -> Tensor:
    """Rows or columns without gaps: with gaps oneDNN takes a path that is hundreds of times slower than the copy."""
    return a if a.is_contiguous() or a.T.is_contiguous() else a.contiguous()


def _takes(a: Tensor, b: Tensor) -> bool:
    if _ONEDNN is None or not a.device.type == b.device.type == "cpu" or not a.dtype == b.dtype == torch.float32:
        return False
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return False  # the operator has no gradient
    return min(len(a), len(b)) >= _SMALLEST
