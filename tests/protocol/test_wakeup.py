"""A wakeup of each kind of platform: set from any thread, seen once."""

import select

import pytest

from looptap.protocol.process.wakeup import SocketWakeup, Wakeup


@pytest.mark.parametrize("kind", [Wakeup, SocketWakeup])
def test_a_wakeup_is_seen_until_it_is_cleared(kind):
    wakeup = kind()
    assert select.select([wakeup.fd], [], [], 0.0)[0] == []
    for _ in range(100_000):  # more than a socket holds
        wakeup.set()
    assert select.select([wakeup.fd], [], [], 0.0)[0] == [wakeup.fd]
    while wakeup.clear():
        pass
    assert select.select([wakeup.fd], [], [], 0.0)[0] == []
