// Asks what each line of standard input says with an official client, and prints what the clients made of the replies.

import { createInterface } from "node:readline";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const OPTIONS = { apiKey: "k", maxRetries: 0, timeout: 60_000, logLevel: "off" };
const KINDS = [
  ["connect", "end", "error", "abort"],
  // Chat completions
  ["chunk", "content", "content.delta", "content.done", "refusal.delta", "refusal.done"],
  ["logprobs.content.delta", "logprobs.content.done", "logprobs.refusal.delta", "logprobs.refusal.done"],
  ["tool_calls.function.arguments.delta", "tool_calls.function.arguments.done", "functionToolCall"],
  ["chatCompletion", "message", "finalChatCompletion", "finalMessage", "finalContent", "finalFunctionToolCall"],
  ["totalUsage"],
  // Responses
  ["event", "response.output_text.delta", "response.function_call_arguments.delta"],
  // Messages
  ["streamEvent", "text", "citation", "thinking", "signature", "inputJson", "contentBlock"],
].flat();
const FORMATS = {
  chat: (baseURL) => [new OpenAI({ ...OPTIONS, baseURL: `${baseURL}/v1` }).chat.completions, "finalChatCompletion"],
  responses: (baseURL) => [new OpenAI({ ...OPTIONS, baseURL: `${baseURL}/v1` }).responses, "finalResponse"],
  messages: (baseURL) => [new Anthropic({ ...OPTIONS, baseURL }).messages, "finalMessage"],
};

function told(error) {
  const { constructor, message, status, code, type, param, requestID, error: body, cause } = error;
  return {
    class: constructor.name, message, status, code, type, param, requestID, body,
    cause: cause?.message, retryAfter: error.headers?.get?.("retry-after"),
  };
}

// What a helper tells of is changed later on.
const copy = (value) => JSON.parse(JSON.stringify(value instanceof Error ? told(value) : value ?? null));

async function ask({ format, url, helper, body }) {
  const [resource, final] = FORMATS[format](url);
  const events = [];
  try {
    if (helper) {
      const stream = resource.stream(body);
      for (const kind of KINDS) stream.on(kind, (...said) => events.push([kind, ...said.map(copy)]));
      return { events, final: await stream[final]() };
    }
    for await (const event of await resource.create({ ...body, stream: true })) events.push(event);
    return { events };
  } catch (error) {
    return { events, error: told(error) };
  }
}

const lines = [];
for await (const line of createInterface({ input: process.stdin })) lines.push(line);
const answers = [];
let begun = 0;
async function work() {
  for (let at; (at = begun++) < lines.length; ) answers[at] = JSON.stringify(await ask(JSON.parse(lines[at])));
}
await Promise.all([work(), work(), work(), work()]);
console.log(answers.join("\n"));
