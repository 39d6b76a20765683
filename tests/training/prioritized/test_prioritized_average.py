"""The average gradient: its formula, half precision, missing gradients, state."""

from __future__ import annotations

import io

import pytest
import torch

from looptap.training.prioritized.average_gradient import AverageGradient


def test_it_is_the_exponential_average_of_the_gradients_in_32_bits():
    rng = torch.Generator().manual_seed(1)
    parameters = [torch.zeros(3, 2, requires_grad=True), torch.zeros(4, dtype=torch.bfloat16), torch.zeros(())]
    average = AverageGradient(parameters, decay=0.98)
    held, expected = [*average.tensors], [torch.zeros(one.shape, dtype=torch.float64) for one in parameters]
    for step in range(200):
        gradients = [torch.randn(one.shape, generator=rng).to(one.dtype) for one in parameters]
        if step % 3 == 0:
            gradients[2] = None
        before = [None if one is None else one.clone() for one in gradients]
        average.update(gradients)
        for place, gradient in enumerate(gradients):
            new = 0.0 if gradient is None else gradient.double()
            expected[place] = 0.98 * expected[place] + (1 - 0.98) * new
            assert gradient is None or torch.equal(gradient, before[place])
    for mine, right, one in zip(average.tensors, expected, held, strict=True):
        assert mine is one
        assert not mine.requires_grad
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), right, rtol=1e-4, atol=1e-5)


def test_it_continues_from_a_checkpoint_bit_for_bit_and_refuses_that_of_another_model():
    average, other = (AverageGradient([torch.zeros(3), torch.zeros(2, 2)], 0.5) for _ in range(2))
    average.update([torch.rand(3), torch.rand(2, 2)])
    file = io.BytesIO()
    torch.save(average.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    gradients = [torch.rand(3), torch.rand(2, 2)]
    for one in (average, other):
        one.update(gradients)
    assert all(map(torch.equal, average.tensors, other.tensors))
    assert other.updates == 2
    with pytest.raises(ValueError, match="other parameters"):
        AverageGradient([torch.zeros(3)], 0.5).load_state_dict(average.state_dict())
    with pytest.raises(ValueError, match="1 gradients for 2 parameters"):
        average.update([torch.zeros(3)])
