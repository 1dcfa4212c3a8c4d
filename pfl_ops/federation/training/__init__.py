"""Local training: one client at a time or stacked, with the same numbers.

plan      which samples a client sees, in which order
feed      samples on the device, and batches of them
chunk     some clients' walk as rectangles of samples
leaves    rows as the tensors that are trained in place
descent   plain SGD on fully connected networks, without a gradient in memory
compiled  the same by compiled kernels (descent.cpp)
kernels   their library: compiled, found, loaded
kernel_check  compared with PyTorch
train     walks, training and sums over data, of a whole cohort
"""
