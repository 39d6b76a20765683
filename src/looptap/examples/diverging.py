"""A job that really diverges: an unguarded softmax, a doubling learning rate.

python -m looptap.examples.diverging [--wait 30]
looptap watch diverging "step, loss, lr(optimizer)" --on batch --when "isnan(loss)" --before 20 --after 2
"""

import argparse
import time

import torch

import looptap
from looptap.examples.digits import digits, make_model


def naive_cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the textbook's mean cross entropy: it overflows for outputs above 88."""
    odds = output.exp()
    return -(odds / odds.sum(1, keepdim=True)).gather(1, target[:, None]).log().mean()


def main() -> None:
    """Train, doubling the learning rate every 40 steps, until 20 losses were NaN."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--wait", type=float, default=0.0, help="seconds to wait, at most, for a client to attach")
    options = arguments.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, targets = digits()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=40, gamma=2.0)

    agent = looptap.Agent("diverging")
    agent.expose(model=model, optimizer=optimizer)
    deadline = time.monotonic() + options.wait
    while time.monotonic() < deadline and not agent.stats()["queries"]:
        time.sleep(0.05)
    nans = 0
    for step in range(2000):
        batch = torch.randint(0, 1500, (64,))
        output = model(images[batch])
        loss = naive_cross_entropy(output, targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        agent.emit("batch", step=step, loss=loss, output=output, batch=batch)
        nans += bool(loss.isnan())
        if nans == 20:
            break
    agent.close()
    print(f"diverged: {nans} losses were NaN, the last at step {step}")


if __name__ == "__main__":
    main()
