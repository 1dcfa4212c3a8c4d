import pytest
import torch

from pfl_ops.system import machine

torch.set_num_threads(1)  # networks of some forty numbers: threads only wait for one another


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process takes anything, whatever else runs here: an estimate says nothing of it."""
    monkeypatch.setattr(machine.OtherLoad, "share", lambda self: 0.0)
