"""`pfl-ops compile`: kernels for this processor, built with the machine's own C++ compiler."""


def compile_() -> None:
    """Compile kernels for linear models and MLPs, which are faster on this processor than PyTorch's.

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
    for layers, network, title in ((1, kernels.LINEAR, "linear models"), (2, kernels.MLP, "MLPs")):
        for optimiser in kernel_check.RULES:
            ratios = [f"{speeds[kernels.Case(network, optimiser, batch)]:.2f}" for batch in kernel_check.BATCHES]
            use = "them" if kernels.faster(layers, optimiser) else "PyTorch's"
            at = " and ".join(f"{ratio} (B {batch})" for ratio, batch in zip(ratios, kernel_check.BATCHES, strict=True))
            say(console, f"{title}, {optimiser}: {at} times PyTorch's speed; --kernels auto takes {use}")
