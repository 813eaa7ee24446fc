"""Compares an export with its schema: rows.py SCHEMA EXPORT [COUNTS].

Every row must have the fields that the schema gives its event, in their order, with values of their types, and the last
line must count the rows. COUNTS are the results of a script (-f ndjson) that counts the same events in a map @n. Prints
what there was.
"""
import json
import sys

TYPES = {"integer": int, "boolean": bool, "string": str, "object": dict,
         "frames": list, "strings": list, "objects": list, "[x,y,z]": list}


def compare(row, fields, what):
    names = [it["name"] for it in fields]
    keys = [it for it in row if it != "event"]
    assert keys == names, f"{what}: {keys} instead of {names}"
    for field in fields:
        name, value = field["name"], row[field["name"]]
        if value is None:
            assert field["null"], f"{what}.{name} is null"
            continue
        assert type(value) is TYPES[field["type"]], f"{what}.{name}: {value!r}"
        assert type(value) is not int or value < 1 << 63 or field.get("unsigned"), f"{what}.{name}: {value}"
        if "fields" in field:
            compare(value, field["fields"], f"{what}.{name}")


def main(schema, export, counts=None):
    with open(schema) as text:
        events = {it["event"]: it["fields"] for it in json.load(text)["events"]}
    rows, first, last = {}, None, None
    with open(export) as lines:
        for line in lines:
            last = json.loads(line)
            first = first or last
            compare(last, events[last["event"]], last["event"])
            rows[last["event"]] = rows.get(last["event"], 0) + 1
    assert (rows.pop("recording"), rows.pop("losses")) == (1, 1)
    assert first["event"] == "recording" and last["event"] == "losses"
    assert rows == last["rows"], f"{rows} instead of {last['rows']}"
    if counts:
        with open(counts) as lines:
            counted = [json.loads(line) for line in lines]
        counted = {it["keys"][0]: it["value"] for it in counted if it.get("map") == "@n"}
        assert rows == counted, f"{rows} instead of {counted}"
    print(*(f"{event}={n}" for event, n in sorted(rows.items())), f"losses={last['losses']}")


main(*sys.argv[1:])
