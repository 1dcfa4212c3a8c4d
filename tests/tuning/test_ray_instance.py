"""A Ray of ours is reachable from this machine only, and only with its token."""

import ipaddress
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import ray
from tuning_fake import records, toy, tune

from pfl_ops import spaces
from pfl_ops.errors import PflOpsError
from pfl_ops.jobs import no_agent, ray_instance, resources

REFUSED, UNKNOWN, FINE = 16, 12, 0  # gRPC's status codes: unauthenticated, unimplemented, ok

SERVICES = {
    "GCS": "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "raylet": "/ray.rpc.NodeManagerService/GetNodeStats",
    "object manager": "/ray.rpc.ObjectManagerService/Push",
    "worker": "/ray.rpc.CoreWorkerService/PushTask",
}


def status(port: int, path: str, token: str | None = None, body: bytes = b"") -> int:
    """gRPC's status of one call: HTTP/2 by hand, since a client of Ray's own would bring its token."""

    def header(name: str, value: str) -> bytes:
        return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
    headers |= {"content-type": "application/grpc", "te": "trailers"}
    headers |= {"authorization": f"Bearer {token}"} if token else {}
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as pipe:
        pipe.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        pipe.sendall(frame(1, 4, 1, b"".join(header(*each) for each in headers.items())))
        pipe.sendall(frame(0, 1, 1, b"\0" + struct.pack(">I", len(body)) + body))
        while True:
            after = received.partition(b"grpc-status")[2]
            if after and len(after) > after[0]:
                return int(after[1 : 1 + after[0]])
            part = pipe.recv(65536)
            assert part, received
            received += part


def look(worker: psutil.Process) -> SimpleNamespace:
    """Listening sockets of this process and all that it started: who, where; and what each port answers.

    Args:
        worker: Ray's, which is no child where the fork server has started it.
    """
    everyone = dict.fromkeys((psutil.Process(), *psutil.Process().children(recursive=True), worker))
    listening = [
        (process, socket.laddr)
        for process in everyone
        for socket in process.net_connections("inet")
        if socket.status == psutil.CONN_LISTEN
    ]
    lines = [word for process in everyone for word in process.cmdline()]
    named = [(process.name(), at) for process, at in listening]
    raylet = next(process for process, _ in listening if process.name() == "raylet")
    token = raylet.environ()["RAY_AUTH_TOKEN"]
    answers = {
        at.port: sorted([status(at.port, path, token) for token in (None, "0" * 64)] for path in SERVICES.values())
        for _, at in named
    }
    gcs = next(at.port for name, at in named if name == "gcs_server")
    allowed = status(gcs, SERVICES["GCS"], token, b"\n\x00")
    return SimpleNamespace(listening=named, token=token, answers=answers, allowed=allowed, lines=lines)


