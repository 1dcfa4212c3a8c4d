"""`pfl-ops compile`: kernels for this processor, built with the machine's own C++ compiler."""


def compile_() -> None:
    """Compile kernels for linear models and MLPs under plain SGD, which are faster on this processor than PyTorch's.

    Needs a C++ compiler. Without these kernels everything runs on PyTorch's. Runs that begin afterwards use them where
    they are faster (--kernels); the results differ from PyTorch's in rounding.
    """
    from pfl_ops.cli.output import out, say
    from pfl_ops.federation.training import kernel_check, kernels
    from pfl_ops.system.machine import cpu_model

    file = kernels.compile_library()
    try:
        speeds = kernel_check.compare()
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    kernels.note_speeds(speeds)
    console = out()
    say(console, f"compiled for {cpu_model()}: {file}")
    say(console, "times PyTorch's speed: " + ", ".join(f"{case} {ratio:.2f}" for case, ratio in speeds.items()))
    for layers, network in ((1, "linear models"), (2, "MLPs")):
        use = "uses them" if kernels.faster(layers) else "takes PyTorch's, which are faster here in one case or both"
        say(console, f"--kernels auto {use} for {network}")
