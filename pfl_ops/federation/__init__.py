"""The engine: a federation as a matrix, trained one client at a time or stacked, with one meaning."""
