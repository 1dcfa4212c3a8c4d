"""The final global model as MLflow loads it: this file's text travels with the model ("models from code").

Nothing is unpickled: weights are safetensors, the description is JSON, networks are built by `pfl_ops.models`, which
must be installed where the model is loaded.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext
from safetensors.torch import load_file

from pfl_ops.models import MODELS, build
from pfl_ops.registry import load_plugin

BATCH = 256  # samples at once


class ServedNetwork(PythonModel):
    """Classifies raw samples: images as stored, uint8 [n, H, W, C] or [n, H, W] of one channel, or features [n, d]."""

    def load_context(self, context: PythonModelContext) -> None:
        """Build the network from its description and fill in the weights."""
        description = json.loads(Path(context.artifacts["description"]).read_text(encoding="utf-8"))
        for name, path in sorted(context.artifacts.items()):
            if name.startswith("plugin_"):
                load_plugin(Path(path))
        options = description["network"]
        self.shape = tuple(description["shape"])
        self.classes = description["classes"]
        section = MODELS.get(options["name"]).model_validate(options)
        self.network = build(section, self.shape, len(self.classes), seed=0)
        found = self.network.load_state_dict(load_file(context.artifacts["weights"]), strict=False)
        lost = {name for name, _ in self.network.named_parameters()} & set(found.missing_keys)  # buffers are constant
        if lost or found.unexpected_keys:
            raise ValueError(f"the weights do not fit network '{options['name']}': {sorted(lost)} missing")
        self.network.eval()
        self.mean = torch.tensor(description["mean"], dtype=torch.float32)
        self.std = torch.tensor(description["std"], dtype=torch.float32)

    def predict(
        self, context: PythonModelContext, model_input: np.ndarray, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """One row a sample: `class`, the most probable one, and `p(<class>)` for each class.

        Raises:
            ValueError: the samples have another shape than the network's, or values that are not finite.
        """
        x = np.asarray(model_input)
        if len(self.shape) == 3 and x.ndim == 3 and self.shape[2] == 1:
            x = x[..., None]
        if x.shape[1:] != self.shape:
            raise ValueError(f"samples have shape {x.shape[1:]}, the model takes {self.shape}")
        bad = ~np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
        if bad.any():  # a class would be answered, as if it were known
            raise ValueError(
                f"{bad.sum():,} of {len(x):,} samples have values that are not finite (first: {bad.argmax()})"
            )
        with torch.inference_mode():
            parts = [self._probabilities(x[i : i + BATCH]) for i in range(0, len(x), BATCH)]
        p = np.concatenate(parts) if parts else np.zeros((0, len(self.classes)), np.float32)
        columns = {f"p({name})": p[:, i] for i, name in enumerate(self.classes)}
        return pd.DataFrame({"class": [self.classes[i] for i in p.argmax(axis=1)], **columns})

    def _probabilities(self, x: np.ndarray) -> np.ndarray:
        z = (torch.from_numpy(np.ascontiguousarray(x)).float() - self.mean) / self.std
        if z.ndim == 4:
            z = z.permute(0, 3, 1, 2)
        return self.network(z).softmax(dim=1).numpy()


set_model(ServedNetwork())
