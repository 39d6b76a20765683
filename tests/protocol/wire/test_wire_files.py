"""Connection files: whole or absent, private; another run's is never removed."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from looptap.protocol.errors import NoDirectory, NoSuchRun, UnsafeFile, VersionMismatch
from looptap.protocol.files import connection as connections
from looptap.protocol.files.connection import (
    ConnectionFile,
    listing,
    publish,
    read_connection_file,
    remove,
    runtime_dir,
    sweep,
)
from looptap.protocol.keys import KeyPair, RoleKeys, is_key
from looptap.protocol.messages import VERSION, RunInfo
from looptap.protocol.process.identity import Process, start_time

KEYS = RoleKeys.fresh("operator")


def connection(run="digits-1", started=1.0, rank=0, **changes):
    info = RunInfo(run, "digits", "host", os.getpid(), started, rank)
    return msgspec.structs.replace(ConnectionFile.of(info, KEYS, ("ipc:///tmp/x.sock",)), **changes)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_a_file_is_readable_by_its_owner_only_under_any_umask(directory, umask):
    before = os.umask(umask)
    try:
        path = publish(connection(), directory)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(directory) == ["digits-1.0.operator.json"]


def test_a_published_file_reads_back_equal(directory):
    file = connection()
    assert read_connection_file(publish(file, directory)) == file
    assert file.client == KEYS.client
    assert file.process.alive()


@pytest.mark.parametrize("run", ["../../etc/passwd", "a/b", "name with spaces", "ümlaut", ".hidden"])
def test_the_file_of_a_run_with_any_name_is_in_the_directory(directory, run):
    path = publish(connection(run), directory)
    assert path.parent == directory
    assert [found.path for found in listing(directory)] == [path]


@pytest.mark.promise("S4")
def test_secrets_stay_out_of_reprs_pickles_and_the_servers_out_of_the_file(directory):
    file = connection()
    path = publish(file, directory)
    secrets = [KEYS.server.secret, KEYS.client.secret]
    assert is_key(secrets[0])
    for shown in (repr(file), str(file), repr(KEYS), repr(listing(directory)), f"{KEYS.server}"):
        assert not any(secret.decode() in shown for secret in secrets)
    assert secrets[0] not in path.read_bytes()
    for name in ("cmdline", "environ"):
        assert not any(secret in Path("/proc/self", name).read_bytes() for secret in secrets)
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(KEYS)


def test_keys_are_fresh_for_each_run_and_role():
    made = [RoleKeys.fresh(role) for role in ("operator", "viewer", "operator")]
    assert (
        len({half for keys in made for pair in (keys.server, keys.client) for half in (pair.public, pair.secret)}) == 12
    )


def test_a_reader_never_sees_half_a_file(directory):
    stop = threading.Event()
    seen = []

    def look() -> None:
        while not stop.is_set():
            seen.extend((found.problem, found.file) for found in listing(directory))

    reader = threading.Thread(target=look)
    reader.start()
    file = connection()
    for _ in range(300):
        assert remove(publish(file, directory))
    stop.set()
    reader.join()
    assert seen
    assert all(entry == ("", file) for entry in seen)
    assert os.listdir(directory) == []


@pytest.mark.parametrize("plant", ["file", "directory", "link", "dangling"])
def test_nothing_is_ever_written_over(directory, plant):
    path = directory / connection().name
    victim = directory / "victim"
    victim.write_text("precious")
    match plant:
        case "file":
            path.write_text("precious")
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to(victim)
        case _:
            path.symlink_to(directory / "nowhere")
    before = sorted(os.listdir(directory))
    with pytest.raises(UnsafeFile, match=f"Remove it: rm {path}"):
        publish(connection(), directory)
    assert sorted(os.listdir(directory)) == before
    assert victim.read_text() == "precious"


def test_nothing_is_published_where_others_could_change_it(directory):
    directory.chmod(0o770)
    with pytest.raises(UnsafeFile, match=f"chmod go-w {directory}"):
        publish(connection(), directory)


# ---------------------------------------------------------------- what a client refuses


def readable_by_others(path):
    path.chmod(0o640)
    return f"chmod 600 {path}"


def of_another_user(path):
    os.chown(path, 65534, 65534)
    return f"install -m 600 {path} ."


def symbolic_link(path):
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))
    return f"readlink -f {path}"


def not_a_file(path):
    path.unlink()
    os.mkfifo(path, 0o600)
    return f"rm {path}"


def in_an_open_directory(path):
    path.parent.chmod(0o777)
    return f"chmod go-w {path.parent}"


def not_json(path):
    path.write_text("{")
    return f"rm {path}"


def too_large(path):
    path.write_bytes(b" " * 70_000)
    return f"rm {path}"


def malformed_keys(path):
    path.write_bytes(msgspec.json.encode(connection(public="x" * 40, secret="€" * 40)))
    return f"rm {path}"


def strange_endpoint(path):
    path.write_bytes(msgspec.json.encode(connection(endpoints=("file:///etc/passwd",))))
    return f"rm {path}"


VARIANTS = [
    readable_by_others,
    of_another_user,
    symbolic_link,
    not_a_file,
    in_an_open_directory,
    not_json,
    too_large,
    malformed_keys,
    strange_endpoint,
]


@pytest.mark.promise("S5")
@pytest.mark.parametrize("spoil", VARIANTS, ids=lambda f: f.__name__)
def test_a_file_that_cannot_be_trusted_is_refused_with_the_command_that_mends_it(directory, spoil):
    if spoil is of_another_user and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = publish(connection(), directory)
    command = spoil(path)
    with pytest.raises(UnsafeFile) as caught:
        read_connection_file(path)
    assert str(caught.value).endswith(command)
    (found,) = listing(directory)
    assert (found.file, found.alive, found.problem) == (None, None, str(caught.value))


def test_each_refusal_names_its_case(directory):
    said = set()
    for spoil in VARIANTS[2:6]:
        path = publish(connection(), directory)
        spoil(path)
        with pytest.raises(UnsafeFile) as caught:
            read_connection_file(path)
        said.add(str(caught.value).partition(str(directory))[2].partition(" ")[2])
        directory.chmod(0o700)
        for left in directory.iterdir():
            left.unlink()
    assert len(said) == 4


def test_another_major_version_is_an_error_with_both_versions(directory):
    path = publish(connection(version=(VERSION[0] + 1, 3)), directory)
    with pytest.raises(VersionMismatch, match=rf"version {VERSION[0] + 1}\.3, this looptap speaks {VERSION[0]}\."):
        read_connection_file(path)


def test_a_newer_minor_version_with_unknown_fields_is_read(directory):
    path = publish(connection(version=(VERSION[0], 7)), directory)
    content = msgspec.json.decode(path.read_bytes()) | {"later": True}
    path.write_bytes(msgspec.json.encode(content))
    assert read_connection_file(path).version == (VERSION[0], 7)


def test_a_missing_file_is_no_such_run(directory):
    with pytest.raises(NoSuchRun, match="There is no connection file"):
        read_connection_file(directory / "gone.json")
    assert listing(directory / "nowhere") == []


# ---------------------------------------------------------------- the living and the dead

PUBLISH = """
import sys
from pathlib import Path
from looptap.protocol.files.connection import ConnectionFile, publish
from looptap.protocol.keys import RoleKeys
from looptap.protocol.messages import RunInfo
import os
directory, run = Path(sys.argv[1]), sys.argv[2]
info = RunInfo(run, run, "host", os.getpid(), 1.0)
publish(ConnectionFile.of(info, RoleKeys.fresh("operator"), (f"ipc://{directory}/{run}.sock",)), directory)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S31")
def test_killed_runs_are_distinguished_and_removed_with_their_sockets(directory):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PUBLISH, str(directory), f"run{i}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for i in range(4)
    ]  # fmt: skip
    with processes[0], processes[1], processes[2], processes[3]:
        for process in processes:
            assert process.stdout.readline() == b"ready\n"
        assert [found.alive for found in listing(directory)] == [True] * 4
        for i, process in enumerate(processes[:3]):
            os.mknod(directory / f"run{i}.sock", 0o600 | stat.S_IFSOCK)
            process.kill()
        processes[0].wait()  # the others stay behind as zombies
        os.waitid(os.P_PID, processes[1].pid, os.WEXITED | os.WNOWAIT)
        os.waitid(os.P_PID, processes[2].pid, os.WEXITED | os.WNOWAIT)
        alive = {found.path.name.partition(".")[0]: found.alive for found in listing(directory)}
        assert alive == {"run0": False, "run1": False, "run2": False, "run3": True}
        assert not remove(directory / "run3.0.operator.json")
        assert sweep(directory) == 3
        assert os.listdir(directory) == ["run3.0.operator.json"]
        processes[3].kill()


