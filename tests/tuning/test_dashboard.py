"""Optuna's dashboard on the studies: what it answers to whom."""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import reserved_port
from tuning_fake import toy

from pfl_ops import spaces
from pfl_ops.errors import PflOpsError
from pfl_ops.tuning.commands import dashboard as module
from pfl_ops.tuning.commands.dashboard import FIRST_PAGE, HOST, dashboard
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import StudyStorage


def make_study(home: Path) -> None:
    settings = Settings.of(toy(), spaces.parse("algorithm.x: {float: [0, 1]}"), metric="val/L1/acc")
    StudyStorage("mine", study_database.storage(f"sqlite:///{home}/studies.db"), settings.objective, settings.as_dict())


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Port of a dashboard on one study."""
    make_study(tmp_path)
    with reserved_port() as free, dashboard(home=tmp_path, port=free) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield free
        finally:
            server.shutdown()
            thread.join()


def ask(port: int, path: str, method: str = "GET", host: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request(method, path, headers={"Host": host or f"{HOST}:{port}"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_studies_are_shown_and_their_file_stays_as_it_is(port: int, tmp_path: Path) -> None:
    before = (tmp_path / "studies.db").read_bytes()
    status, page = ask(port, FIRST_PAGE)
    assert status == 200 and b"<html" in page.lower()
    status, found = ask(port, "/api/studies", host=f"localhost:{port}")
    assert status == 200 and [one["study_name"] for one in json.loads(found)["study_summaries"]] == ["mine"]
    assert ask(port, "/api/studies/1")[0] == 200 and (tmp_path / "studies.db").read_bytes() == before


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_is_changed(port: int, method: str) -> None:
    assert ask(port, "/api/studies/0", method)[0] == 405
    assert b"mine" in ask(port, "/api/studies")[1]


@pytest.mark.parametrize("host", ["attacker.example", "127.0.0.1", "attacker.example:5000"])
def test_other_hosts_get_no_answer(port: int, host: str) -> None:
    """As when another site's name is made to lead to this machine."""
    status, text = ask(port, "/api/studies", host=host)
    assert status == 403 and b"mine" not in text


def test_it_listens_on_this_machine_only(tmp_path: Path) -> None:
    make_study(tmp_path)
    with reserved_port() as free, dashboard(home=tmp_path, port=free) as server:
        assert server.server_address[0] == HOST
        with pytest.raises(PflOpsError, match=f"port {free} is taken"):
            dashboard(home=tmp_path, port=free)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PflOpsError, match="there is no study yet"):
        dashboard(home=tmp_path)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(PflOpsError, match=r"needs optuna-dashboard: pip install 'pfl-ops\[dashboard\]'"):
        dashboard(home=tmp_path)
