"""Makes every call directly and through Diarist and writes down what was seen, for `judge.py`."""

import json
import platform
import sys

import openai

import calls
import long
from rig import Way


def observed():
    ways = Way("direct"), Way("through")
    pairs = []
    for name, call in calls.CALLS:
        print(f"  {name}", file=sys.stderr)
        pairs.append([name, *(way.watch(call) for way in ways)])
    own = []
    for name, call, expected in calls.OWN:
        got = {way.name: told(way.watch(call)["result"]) for way in ways}
        own.append({"name": name, "expected": expected, "got": got})
    return {"calls": pairs, "own": own, "codes": [way.close() for way in ways]}


def told(result):
    raised = result.get("raised", {})
    return [raised.get(name) for name in ("class", "status_code", "code")]


if __name__ == "__main__":
    client = f"openai {openai.__version__} on Python {platform.python_version()}"
    print(json.dumps({"client": client, **observed(), "long": long.observed()}))