def test_a_reused_pid_is_not_taken_for_the_run():
    this = Process.this()
    assert msgspec.structs.replace(this, start="12345").alive() is False
    assert msgspec.structs.replace(this, pid=2**22 + 1).alive() is False
    assert start_time(2**22 + 1) == ""


@pytest.mark.parametrize("field", ["host", "machine", "namespace"])
def test_runs_of_another_host_or_container_are_neither_judged_nor_removed(directory, field):
    elsewhere = msgspec.structs.replace(Process.this(), **{field: "elsewhere"}, pid=1)
    path = publish(connection(process=elsewhere), directory)
    assert [found.alive for found in listing(directory)] == [None]
    assert not remove(path)
    assert sweep(directory) == 0
    assert path.exists()


def test_a_run_of_an_earlier_boot_is_dead():
    earlier = msgspec.structs.replace(Process.this(), boot="another")
    assert earlier.alive() in (False, None)
    assert msgspec.structs.replace(earlier, machine="", namespace="").alive() is None


def test_a_dead_runs_file_does_not_lead_to_the_removal_of_what_is_no_socket(directory):
    victim = directory / "victim"
    victim.write_text("precious")
    dead = msgspec.structs.replace(Process.this(), start="1")
    path = publish(connection(process=dead, endpoints=(f"ipc://{victim}", "tcp://127.0.0.1:1")), directory)
    assert remove(path)
    assert victim.read_text() == "precious"


