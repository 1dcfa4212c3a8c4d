"""Data: where samples come from (`datasets`), who owns them (`partition`), what a client holds (`clients`)."""
