"""What a pool makes of the ends of its workers, without any Ray running."""

import pytest
import ray
from ray.exceptions import ActorDiedError, OutOfMemoryError

from pfl_ops.tuning.pool import TRIES, Failed, Pool, _Running


@pytest.mark.parametrize("error", [ActorDiedError(), OutOfMemoryError("the node was running low on memory")])
def test_a_job_whose_process_is_gone_is_tried_again_and_then_given_up(error, monkeypatch):
    """Ray's own guard of memory raises another kind of error than a process that dies by itself."""

    def get(_: object) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    pool = Pool(place=None, payload=None)  # type: ignore[arg-type]
    assert pool._next(iter([None]), _Running("job", None, tries=1)) == (None, False)
    happened, alive = pool._next(iter([None]), _Running("job", None, tries=TRIES))
    assert isinstance(happened, Failed) and "lack of memory" in happened.reason
    assert not alive
