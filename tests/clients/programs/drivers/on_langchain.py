"""LangChain: an agent with one tool and a checkpointer, which holds the history; with little room for it, it
summarises."""

import os

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from protocol import drive


@tool
def look_up(query: int) -> str:
    """Looks something up."""
    return f"entry {query}: nothing unusual, checked twice"


model = ChatOpenAI(model="gpt-4o", base_url=os.environ["OPENAI_BASE_URL"], max_retries=0)
room = os.environ.get("ROOM")
summaries = [SummarizationMiddleware(model, trigger=("tokens", int(room)), keep=("messages", 5))] if room else []
agent = create_agent(
    model, [look_up], system_prompt="Be brief.", checkpointer=InMemorySaver(), middleware=summaries
)
thread = {"configurable": {"thread_id": "one"}}


def turn(text):
    told = agent.invoke({"messages": [{"role": "user", "content": text}]}, thread)
    return told["messages"][-1].content


drive(turn)
