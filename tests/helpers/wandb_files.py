"""A reader of the files in which W&B records runs.

Each file is a log in LevelDB's block format, and each record of the log is a protocol buffer.
"""

import json
import struct
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

BLOCK = 32768
HEADER = 7
WHOLE = 1
FIRST = 2
LAST = 4


def records(path):
    """Yield the records of one file."""
    from wandb.proto.wandb_internal_pb2 import Record

    content = Path(path).read_bytes()
    at = HEADER
    parts = []
    while at + HEADER <= len(content):
        # The rest of this block is padding, because no header fits into it.
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEADER])
        data = content[at + HEADER : at + HEADER + length]
        if len(data) < length:
            return  # the last record is incomplete, because the file is still being written
        parts = [data] if kind in (WHOLE, FIRST) else [*parts, data]
        if kind in (WHOLE, LAST):
            record = Record()
            record.ParseFromString(b"".join(parts))
            yield record
        at += HEADER + length


def read_run(path):
    """Read a run: its labels, configuration, definitions of metrics, history and exit code."""
    found = SimpleNamespace(config={}, metrics=defaultdict(dict), rows=[], exit_code=None, artifacts=[], run=None)
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.run = record.run
            found.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "config":
            found.config |= {item.key: json.loads(item.value_json) for item in record.config.update}
        elif kind == "metric":
            definition = record.metric
            found.metrics[definition.name or definition.glob_name] = definition
        elif kind == "history":
            row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
            found.rows.append(row)
        elif kind == "artifact":
            found.artifacts.append(record.artifact)
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def runs_of(folder):
    """Return the runs below a folder in the order of their start, after waiting until all are on disk."""
    while True:
        runs = [read_run(path) for path in sorted(Path(folder).rglob("*.wandb"))]
        if all(run.exit_code is not None for run in runs):
            return runs
        time.sleep(0.1)  # W&B's own process continues to write after the run has finished
