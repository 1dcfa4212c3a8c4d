"""A driver to be killed: `python killed.py HOME [--resume] [--confirm] [--seeds] [--environments] [--tests]`.

--confirm: two trials, then confirmation. --seeds: trials of two seeds. --environments: three, with --confirm.
--tests: two trials in one environment, then tests with two seeds, there and in one that is held out.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

if __name__ == "__main__":
    from tuning_fake import records, toy, tune

    from pfl_ops import spaces
    from pfl_ops.errors import PflOpsError
    from pfl_ops.tuning import StudyInterrupted, StudyProgress

    confirm = "--confirm" in sys.argv
    tests = "--tests" in sys.argv
    xs = (0.5, 0.8) if confirm or tests else (0.5, 0.7, 0.6, 0.8)
    points = [{"algorithm.x": x, "algorithm.pause": 0.15} for x in xs]
    parameters = spaces.parse("algorithm.x: {float: [0, 1]}\nalgorithm.pause: {float: [0.15, 0.15]}").as_yaml()
    space = spaces.from_dict({**parameters, "first": points})
    try:
        with StudyProgress() as show:
            tune(
                toy(),
                space=space,
                trials=len(points),
                name="killed",
                confirm=(1 if "--environments" in sys.argv else 3) if confirm else 0,
                environments=["path"] if tests else ["path", "iid", "ls"] if "--environments" in sys.argv else (),
                held_out=["qs"] if tests else (),
                final_repetitions=2 if tests else 1,
                home=sys.argv[1],
                concurrency=2,
                scheduler="none",
                seeds_per_trial=2 if "--seeds" in sys.argv else None,
                resume="--resume" in sys.argv,
                records=records,
                final=lambda *_: SimpleNamespace(final={}),
                on_event=show,
            )
    except StudyInterrupted as error:
        print(error, file=sys.stderr)
        sys.exit(130)
    except PflOpsError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
