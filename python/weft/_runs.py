"""What studies and trainings have recorded, as rows. The files may be anybody's: see SECURITY.md."""
import json
import os
import pathlib
import sqlite3
import stat
import time

from ._library import InputError

APPLICATION = 0x77656674  # "weft", in the head of its databases
SECONDS = 600             # that reading a database may take, as in the commands


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


def _refuse(path, why):
    raise InputError(f"{path}: {why}; it was not written by weft")


def _check(database, path):
    """Raises unless it is weft's, and what is read of it are tables: a view may have no end. One of an older version
    gets the newest one's names."""
    if database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        _refuse(path, "is a database of another program, or empty")
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not {"runs", "metrics"} <= tables or not {"variants", "steps"} & tables:
        _refuse(path, "has other tables")
    if "variants" not in tables:
        # Made by a weft that called variants steps.
        database.executescript("CREATE TEMP VIEW variants AS SELECT step AS variant, * FROM main.steps;"
                               "CREATE TEMP VIEW runs AS SELECT step AS variant, * FROM main.runs")


def _database(path, metrics):
    until = time.monotonic() + SECONDS
    # as_uri: a name may have signs in it that mean something in a URI
    database = sqlite3.connect(pathlib.Path(os.path.abspath(path)).as_uri() + "?mode=ro", uri=True)
    database.row_factory = sqlite3.Row
    database.set_progress_handler(lambda: time.monotonic() > until, 10000)
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        _check(database, path)
        if metrics:
            rows = database.execute(
                "SELECT runs.folder, variants.name AS name, runs.learning_rate, runs.seed, metrics.* FROM metrics"
                " JOIN runs USING (run) JOIN variants USING (variant) ORDER BY metrics.run, metrics.step")
        else:
            rows = database.execute(
                "SELECT variants.name AS name, variants.title, variants.parameters, variants.flops_per_token,"
                " variants.leaks, runs.*, runs.variant AS step FROM runs JOIN variants USING (variant) ORDER BY run")
        return Records(dict(row) for row in rows)
    except sqlite3.Error as error:
        raise InputError(f"{path}: {error}") from error
    finally:
        database.close()


def _lines(path):
    rows = Records()
    with open(path, "rb", opener=_open_file) as file:
        for line in file:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):  # the last line of a training that is being written, or none of weft's
                continue
            if isinstance(row, dict):
                rows.append(row)
    return rows


def _open_file(path, flags):
    """A pipe in a file's place is not waited for."""
    file = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise InputError(f"{path}: is not a file")


def runs(path, metrics=False):
    """A study's folder or its runs.db: one record per run, or with `metrics` one per logged step of
    every run. The folder of one training: its logged steps."""
    path = os.fsdecode(path)
    if os.path.isfile(path):
        return _database(path, metrics)
    database, lines = os.path.join(path, "runs.db"), os.path.join(path, "metrics.jsonl")
    if os.path.exists(database):
        return _database(database, metrics)
    if os.path.exists(lines):
        return _lines(lines)
    raise FileNotFoundError(f"{path}: neither runs.db of a study nor metrics.jsonl of a training is there")
