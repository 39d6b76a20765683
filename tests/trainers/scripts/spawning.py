"""Starts the script of its first argument in two processes, by multiprocessing."""

import multiprocessing
import os
import runpy
import sys


def train(rank, words):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=words.pop(0))
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


def main():
    import socket

    with socket.create_server(("localhost", 0)) as server:
        port = str(server.getsockname()[1])
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=train, args=(rank, [port, *sys.argv[1:]])) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(max(rank.exitcode for rank in ranks))


if __name__ == "__main__":
    main()