def test_the_newest_run_comes_first_and_its_ranks_in_order(directory):
    for run, started, rank in [("old", 1.0, 0), ("new", 2.0, 1), ("new", 2.0, 0)]:
        publish(connection(run, started, rank), directory)
    assert [found.path.name for found in listing(directory)] == [
        "new.0.operator.json",
        "new.1.operator.json",
        "old.0.operator.json",
    ]


# ---------------------------------------------------------------- the directory


def test_the_directory_is_the_one_that_is_named(directory, monkeypatch):
    monkeypatch.setenv("LOOPTAP_DIR", str(directory))
    assert runtime_dir() == directory
    directory.chmod(0o777)
    with pytest.raises(UnsafeFile, match=f"chmod go-w {directory}"):
        runtime_dir()
    monkeypatch.setenv("LOOPTAP_DIR", str(directory / "missing"))
    with pytest.raises(NoDirectory, match="mkdir -p -m 700"):
        runtime_dir()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the place is Linux's")
@pytest.mark.parametrize("squat", ["file", "link", "open", "foreign"])
def test_a_private_directory_that_others_can_open_is_refused(squat, directory, monkeypatch):
    if squat == "foreign" and os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000 + os.getpid())
    path = Path(f"/tmp/looptap-{os.getuid()}")
    try:
        match squat:
            case "file":
                path.write_text("")
            case "link":
                path.symlink_to(directory)
            case "open":
                path.mkdir()
                path.chmod(0o755)
            case _:
                path.mkdir(0o700)
                os.chown(path, 65534, 65534)
        with pytest.raises(UnsafeFile, match=r"rm /tmp|chmod 700|LOOPTAP_DIR"):
            connections.private_dir()
    finally:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_the_form_of_a_key_is_checked():
    assert is_key(KeyPair.fresh().public)
    for wrong in (b"", b"x" * 39, b"\0" * 40, b"#" * 40, b"~" * 40):
        assert not is_key(wrong)
