"""Settings of different sections that do not go together: refused when an experiment is made, or its data are read."""

from typing import TYPE_CHECKING, Any

from pfl_ops.config.fields import show
from pfl_ops.errors import PflOpsError
from pfl_ops.models.backbone import has_backbone

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.data.datasets import Dataset


def meets(value: Any, allowed: Any) -> bool:
    """True if a value is what a method requires: see `Algorithm.requires`.

    >>> meets("sgd", "sgd"), meets(1, ("none", 2)), meets(None, ...), meets(0, ...)
    (True, False, False, True)
    """
    return value is not None if allowed is ... else value in several(allowed)


def several(allowed: Any) -> tuple[Any, ...]:
    """Return the values that a method allows, of which it may require one alone.

    >>> several("sgd"), several(("sgd", "adam"))
    (('sgd',), ('sgd', 'adam'))
    """
    return allowed if isinstance(allowed, tuple) else (allowed,)


def check_required(experiment: "Experiment") -> None:
    """Refuse settings without which the method is not itself."""
    method = experiment.algorithm
    required = method.required()
    wrong = [path for path, allowed in required.items() if not meets(experiment.get(path), allowed)]
    if wrong:
        needs = " and ".join(
            f"{path} set" if allowed is ... else f"{path}={'|'.join(map(_text, several(allowed)))}"
            for path, allowed in required.items()
        )
        because = f" ({method.because})" if method.because else ""
        got = " and ".join(_text(experiment.get(path)) for path in wrong)
        raise PflOpsError(f"{method.name} needs {needs}{because}; got {got}")


def check_scaling(experiment: "Experiment") -> None:
    """Refuse an input scaling that a frozen network would not see."""
    scaling, model = experiment.data.scaling, experiment.model
    if scaling != "standard" and has_backbone(model):
        raise PflOpsError(
            f"data.scaling must be standard with {model.name}, whose frozen part scales images itself; "
            f"got {_text(scaling)}"
        )


def check_characters(experiment: "Experiment", dataset: "Dataset") -> None:
    """Refuse scaled samples where the network reads characters."""
    if experiment.model.name == "char_lstm" and (dataset.mean.any() or (dataset.std != 1).any()):
        raise PflOpsError(
            f"model 'char_lstm' needs the character codes of {dataset.name} as stored: data.scaling=[0, 1]; "
            f"got {_text(experiment.data.scaling)}"
        )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, float) else show(value)
