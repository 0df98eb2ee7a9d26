"""LlamaIndex: a chat engine whose memory is a buffer that drops the oldest messages."""

import os

from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.llms.openai_like import OpenAILike

from protocol import drive

model = OpenAILike(
    model="gpt-4o", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"], is_chat_model=True
)
engine = SimpleChatEngine.from_defaults(
    llm=model, system_prompt="Be brief.", memory=ChatMemoryBuffer.from_defaults(token_limit=3000)
)


def turn(text):
    return engine.chat(text).response


drive(turn)
