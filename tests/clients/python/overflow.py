"""What the unmodified client gets for a conversation that does not fit its model, by `memory.overflow`.

The client sends it at once, as one that grew before Diarist was put in front: nothing of it is
observed, and the Observer has to be asked on the conversation's own way to the upstream.
"""

import openai

from rig import Way

WINDOW = 8000

WANTED = {
    "pass": (None, "watching"),
    "observe": (200, "active; rung=awaited"),
    "trim": (200, "active; rung=trimmed"),
}


def conversation(turns):
    filler = "what came in this part was weighed and kept. " * 20
    messages = [{"role": "system", "content": "You are a patient assistant."}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Ada asks {turn}. {filler}"})
        messages.append({"role": "assistant", "content": f"Answer {turn}. {filler}"})
    return messages + [{"role": "user", "content": "And now?"}]


def ask(client, messages, stream):
    call = client.chat.completions.with_raw_response.create
    raw = call(model="gpt-test", messages=messages, stream=stream)
    answer = raw.parse()
    if stream:
        deltas = [chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices]
        return raw.headers["x-diarist-memory"], "".join(deltas)
    return raw.headers["x-diarist-memory"], answer.choices[0].message.content


def run(mode, stream):
    way = Way("through", {"DIARIST__MEMORY__OVERFLOW": mode})
    try:
        seen = turns(way, mode, stream)
    finally:
        way.diarist.close()
        way.provider.close()
    print(f"{mode:8} {'stream' if stream else 'whole':6}  {seen}")


def turns(way, mode, stream):
    """Two turns of the conversation; how many requests the provider got for each of them."""
    way.provider("rules", rules={"window": WINDOW, "alternate": True})
    client = way.client(max_retries=0)
    messages = conversation(24)
    status, memory = WANTED[mode]
    try:
        said, text = ask(client, messages, stream)
    except openai.BadRequestError as refused:
        assert status is None and refused.code == "context_length_exceeded", (mode, refused)
        return f"BadRequestError {refused.code} after {len(way.provider.record())} request"
    first = len(way.provider.record())
    assert status == 200 and said == memory and text, (mode, stream, said, text)
    messages += [
        {"role": "assistant", "content": text},
        {"role": "user", "content": "Go on, please."},
    ]
    then, text = ask(client, messages, stream)
    second = len(way.provider.record()) - first
    assert then.startswith("active") and "awaited" not in then and text, (mode, stream, then)
    assert (first, second) == (2, 1), (mode, stream, first, second)
    return f"{said} after {first} requests, then {then} after {second}"


for mode in WANTED:
    for stream in (False, True):
        run(mode, stream)
