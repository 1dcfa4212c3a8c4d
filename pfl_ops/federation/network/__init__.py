"""A network as a row of numbers: from its parameters to a vector [P] and back, and what is computed on such rows.

layout   names of parameters <-> columns of a row
net      the network as a function of a row
chain    fully connected networks without autograd
fisher   length of each sample's gradient
optim    optimisers as functions of rows
"""
