"""AutoGen: an assistant with one tool, which holds its conversation."""

import asyncio
import os

from autogen_agentchat.agents import AssistantAgent
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_ext.models.openai import OpenAIChatCompletionClient

from protocol import drive


async def look_up(query: int) -> str:
    """Looks something up."""
    return f"entry {query}: nothing unusual, checked twice"


model = OpenAIChatCompletionClient(model="gpt-4o", base_url=os.environ["OPENAI_BASE_URL"])
room = os.environ.get("ROOM")
agent = AssistantAgent(
    "assistant",
    model,
    tools=[look_up],
    system_message="Be brief.",
    reflect_on_tool_use=True,
    model_context=BufferedChatCompletionContext(int(room)) if room else None,
)
loop = asyncio.new_event_loop()


def turn(text):
    return loop.run_until_complete(agent.run(task=text)).messages[-1].content


drive(turn)
