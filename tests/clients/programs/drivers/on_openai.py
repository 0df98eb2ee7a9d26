"""The plain `openai` package: the application holds the history. What speaks behind gateways."""

import os

from openai import OpenAI

from protocol import drive

client = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], max_retries=0)
history = [{"role": "system", "content": "Be brief."}]


def turn(text):
    history.append({"role": "user", "content": text})
    message = client.chat.completions.create(model="gpt-4o", messages=history).choices[0].message
    history.append(message.model_dump(exclude_unset=True))
    return message.content


drive(turn)
