"""LlamaIndex: a chat engine whose memory is a buffer that drops the oldest messages, or summarises them."""

import os

from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.memory import ChatMemoryBuffer, ChatSummaryMemoryBuffer
from llama_index.llms.openai_like import OpenAILike

from protocol import drive

model = OpenAILike(
    model="gpt-4o", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"], is_chat_model=True
)
if "ROOM" in os.environ:
    memory = ChatSummaryMemoryBuffer.from_defaults(llm=model, token_limit=int(os.environ["ROOM"]))
else:
    memory = ChatMemoryBuffer.from_defaults(token_limit=3000)
engine = SimpleChatEngine.from_defaults(llm=model, system_prompt="Be brief.", memory=memory)


def turn(text):
    return engine.chat(text).response


drive(turn)
