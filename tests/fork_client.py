"""Client of tests/fork_server.py: the process that stands for a fork of that server.

    python -IS fork_client.py SOCKET -c CODE *WORDS
    python -IS fork_client.py SOCKET -m MODULE *WORDS
    python -IS fork_client.py SOCKET FILE *WORDS

It imports built-in modules only: Python's own take four times as long to import as all the rest that it does.
"""

import _signal as signal
import _socket as socket
import array
import marshal
import os
import sys

REAL = "real"  # the server's answer if the client shall start a real process


def ask(address: str, words: list[str], ray: bool = False) -> None:
    """Have the server at this address run Python with these arguments, and end as that ends.

    Args:
        ray: as a worker of Ray, which needs other variables at import than the server has.
    """
    real = [sys.executable, *words]
    files = sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))
    request = {
        "words": words, "folder": os.getcwd(), "environment": dict(os.environ), "client": os.getpid(),
        "session": os.getsid(0) == os.getpid(), "group": os.getpgrp(), "files": files, "ray": ray,
    }  # fmt: skip
    process = 0
    early = []  # signals that came before there was a process

    def pass_on(number: int, frame: object) -> None:
        if process:
            os.kill(process, number)
        else:
            early.append(number)

    for passed in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(passed) != signal.SIG_IGN:
            signal.signal(passed, pass_on)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address)
    data = marshal.dumps(request)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
    connection.sendmsg([len(data).to_bytes(4, "big")], rights)
    connection.sendall(data)
    with open(connection.fileno(), closefd=False) as answers:
        found = answers.readline().strip()
        if found == REAL:
            os.execv(sys.executable, real)
        if not found:
            sys.exit("the fork server is gone")
        process = int(found)
        for number in early:
            os.kill(process, number)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # the fork's alone: else a reader would wait for this process too
            os.dup2(null, stream)
        code = int(answers.readline() or 1)
    if code < 0:
        if -code != signal.SIGKILL:  # it has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    ask(sys.argv[1], sys.argv[2:])
