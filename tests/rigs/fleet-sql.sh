#!/bin/sh
# Runs the queries of a page in docs/ with DuckDB on the documents in a directory, and prints their rows as JSON, a line
# for each query. DuckDB (from PyPI) is installed below target/, by one test for all.
#
# fleet-sql.sh PAGE DIRECTORY
set -eu
rigs=$(cd "$(dirname "$0")" && pwd)
root=$rigs/../..
venv=$root/target/duckdb-venv
fail() { echo "fleet-sql.sh: $1" >&2; echo "hint: $2" >&2; exit 1; }
mkdir -p "$root/target"
exec 9>"$root/target/duckdb-venv.lock"
flock 9
if ! cmp -s "$rigs/fleet-requirements.txt" "$venv/made-from"; then
    rm -rf "$venv"
    python3 -m venv "$venv" >&2 || fail 'no virtual environment can be made' 'apt-get install python3-venv'
    "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$rigs/fleet-requirements.txt" >&2 ||
        fail 'duckdb cannot be installed from PyPI' 'see what pip says above'
    cp "$rigs/fleet-requirements.txt" "$venv/made-from"
fi
flock -u 9
exec "$venv/bin/python" - "$root/docs/$1" "$2" <<'PYTHON'
import json
import re
import sys

import duckdb

page, directory = sys.argv[1:]
with open(page, encoding="utf-8") as file:
    blocks = re.findall(r"^```sql\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
connection = duckdb.connect()
for block in blocks:
    for name, place in [("nodes/*.json", "*.json"), ("nodes.parquet", "nodes.parquet"), ("results.ndjson", "results.ndjson")]:
        block = block.replace(name, f"{directory}/{place}")
    result = connection.sql(block)
    if block.startswith("SELECT"):
        rows = [dict(zip(result.columns, row)) for row in result.fetchall()]
        print(json.dumps(rows, default=str))
PYTHON
