"""The LiteLLM SDK: the application holds the history and appends what it is given."""

import json
import os

import litellm

from protocol import drive

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": {"query": {"type": "integer"}}},
        },
    }
]
history = [{"role": "system", "content": "Be brief."}]


def ask():
    told = litellm.completion(
        model="openai/gpt-4o",
        api_base=os.environ["OPENAI_BASE_URL"],
        messages=history,
        tools=TOOLS,
        num_retries=0,
    )
    message = told.choices[0].message
    history.append(message.model_dump(exclude_none=True))
    return message


def turn(text):
    history.append({"role": "user", "content": text})
    message = ask()
    while message.tool_calls:
        for call in message.tool_calls:
            query = json.loads(call.function.arguments)["query"]
            found = f"entry {query}: nothing unusual, checked twice"
            history.append({"role": "tool", "tool_call_id": call.id, "content": found})
        message = ask()
    return message.content


drive(turn)
