"""pydantic-ai: an agent with one tool; the application hands the history on."""

import os

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from protocol import drive

provider = OpenAIProvider(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = Agent(OpenAIChatModel("gpt-4o", provider=provider), instructions="Be brief.")
history = []


@agent.tool_plain
def look_up(query: int) -> str:
    """Looks something up."""
    return f"entry {query}: nothing unusual, checked twice"


def turn(text):
    global history
    told = agent.run_sync(text, message_history=history)
    history = told.all_messages()
    return told.output


drive(turn)
