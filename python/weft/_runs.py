"""What studies and trainings have recorded, as rows."""
import json
import os
import sqlite3


class Records(list):
    """Rows as dicts. In a notebook they show as a table where pandas can be imported; `frame()` is a
    pandas.DataFrame."""

    def frame(self):
        import pandas
        return pandas.DataFrame(list(self))

    def _repr_html_(self):
        try:
            return self.frame()._repr_html_()
        except ImportError:
            return None


def _database(path, metrics):
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    database.row_factory = sqlite3.Row
    try:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'variants'").fetchone():
            # Made by a weft that called variants steps.
            database.executescript("CREATE TEMP VIEW variants AS SELECT step AS variant, * FROM main.steps;"
                                   "CREATE TEMP VIEW runs AS SELECT step AS variant, * FROM main.runs")
        if metrics:
            rows = database.execute(
                "SELECT runs.folder, variants.name AS name, runs.learning_rate, runs.seed, metrics.* FROM metrics"
                " JOIN runs USING (run) JOIN variants USING (variant) ORDER BY metrics.run, metrics.step")
        else:
            rows = database.execute(
                "SELECT variants.name AS name, variants.title, variants.parameters, variants.flops_per_token,"
                " variants.leaks, runs.*, runs.variant AS step FROM runs JOIN variants USING (variant) ORDER BY run")
        return Records(dict(row) for row in rows)
    finally:
        database.close()


def _lines(path):
    rows = Records()
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                rows.append(json.loads(line))
            except ValueError:  # the last line of a training that is being written
                continue
    return rows


def runs(path, metrics=False):
    """A study's folder or its runs.db: one record per run, or with `metrics` one per logged step of
    every run. The folder of one training: its logged steps."""
    path = os.fspath(path)
    if os.path.isfile(path):
        return _database(path, metrics)
    database, lines = os.path.join(path, "runs.db"), os.path.join(path, "metrics.jsonl")
    if os.path.exists(database):
        return _database(database, metrics)
    if os.path.exists(lines):
        return _lines(lines)
    raise FileNotFoundError(f"{path}: neither runs.db of a study nor metrics.jsonl of a training is there")
