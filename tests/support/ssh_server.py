"""An ssh server of this user's own, on a port of loopback."""

import contextlib
import os
import socket
import subprocess
from pathlib import Path

from programs import need
from waiting import soon


@contextlib.contextmanager
def over_ssh(port, folder):
    """Forward a port by `ssh -L` through a server of our own; yield the near port."""
    server = need("sshd", "SSH -L IS")
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, timeout=300)
    (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd of root does not start without it
    distant, near = _free(), _free()
    options = [
        f"HostKey={folder}/host", f"AuthorizedKeysFile={folder}/authorized", f"Port={distant}",
        "ListenAddress=127.0.0.1", "StrictModes=no", "UsePAM=no", "PasswordAuthentication=no", "PidFile=none",
    ]  # fmt: skip
    words = [word for option in options for word in ("-o", option)]
    with (folder / "sshd.log").open("wb") as log:
        sshd = subprocess.Popen([server, "-D", "-e", "-f", "/dev/null", *words], stderr=log)
    known = ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={folder}/known", "-o", "BatchMode=yes"]
    tunnel = None
    try:
        soon(lambda: _listens(distant), detail=(folder / "sshd.log").read_text)
        command = ["ssh", "-F", "none", "-N", "-i", str(folder / "user"), "-p", str(distant), *known]
        tunnel = subprocess.Popen([*command, "-L", f"{near}:localhost:{port}", "127.0.0.1"])
        soon(lambda: _listens(near), detail=(folder / "sshd.log").read_text)
        yield near
    finally:
        for process in filter(None, (tunnel, sshd)):
            process.terminate()
            process.wait(300)


def _free():
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


def _listens(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 5).close()
        return True
    return False
