"""Data: where samples come from, who owns them, what a client holds.

datasets     data sets by name or path, cut to size
sources      their files: found in folders, downloaded, unpacked into the cache (store)
remarks      lines on a data set that its user should read
scaling      the input scaling
features     what a frozen network makes of samples
npz, tables  readers of arrays and of tables; shakespeare, download: of published data
partition    schemes by which samples are divided over clients, each in a file of its own
cut          stratified parts of samples, held-out samples
clients      the data of each client, as tensors
"""
