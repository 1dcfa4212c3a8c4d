"""Faults on purpose: real commands are killed, frozen and starved, resumed, and compared with runs without faults.

    make chaos                              all cases, about 90 minutes on two cores
    CHAOS_N=10 make chaos                   a tenth of them
    python -m tests.chaos sigterm-run       cases of one fault
    python -m tests.chaos --list            the faults and the number of their cases

Results are lines of JSON in `results.jsonl` of CHAOS_DIR (default: ./.chaos). A second start with the same code skips
the cases that are there. The output of failed cases is in `failed/`. The exit code is 1 if a case failed. The package
under test is the one in this checkout: leave it alone meanwhile. pytest does not collect this package.
"""
