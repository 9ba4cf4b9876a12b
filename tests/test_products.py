"""The quicker product gives what `a @ b.T` gives, and leaves alone what it cannot take."""

import pytest
import torch
from twotowers.model import products


@pytest.mark.parametrize("rows, columns", [(1, 5), (8, 8), (37, 130)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_product_equals_the_plain_one(rows, columns, dtype):
    a, b = torch.randn(rows, 20, dtype=dtype), torch.randn(columns, 20, dtype=dtype)
    tolerance = {torch.float32: 1e-5, torch.float64: 0, torch.bfloat16: 0}[dtype]
    torch.testing.assert_close(products.matmul_t(a, b), a @ b.T, atol=tolerance, rtol=0)


def test_strided_rows_are_read_as_they_are():
    a, b = torch.randn(30, 40)[:, ::2], torch.randn(20, 50).T[:50]
    torch.testing.assert_close(products.matmul_t(a, b), a @ b.T, atol=1e-5, rtol=0)


def test_rows_with_gaps_are_made_dense_and_others_left():
    whole = torch.randn(6, 4)
    assert products._dense(whole) is whole
    transposed = whole.T
    assert products._dense(transposed) is transposed
    assert products._dense(whole[:, :2]).is_contiguous()


def test_gradients_still_flow():
    a, b = torch.randn(9, 4, requires_grad=True), torch.randn(9, 4)
    products.matmul_t(a, b).sum().backward()
    torch.testing.assert_close(a.grad, b.sum(0).expand(9, -1))


def test_without_the_quicker_library_nothing_changes(monkeypatch):
    a, b = torch.randn(16, 4), torch.randn(16, 4)
    monkeypatch.setattr(products, "_ONEDNN", None)
    assert torch.equal(products.matmul_t(a, b), a @ b.T)
