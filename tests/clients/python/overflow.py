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
    way.provider("rules", rules={"window": WINDOW, "alternate": True})
    client = way.client(max_retries=0)
    messages = conversation(24)
    status, memory = WANTED[mode]
    try:
        said, text = ask(client, messages, stream)
        assert status == 200 and said == memory and text, (mode, stream, said, text)
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": "Go on, please."},
        ]
        said, text = ask(client, messages, stream)
        assert said.startswith("active") and "awaited" not in said and text, (mode, stream, said)
    except openai.BadRequestError as refused:
        assert status is None and refused.code == "context_length_exceeded", (mode, refused)
    sent = [len(entry["body"]) for entry in way.provider.record()]
    print(f"{mode:8} {'stream' if stream else 'whole':6}  bytes sent to the provider: {sent}")
    way.diarist.close()
    way.provider.close()


for mode in WANTED:
    for stream in (False, True):
        run(mode, stream)
