"""The OpenAI Agents SDK over chat completions, with its own session for the history."""

import asyncio
import os

from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool
from agents import set_tracing_disabled
from agents.memory import SessionSettings
from openai import AsyncOpenAI

from protocol import drive

set_tracing_disabled(True)


@function_tool
def look_up(query: int) -> str:
    """Looks something up."""
    return f"entry {query}: nothing unusual, checked twice"


client = AsyncOpenAI(base_url=os.environ["OPENAI_BASE_URL"], max_retries=0)
model = OpenAIChatCompletionsModel(model="gpt-4o", openai_client=client)
agent = Agent(name="Assistant", instructions="Be brief.", model=model, tools=[look_up])
room = os.environ.get("ROOM")
session = SQLiteSession("one", session_settings=SessionSettings(limit=int(room)) if room else None)
loop = asyncio.new_event_loop()


def turn(text):
    return loop.run_until_complete(Runner.run(agent, text, session=session)).final_output


drive(turn)
