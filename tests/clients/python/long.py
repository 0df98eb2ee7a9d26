"""One long conversation, once directly and once through a Diarist with small thresholds.

The client is an ordinary one: it sends its whole history every turn and appends what the SDK gave
it. The provider plays a made-up conversation from its last messages, so that its answers can only
be equal if what the model was shown ends as the client's history ends.
"""

import sys

from rig import Way, attempt

TURNS = 60
SETTINGS = {
    "DIARIST__MEMORY__OBSERVATION__MESSAGE_TOKENS": "2000",
    "DIARIST__MEMORY__OBSERVATION__MODEL": "observer-mini",
    "DIARIST__MEMORY__REFLECTION__OBSERVATION_TOKENS": "1000",
    "DIARIST__MEMORY__REFLECTION__MODEL": "reflector-mini",
}


def played(way):
    """The conversation as an application holds it; every other answer is streamed."""
    told = way.provider("converse", seed=11, turns=TURNS)
    history, answers, memory = [], [], []
    client = way.client(max_retries=0, timeout=20)
    for message in told["messages"]:
        if message["role"] != "assistant":
            history.append(message)
            continue
        fields = {"model": "gpt-4o", "messages": history}
        if told["tools"]:
            fields["tools"] = told["tools"]
        if len(answers) % 2:
            with client.chat.completions.stream(**fields) as stream:
                answer = stream.get_final_completion()
        else:
            answer = client.chat.completions.create(**fields)
        memory.append(dict(way.exchanges[-1].headers).get("x-diarist-memory"))
        choice = answer.choices[0]
        answers.append({"finish": choice.finish_reason, "message": choice.message.model_dump()})
        history.append(choice.message.model_dump(exclude_unset=True))
        way.pause()
    return {"answers": answers, "memory": memory}


def observed():
    seen = {}
    for name in ("direct", "through"):
        print(f"  a long conversation, {name}", file=sys.stderr)
        way = Way(name, SETTINGS)
        result = attempt(lambda: played(way))
        seen[name] = {"result": result, "record": way.provider("record", settled=True)}
        way.close()
    return seen
