"""A second host on this machine: own network, boot id and runs, by ssh alone."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import need

NAME = "farhost"
SPACE, NEAR_END, FAR_END = "looptap-far", "ltf-near", "ltf-far"
NEAR, FAR = "10.213.58.1", "10.213.58.2"
INSIDE = """
hostname {name}
mkdir -p -m 700 {runs}
mount -t tmpfs -o mode=700 tmpfs {runs}
mount -t tmpfs tmpfs /run
mkdir -m 755 /run/sshd
echo 11111111-2222-3333-4444-555555555555 > /run/boot
mount --bind /run/boot /proc/sys/kernel/random/boot_id
exec {sshd} -D -e -f {place}/sshd_config
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that has to succeed."""
    return subprocess.run(command, check=True, capture_output=True, text=True)


@contextlib.contextmanager
def far_host(place: Path) -> Iterator[Path]:
    """Start the host that `ssh farhost` reaches; yield a folder for the PATH.

    ``place`` is seen by both hosts; commands there find ``looptap``, and ``place/far/python``.
    """
    sshd, _, _ = (need(program, "A SECOND HOST IS") for program in ("sshd", "ssh", "ip"))
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux makes a second host of a network namespace")
    try:
        run("ip", "netns", "add", SPACE)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no network namespaces: {error.stderr.strip()}")
    server = None
    try:
        run("ip", "link", "add", NEAR_END, "type", "veth", "peer", "name", FAR_END, "netns", SPACE)
        run("ip", "addr", "add", f"{NEAR}/24", "dev", NEAR_END)
        run("ip", "link", "set", NEAR_END, "up")
        for command in (("addr", "add", f"{FAR}/24", "dev", FAR_END), ("link", "set", FAR_END, "up"),
                        ("link", "set", "lo", "up")):  # fmt: skip
            run("ip", "-n", SPACE, *command)
        near = _settings(place)
        inside = INSIDE.format(name=NAME, place=place, sshd=sshd, runs=f"/tmp/looptap-{os.getuid()}")
        apart = ["unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        server = subprocess.Popen(
            ["ip", "netns", "exec", SPACE, *apart, "sh", "-ec", inside], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while subprocess.run([near / "ssh", NAME, "true"], capture_output=True).returncode:
            assert time.monotonic() < deadline, "the other host has no sshd"
            time.sleep(0.05)
        yield near
    finally:
        if server is not None:
            server.kill()
            server.wait()
        subprocess.run(["ip", "netns", "del", SPACE], capture_output=True)
        subprocess.run(["ip", "link", "del", NEAR_END], capture_output=True)


def _settings(place: Path) -> Path:
    """Write the settings of sshd, ssh and the shell; return our `ssh`'s folder."""
    far, near = place / "far", place / "near"
    for file in ("host", "user"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / file))
    (place / "authorized_keys").write_text((place / "user.pub").read_text())
    (place / "known_hosts").write_text(f"{FAR} {(place / 'host.pub').read_text()}")
    for folder, name, line in (
        (far, "looptap", f"exec {sys.executable} -m looptap.cli "),
        (far, "python", f"exec {sys.executable} "),
        (near, "ssh", f"exec {shutil.which('ssh')} -F {place}/ssh_config "),
    ):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f'#!/bin/sh\n{line}"$@"\n')
        (folder / name).chmod(0o755)
    there = {"PATH": f"{far}:/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "OMP_NUM_THREADS": "1"}
    (place / "sshd_config").write_text(
        f"ListenAddress {FAR}\nHostKey {place}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {place}/authorized_keys\nPasswordAuthentication no\nPermitRootLogin yes\nMaxStartups 100\n"
        f"SetEnv {' '.join(f'{key}={shlex.quote(value)}' for key, value in there.items())}\n"
    )
    (place / "ssh_config").write_text(
        f"Host *\n  HostName {FAR}\n  User {getpass.getuser()}\n  IdentityFile {place}/user\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {place}/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    return near
