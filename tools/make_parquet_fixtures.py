#!/usr/bin/env python3
"""Writes tests/io/data/table.parquet, read by tests/io/parquet_test.cc. Needs pyarrow."""

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

rows = 5
table = pa.table({
    "path": pa.array([f"p/{i}.png" for i in range(rows)]),
    "text": pa.array(["a cat", "b, \"c\"", None, "", "nach Süden"]),
    "num_frames": pa.array([1, None, 3, 4, 51], pa.int64()),
    "fps": pa.array([24.0, 29.97, None, 8.0, 30.0]),
    "tags": pa.array([["x", "y"], [], None, ["z"], []], pa.list_(pa.string())),
    "image": pa.array([{"bytes": b"x", "path": "y"}] * rows),
    "label": pa.array(["dog", "cat", "dog", "dog", "cat"]).dictionary_encode(),
})
out = pathlib.Path(__file__).parent.parent / "tests/io/data/table.parquet"
pq.write_table(table, out, row_group_size=2, compression="zstd")
