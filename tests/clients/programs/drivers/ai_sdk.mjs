// The Vercel AI SDK with its OpenAI-compatible provider; every other answer is streamed. The lines in
// and out are those of protocol.py.

import { createInterface } from "node:readline";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, pruneMessages, stepCountIs, streamText, tool } from "ai";

const provider = createOpenAICompatible({
  name: "scripted",
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
  includeUsage: true,
});
const tools = {
  look_up: tool({
    description: "Looks something up.",
    inputSchema: jsonSchema({ type: "object", properties: { query: { type: "integer" } } }),
    execute: async ({ query }) => `entry ${query}: nothing unusual, checked twice`,
  }),
};
// Old calls and their results are left out, as the package's own helper does it.
const pruned = (messages) =>
  process.env.ROOM ? pruneMessages({ messages, toolCalls: `before-last-${process.env.ROOM}-messages` }) : messages;
const history = [];
let turns = 0;

async function turn(text) {
  history.push({ role: "user", content: text });
  const asked = {
    model: provider("gpt-4o"),
    system: "Be brief.",
    messages: pruned(history),
    tools,
    stopWhen: stepCountIs(5),
    maxRetries: 0,
  };
  turns += 1;
  const told = turns % 2 ? await generateText(asked) : streamText(asked);
  const answer = await told.text;
  // The response itself keeps the last step alone; where there is something to prune, all of them are kept.
  history.push(...(process.env.ROOM ? await told.responseMessages : (await told.response).messages));
  return answer;
}

for await (const line of createInterface({ input: process.stdin })) {
  try {
    console.log(JSON.stringify({ answer: await turn(JSON.parse(line).say) }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
