// JavaScript clients as their users write them: each chats, each streams, and the words are looked at.
//
//     node sdk.mjs http://127.0.0.1:8080/v1 MODEL [KEY [WORDS]]
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const [url, model, key = "no key", words = "Tokyo"] = process.argv.slice(2);
const content = "What is the capital of Japan?";
const messages = [{ role: "user", content }];
let failed = false;

function look(client, what, text, pieces) {
  const good = text.includes(words) && (pieces === undefined || pieces > 2);
  failed ||= !good;
  const shown = JSON.stringify(text.trim()) + (pieces === undefined ? "" : ` in ${pieces} pieces`);
  console.log(`${good ? "ok  " : "FAIL"} ${client.padEnd(12)} ${what.padEnd(7)} ${shown}`);
}

async function openai() {
  const client = new OpenAI({ baseURL: url, apiKey: key });
  const asked = { model, messages, temperature: 0 };
  const answer = await client.chat.completions.create(asked);
  look("openai npm", "chat", answer.choices[0].message.content);
  const parts = [];
  for await (const part of await client.chat.completions.create({ ...asked, stream: true })) {
    parts.push(part.choices[0]?.delta?.content ?? "");
  }
  look("openai npm", "stream", parts.join(""), parts.length);
}

async function vercel() {
  const provider = createOpenAICompatible({ name: "here", baseURL: url, apiKey: key });
  const asked = { model: provider(model), prompt: content, temperature: 0 };
  look("vercel ai", "chat", (await generateText(asked)).text);
  const parts = [];
  for await (const part of streamText(asked).textStream) parts.push(part);
  look("vercel ai", "stream", parts.join(""), parts.length);
}

for (const client of [openai, vercel]) {
  try {
    await client();
  } catch (error) {
    failed = true;
    console.log(`FAIL ${client.name.padEnd(12)} ${error}`);
  }
}
process.exit(failed ? 1 : 0);
