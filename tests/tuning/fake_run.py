"""A run in MLflow that only its test sees."""


class FakeRun:
    """Status, tags and texts of a tracked run."""

    def __init__(self):
        self.status, self.known, self.texts = "RUNNING", {}, {}

    def log(self, records):
        pass

    def tags(self, tags):
        self.known |= tags

    def text(self, text, name):
        self.texts[name] = text

    def finish(self, status="FINISHED", patience=0):
        self.status = status
