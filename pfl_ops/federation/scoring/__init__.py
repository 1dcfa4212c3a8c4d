"""Scores of a round's models.

evaluate      accuracies of models on each client's own data, and on all clients' data
fingerprint   digests of models, taken on the device
grouping      the number of models that are asked in one call
stages        the models of the stages L1, L2 and G, asked of the method a few clients at a time
synthetic     S-acc of FedPG: a client's test set joined with those of others
"""
