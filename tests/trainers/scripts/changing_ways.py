"""A loop that goes about its updates in one way for a while, then in another."""

import contextlib

import torch

torch.manual_seed(3)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(8, 3), torch.randn(8, 1)
step, rate = 0, 0.01


class Failing(torch.autograd.Function):
    """Raises in its backward pass."""

    @staticmethod
    def forward(ctx, value):
        return value * 1

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("no gradient")


def usual():
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss


def twice():
    usual()
    return usual()


def weighted():
    loss = (model(x) - y).square().mean()
    loss.backward(torch.tensor(-2.0))
    return loss


def failed():
    with contextlib.suppress(ArithmeticError):
        Failing.apply((model(x) - y).square().mean()).backward()
    return usual()


def changed():
    loss = usual()
    with torch.no_grad():
        loss *= 100
    return loss


def dropped():
    usual()
    optimizer.zero_grad()
    return usual()


def replaced():
    loss = usual()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    optimizer.zero_grad()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    return loss


def attacked():
    noise = torch.zeros_like(x, requires_grad=True)
    (model(x + noise) - y).square().mean().backward(inputs=[noise])
    return usual()


def evaluated():
    model.eval()
    with torch.no_grad():
        model(x)
    model.train()
    return usual()


others = replaced, attacked, evaluated
for way in (usual, twice, usual, weighted, failed, usual, changed, dropped, usual, *others, usual):
    for _ in range(100):
        step += 1
        rate = 0.01 / step
        optimizer.zero_grad()
        loss = way()
        optimizer.step()
        print("step", step, loss.item(), rate)
