"""smolagents: an agent that acts by tools alone, so that even its answer is a call; it keeps its own memory."""

import json
import os

from smolagents import OpenAIServerModel, ToolCallingAgent

from protocol import drive

model = OpenAIServerModel("gpt-4o", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = ToolCallingAgent(tools=[], model=model, max_steps=3, verbosity_level=0)
told = 0


def turn(text):
    global told
    order = f"CALL<<final_answer {json.dumps({'answer': f'Noted as number {told}.'})}>>"
    # An order for another tool would stand before the answer.
    answer = agent.run(f"{text.replace('CALL<<', '')} {order}", reset=told == 0)
    told += 1
    return str(answer)


drive(turn)