@pytest.mark.slow
def test_nobody_reaches_ray_without_its_token(one_ray, home, monkeypatch):
    """Looked at while a trial runs."""
    seen = []

    def on_event(event):
        if event.kind == "report" and not seen:
            newest = max((home / "checkpoints").glob("*.json"), key=lambda file: file.stat().st_mtime)
            rounds = json.loads(newest.read_text())
            seen.append(look(psutil.Process(int(rounds[-1]["metrics"]["pid"]))))

    space = spaces.parse("algorithm.x: {float: [0, 1]}\nalgorithm.pause: {float: [0.1, 0.1]}")
    tune(
        toy(),
        space=space,
        trials=1,
        gpus_per_trial=0,
        home=home,
        records=records,
        final_repetitions=0,
        on_event=on_event,
    )
    (found,) = seen

    names = [name for name, _ in found.listening]
    assert names.count("gcs_server") == 1 and names.count("raylet") == 2 and len(names) >= 4, names
    started = {Path(line).parts[-2:] for line in found.lines if line.endswith(".py")}
    assert ("jobs", "no_agent.py") in started, "in place of Ray's agents"
    unused = [("dashboard", "dashboard.py"), ("dashboard", "agent.py"), ("agent", "main.py")]
    assert not started & {*unused, ("autoscaler", "monitor.py"), ("_private", "log_monitor.py")}, "serve no job"
    for _, at in found.listening:
        ip = ipaddress.ip_address(at.ip)
        assert (getattr(ip, "ipv4_mapped", None) or ip).is_loopback, found.listening

    # Every port has one of the services and refuses it, and has no other.
    grpc = [[UNKNOWN, UNKNOWN]] * (len(SERVICES) - 1) + [[REFUSED, REFUSED]]
    for name, at in found.listening:
        assert found.answers[at.port] == grpc, name
    assert found.allowed == FINE

    # The token is in no file, on no command line and no longer in this process's environment.
    assert len(found.token) == 64 and found.token not in os.environ.values()
    assert not any(found.token in word for word in found.lines)
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    files = [path for path in session.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files and not [path for path in files if found.token.encode() in path.read_bytes()]
    private = session.parent.parent
    assert (private.stat().st_mode & 0o777, session.parent.name) == (0o700, ray_instance.INNER)


RAYLET = [
    *("raylet", "--session_dir={}", "--node-name=a=b", "--head"),
    *("--dashboard_agent_command=python agent.py --node-id=0a1b --head", "--runtime_env_agent_command=python main.py"),
]


def test_rays_agents_are_replaced_where_ray_asks_for_nothing_else(tmp_path, monkeypatch):
    """A Ray whose agents announce more, or that is started otherwise, has its own agents."""
    command = [word.format(tmp_path) for word in RAYLET]
    replaced = ray_instance.without_agents(command)
    assert replaced[:4] == command[:4]
    stub = f"{sys.executable} -I -S {no_agent.__file__}"
    assert replaced[4:] == [f"--dashboard_agent_command={stub}", f"--runtime_env_agent_command={stub}"]
    assert len(list(tmp_path.iterdir())) == len(ray_instance.AGENT_PORTS)

    for lacking in (1, 4, 5):
        other = command[:lacking] + command[lacking + 1 :]
        assert ray_instance.without_agents(other) == other
    monkeypatch.setattr(ray._raylet, "NEW_PORT_NAME", "new", raising=False)
    assert ray_instance.without_agents(command) == command


def test_each_instance_has_a_token_of_its_own(monkeypatch):
    """Whatever the user's settings are: they hold again afterwards."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/a/file")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    tokens = []
    for _ in range(2):
        with ray_instance.environment(ray_instance._settings()):
            assert os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN_PATH" not in os.environ
            tokens.append(os.environ["RAY_AUTH_TOKEN"])
    assert len({*tokens}) == 2 and all(len(token) == 64 for token in tokens)
    assert os.environ["RAY_AUTH_MODE"] == "disabled" and os.environ["RAY_AUTH_TOKEN_PATH"] == "/a/file"
    assert "RAY_AUTH_TOKEN" not in os.environ


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "Unauthenticated: RPC error: InvalidAuthToken: ...",
            "the Ray cluster at 'h:1' refuses this user's token; set ",
        ),
        ("Timed out", "no Ray cluster answers at 'h:1' (Failed to connect); start one with `ray start --head`"),
    ],
)
def test_a_cluster_that_is_not_joined_is_one_line(text, line, monkeypatch, capfd):
    """Ray hides the reason in the error that came before."""

    def init(**_):
        os.write(2, b"a warning of Ray's C++ parts\n")
        try:
            raise RuntimeError(text)
        except RuntimeError:
            raise ConnectionError("Failed to connect\nto it")  # noqa: B904

    monkeypatch.setattr(resources, "check_address", lambda address: None)
    monkeypatch.setattr(resources.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(resources.ray, "init", init)
    monkeypatch.setattr(ray_instance, "reload_settings", lambda: None)  # `one_ray` may be running: it keeps its token
    with pytest.raises(PflOpsError) as caught, resources.joined("h:1"):
        pass
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_process_may_be_slow_to_start() -> None:
    """Ray ends a process that has not registered in time, starts no other one, and the study waits for ever."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    code = (
        "import pfl_ops.jobs.resources; from ray._raylet import Config; print(Config.worker_register_timeout_seconds())"
    )
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(said.stdout) >= 3600
