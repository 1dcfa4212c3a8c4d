"""A network as a row of numbers: from its parameters to a vector [P] and back, and what is computed on such rows.

layout          names of parameters <-> columns of a row
net             the network as a function of a row
optim           optimisers as functions of rows
cross_entropy   the default loss
chain           fully connected networks without autograd
passes          losses and gradients of a batch, by autograd or by `chain`
agreement       a check before a run: the function is the network
fisher          length of each sample's gradient
"""
