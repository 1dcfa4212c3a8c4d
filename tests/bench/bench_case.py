"""Small cases on digits, whose data need no download."""

from pfl_ops.bench.case import Case
from pfl_ops.bench.settings import settings_of


def small(model: str, **given: object) -> Case:
    """A case of four clients on digits, batches of 10."""
    values = {
        "dataset": "digits",
        "clients": 4,
        "evaluate_models": 4,
        "evaluate_images": 60,
        "threads": 1,
        "rounds": 20,
    }
    values |= {"device": "cpu", "model": model, **given}
    return Case(settings_of(values), model, int(str(given.get("batch", 10))))
