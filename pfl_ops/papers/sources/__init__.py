"""Origins of the settings that the papers' suites run at scale full, one module a paper: see `papers.provenance`."""
