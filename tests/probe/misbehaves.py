"""A plug-in: a method that trains, or fails in a way that the test asks for, once so many processes train at once."""

import os
import signal
from pathlib import Path
from typing import Literal

import torch

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, Stages, State, Task, Update, register


@register("misbehaves")
class Misbehaves(Algorithm):
    """FedAvg with an accident."""

    accident: Literal["none", "memory", "killed", "error", "exit"] = "none"
    folder: str = ""
    at: int = Field(2, ge=1, description="processes that have come this far when it happens")

    def init(self, task: Task) -> State:
        return {"central": task.initial}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        if self.accident != "none":
            Path(self.folder, str(os.getpid())).touch()
            if len(os.listdir(self.folder)) >= self.at:
                self._happens()
        central = r.weights @ r.train(s["central"])
        return {"central": central}, {"G": Models(central)}

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])

    def _happens(self) -> None:
        if self.accident == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")
        if self.accident == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.accident == "exit":
            os._exit(3)
        raise ZeroDivisionError("a bug\nof the method")
