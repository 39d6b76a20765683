"""The digits of the demo are there without scikit-learn, and can be learned."""

from __future__ import annotations

import torch

from looptap.examples import digits


def test_digits_are_drawn_where_scikit_learn_is_missing(monkeypatch):
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    before = torch.get_rng_state()
    images, targets = digits.digits()
    assert torch.equal(torch.get_rng_state(), before)
    assert (tuple(images.shape), images.dtype, targets.dtype) == ((1797, 1, 8, 8), torch.float32, torch.int64)
    assert 0.0 <= float(images.min()) < 0.2
    assert 0.8 < float(images.max()) <= 1.0
    assert torch.equal(images, digits.digits()[0])


def test_drawn_digits_can_be_learned():
    torch.manual_seed(0)
    images, targets = digits.drawn_digits()
    model = digits.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in torch.arange(1500).split(64) * 3:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[batch]), targets[batch]).backward()
        optimizer.step()
    model.eval()
    assert (model(images[1500:]).argmax(1) == targets[1500:]).float().mean() > 0.8
