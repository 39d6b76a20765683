"""Process that `warm` forks from: warm_server.py SOCKET KIND (see `warm`)."""

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
import warnings

import looptap.agent.agent
import looptap.cli.app
import looptap.client.run
import looptap.testing

looptap.cli.app.command_line()  # with all commands

if sys.argv[2] in ("torch", "frameworks"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what their own imports warn of is not ours
        import torch._dynamo  # the first optimizer of a process would import it
        import torch.distributed
        import torch.utils.data  # noqa: F401 - as above

        if sys.argv[2] == "frameworks":
            for name in ("pytest", "transformers.trainer", "pytorch_lightning", "accelerate", "keras"):
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
elif sys.argv[2] == "nbclient":
    import nbclient  # noqa: F401 - as above
    import nbformat  # noqa: F401 - as above


MAX_DESCRIPTORS = 4096


def forked(listener):
    """Fork for each request; return in the child, with the program and descriptors."""
    clients = {}
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == listener.fileno():
                client = listener.accept()[0]
                if client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8] == OURS:
                    clients[client.fileno()] = client
                    poller.register(client, select.POLLIN)
                continue
            message, fds, _, _ = socket.recv_fds(clients[fd], 1, 5)
            if not message:
                poller.unregister(fd)
                clients.pop(fd).close()
                if not clients:
                    os._exit(0)
            elif start(clients[fd], fds):
                for one in (listener, *clients.values()):
                    one.close()
                return fds


def start(client, fds):
    """Fork; return True in the new program, False here."""
    if os.fork() == 0:  # who waits for the program, and tells its exit code
        program = os.fork()
        if program == 0:
            return True
        with contextlib.suppress(OSError):
            client.send(str(program).encode())
        os.closerange(0, fds[4])  # also the sockets: who has them open is a client
        os.closerange(fds[4] + 1, MAX_DESCRIPTORS)
        _, status = os.waitpid(program, 0)
        with contextlib.suppress(OSError):
            os.write(fds[4], str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    for fd in fds:
        os.close(fd)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return False


OURS = os.getuid().to_bytes(4, sys.byteorder)

for number in (1, 2):  # from here on nothing is said: they may be pipes that are read to their end
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
gc.collect()
gc.freeze()  # what is imported is looked at by no collection of a program
fds = forked(socket.socket(fileno=int(sys.argv[1])))
with open(fds[0], "rb") as file:
    file.seek(0)
    how = json.loads(file.read())
for number, fd in enumerate(fds[1:4]):
    os.dup2(fd, number)
for fd in fds[1:]:
    os.close(fd)
if how["session"]:
    os.setsid()
os.chdir(how["cwd"])
os.environ.clear()
os.environ.update(how["env"])
if os.environ.get("PYTHONWARNINGS") == "ignore":
    warnings.simplefilter("ignore")
for name, number in (("stdout", 1), ("stderr", 2)):
    direct = number == 2 or how["unbuffered"] or os.isatty(number)
    stream = open(number, "w", closefd=False, errors="backslashreplace" if number == 2 else "strict")  # noqa: SIM115
    stream.reconfigure(line_buffering=direct, write_through=how["unbuffered"])
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)
sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
faulthandler.register(signal.SIGUSR2)  # `warm` asks for stacks where it waits too long


class Exchanged(BaseException):
    """Raised where the program would become another Python program."""


def exchange(file, command, environment, instead=os.execvpe):
    """Become another program; a Python program without options continues here."""
    if file != sys.executable or not (command[1].endswith(".py") or command[1] in ("-m", "-c")):
        instead(file, command, environment)
    os.environ.clear()
    os.environ.update(environment)
    raise Exchanged(command[1:])


def execute(words):
    """Run a program as Python does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[:] = paths
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        import sitecustomize  # noqa: F401 - as Python does at its start
    first, *rest = words
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(first))
        main.__file__ = first
        with open(first) as file:
            source = file.read()
        exec(compile(source, first, "exec"), main.__dict__)


os.execvpe = exchange
paths, words = list(sys.path), how["words"]
while words:
    try:
        words = execute(words)
    except Exchanged as exchanged:
        (words,) = exchanged.args
