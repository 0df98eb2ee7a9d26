"""Compares what `observe.py` and `observe.mjs` saw on both ways, prints a table each, and fails if
anything differs that is not documented.

    judge.py OBSERVATIONS.json...
"""

import json
import sys

import compare

# What was asked for at the least; a list that lost its entries must not pass.
CALLS, TURNS = 40, 60


def check(name, direct, through):
    """Whether a call was the same on both ways, and whether usage had been asked for."""
    asked = compare.usage_was_asked(direct, through)
    found = list(compare.differences(compare.normal(direct, asked), compare.normal(through, asked)))
    for difference in found[:6]:
        print(f"  DIFFERS  {name}: {difference}")
    return not found, asked


def calls(seen):
    equal = asked = raised = streams = requests = 0
    for name, direct, through in seen["calls"]:
        requests += len(direct["client"])
        raised += '"raised"' in json.dumps(direct["result"])
        streams += any("text/event-stream" in json.dumps(each["headers"]) for each in direct["client"])
        same, with_usage = check(name, direct, through)
        equal += same
        asked += with_usage
    total = len(seen["calls"])
    row("calls compared", total, f"{requests} requests on each way")
    row("  ended in an exception", raised)
    row("  streamed", streams)
    row("equal", equal, f"of these {asked} but for the documented usage: null")
    row("differing", total - equal)
    return equal == total >= CALLS


def own(seen):
    good = 0
    for entry in seen["own"]:
        same = entry["got"] == entry["expected"]
        good += same
        if not same:
            print(f"  DIFFERS  {entry['name']}: {entry['got']}, not {entry['expected']}")
    row("answered by Diarist itself", good, f"of {len(seen['own'])} as documented")
    return good == len(seen["own"]) > 0


def conversation(seen):
    direct, through = (seen["long"][name]["result"] for name in ("direct", "through"))
    if "raised" in direct or "raised" in through:
        print(f"  DIFFERS  long conversation: {direct.get('raised')}, {through.get('raised')}")
        return False
    sent, arrived = (seen["long"][name]["record"] for name in ("direct", "through"))
    actors = [entry for entry in arrived if entry["part"] == "actor"]
    kinds = [entry["part"] for entry in arrived if entry["part"] in ("observer", "reflector")]
    before, after = ([len(entry["body_hex"]) // 2 for entry in record] for record in (sent, actors))
    active = sum(state == "active" for state in through["memory"])
    halved = sum(small < large / 2 for large, small in zip(before, after))
    refused = [entry["verdict"] for entry in arrived if entry["verdict"] != "accepted"]
    pairs = list(zip(direct["answers"], through["answers"]))
    equal = sum(a == b for a, b in pairs)
    turns = len(direct["answers"])
    row("turns of a long conversation", turns, f"{equal} parsed answers equal")
    row("  with memory active", active, f"{halved} arrived at less than half of what was sent")
    row("  KB sent", sum(before) // 1000, f"the last request {before[-1]} bytes")
    row("  KB arrived", sum(after) // 1000, f"the last request {after[-1]} bytes")
    row("  calls of memory", len(kinds), f"{kinds.count('observer')} Observer, {kinds.count('reflector')} Reflector")
    row("  refused by the provider", len(refused))
    for at, (a, b) in enumerate(pairs):
        if a != b:
            print(f"  DIFFERS  turn {at}: {a} against {b}")
    return (
        equal == turns == len(through["answers"]) == len(actors)
        and turns >= TURNS
        and active > turns / 2
        and halved > turns / 4
        and not refused
    )


def row(what, count, more=""):
    print(f"  {what:<30}{count:6}" + (f"   ({more})" if more else ""))


def main(paths):
    failed = []
    for path in paths:
        with open(path) as file:
            seen = json.load(file)
        print(seen["client"])
        if not all([calls(seen), own(seen), conversation(seen), seen["codes"] == [0, 0]]):
            failed.append(seen["client"])
    for client in failed:
        print(f"FAILED: {client}")
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
