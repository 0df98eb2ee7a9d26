"""What counts as equal, and where two observations of one call differ.

Left out of the comparison: what a hop owns (connection headers, the date, the host), what a clock
or the transport writes (`created`), and Diarist's own response headers. One documented difference
is normalised and counted: where Diarist asked a stream for its usage, chunks carry `usage: null`.
"""

import json
import re
import zlib

# A reset of the upstream's connection is the end of another connection: a close. Both are a break.
BROKEN = {"ReadError", "RemoteProtocolError"}
HOP = {"date", "connection", "keep-alive", "transfer-encoding", "host", "te"}
GZIP = b"\x1f\x8b"
# Node's SDK lets its runtime choose the boundary of an upload, at random.
BOUNDARY = re.compile(r"formdata-undici-\d+")
CREATED = re.compile(rb'"created":\d+')


def normal(seen, asked_usage):
    """An observation without what is a hop's own."""
    seen = json.loads(json.dumps(seen))
    for exchange in seen["client"]:
        raw = exchange["body"].encode("latin-1")
        if raw.startswith(GZIP):
            # The moment of `created` is inside: told apart when unpacked. (Node unpacks by itself.)
            raw = zlib.decompressobj(wbits=31).decompress(raw)
        if ["content-encoding", "gzip"] in map(list, exchange["headers"]):
            drop_length(exchange["headers"])
        exchange["headers"] = headers(exchange["headers"])
        exchange["body"] = body(raw, asked_usage)
        if exchange["end"] in BROKEN:
            exchange["end"] = "broken"
    for entry in seen["provider"]:
        for name in ("connection", "at_ms", "after_ms", "number"):
            entry.pop(name)
        entry["headers"] = headers(entry["headers"])
        received = bytes.fromhex(entry.pop("body_hex")).decode("latin-1")
        entry["body"] = BOUNDARY.sub("boundary", received)
    seen["result"] = masked(seen["result"], asked_usage)
    return seen


def drop_length(pairs):
    pairs[:] = [pair for pair in pairs if pair[0] != "content-length"]


def headers(pairs):
    kept = [[name, BOUNDARY.sub("boundary", value)] for name, value in pairs if name not in HOP]
    return sorted(pair for pair in kept if not pair[0].startswith("x-diarist-"))


def body(raw, asked_usage):
    raw = CREATED.sub(b'"created":0', raw)
    if asked_usage:
        raw = raw.replace(b',"usage":null', b"")
    return BOUNDARY.sub("boundary", raw.decode("latin-1"))


def masked(value, asked_usage):
    if isinstance(value, dict):
        value = {key: 0 if key == "created" else item for key, item in value.items()}
        if value.get("cause") in BROKEN:
            value["cause"] = "broken"
        return {key: masked(item, asked_usage) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item, asked_usage) for item in value]
    if isinstance(value, str):
        return body(value.encode("utf-8"), asked_usage)
    return value


def usage_was_asked(direct, through):
    """Whether the only thing added to the requests is the question for usage; takes it out."""
    asked = False
    for sent, arrived in zip(direct["provider"], through["provider"]):
        plain, extended = bytes.fromhex(sent["body_hex"]), bytes.fromhex(arrived["body_hex"])
        if plain == extended or b"include_usage" not in extended:
            continue
        before, after = json.loads(plain), json.loads(extended)
        before.pop("stream_options", None)
        options = after.pop("stream_options")
        # What was inserted stands in one place; everything around it is byte for byte the client's.
        start = next(i for i, (a, b) in enumerate(zip(plain, extended)) if a != b)
        rest = len(plain) - start
        if before == after and options.get("include_usage") is True and extended.endswith(plain[-rest:]):
            arrived["body_hex"] = sent["body_hex"]
            asked = True
            lengths = dict(map(tuple, sent["headers"]))
            # Longer by the question, and in plain: the report has to be found in the answer.
            arrived["headers"] = [
                [name, lengths[name] if name in ("content-length", "accept-encoding") else value]
                for name, value in arrived["headers"]
            ]
            if isinstance(arrived["ending"], dict) and isinstance(sent["ending"], dict):
                arrived["ending"] = bytes_aside(arrived["ending"])
                sent["ending"] = bytes_aside(sent["ending"])
    return asked


def bytes_aside(ending):
    """`usage: null` makes events longer: they are counted, their bytes are not."""
    stage = ending["hung_up"]
    return {"hung_up": {"events": stage["events"]} if isinstance(stage, dict) else stage}


def differences(left, right, path=""):
    """Every place where two observations differ, shortest telling first."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(left.keys() | right.keys()):
            yield from differences(left.get(key), right.get(key), f"{path}.{key}")
    elif isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            yield f"{path}: {len(left)} against {len(right)} entries"
        for at, (a, b) in enumerate(zip(left, right)):
            yield from differences(a, b, f"{path}[{at}]")
    elif left != right:
        yield f"{path}: {clipped(left, right)}"


def clipped(left, right):
    left, right = repr(left), repr(right)
    at = next((i for i, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))
    start = max(0, at - 30)
    return f"direct …{left[start:at + 90]}… through …{right[start:at + 90]}…"
