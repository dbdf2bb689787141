// Tool calls and forms as users of JavaScript packages ask for them; what comes back is looked at (tools.py says how).
//
//     node tools.mjs http://127.0.0.1:8080/v1 MODEL [KEY [WORDS]]
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { ChatOpenAI } from "@langchain/openai";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { z } from "zod";

const [url, model, key = "no key", words = ""] = process.argv.slice(2);
const content = "How is the weather in Ghent?";
const messages = [{ role: "user", content }];
const told = "It rains, and it is 7 degrees.";
const Day = z.object({ sky: z.enum(["clear", "cloudy"]), degrees: z.number().int().min(-40).max(50) });
const Weather = z.object({ town: z.enum(["Ghent", "Bruges"]) });
let failed = false;

function look(client, what, good, shown) {
  failed ||= !good;
  const text = (JSON.stringify(shown) ?? "nothing").slice(0, 110);
  console.log(`${good ? "ok  " : "FAIL"} ${client.padEnd(13)} ${what.padEnd(22)} ${text}`);
}

const is = (schema, value) => schema.safeParse(value).success;
// What a model says that was told what came of its call.
const heard = (text) => text.length > 0 && text.includes(words);
const equal = (one, other) => JSON.stringify(one) === JSON.stringify(other);

async function openai() {
  const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
  const asked = { model, messages, temperature: 0, max_tokens: 200 };
  const form = { response_format: zodResponseFormat(Day, "day") };
  const day = (await client.chat.completions.parse({ ...asked, ...form })).choices[0].message.parsed;
  look("openai npm", "parse", is(Day, day), day);
  const stream = client.chat.completions.stream({ ...asked, ...form });
  let pieces = 0;
  stream.on("content", () => pieces++);
  const last = (await stream.finalChatCompletion()).choices[0].message.parsed;
  look("openai npm", "parse, streamed", equal(last, day) && pieces > 2, last);

  const weather = zodFunction({ name: "weather", description: "How the weather is.", parameters: Weather });
  const demanded = { tools: [weather], tool_choice: "required", parallel_tool_calls: false };
  const message = (await client.chat.completions.parse({ ...asked, ...demanded })).choices[0].message;
  const called = message.tool_calls?.[0]?.function;
  look("openai npm", "tools, required", is(Weather, called?.parsed_arguments), called);
  const whole = await client.chat.completions.stream({ ...asked, ...demanded }).finalChatCompletion();
  const same = whole.choices[0].message.tool_calls[0].function;
  look("openai npm", "the same, streamed", same.arguments === called.arguments && same.name === "weather", same);

  const towns = [];
  const run = client.chat.completions.runTools({
    ...asked,
    parallel_tool_calls: false,
    tool_choice: { type: "function", function: { name: "weather" } },
    tools: [{ type: "function", function: {
      name: "weather", parameters: weather.function.parameters, parse: JSON.parse,
      function: ({ town }) => (towns.push(town), told),
    } }],
  });
  await run.done();
  const result = run.messages.find((it) => it.role === "tool");
  look("openai npm", "runTools", is(Weather, { town: towns[0] }) && result?.content === told, run.messages.slice(1));

  const asResponse = { model, input: content, temperature: 0, max_output_tokens: 200 };
  const response = await client.responses.parse({ ...asResponse, text: { format: zodTextFormat(Day, "day") } });
  look("openai npm", "responses.parse", is(Day, response.output_parsed), response.output_parsed);
}

async function vercel() {
  const provider = createOpenAICompatible({
    name: "here", baseURL: url, apiKey: key, supportsStructuredOutputs: true, includeUsage: true,
  });
  const asked = { model: provider(model), prompt: content, temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
  const { object } = await generateObject({ ...asked, schema: Day });
  look("vercel ai", "generateObject", is(Day, object), object);
  const streamed = streamObject({ ...asked, schema: Day });
  let pieces = 0;
  for await (const _ of streamed.partialObjectStream) pieces++;
  look("vercel ai", "streamObject", equal(await streamed.object, object) && pieces > 1, await streamed.object);

  const towns = [];
  const tools = { weather: tool({
    description: "How the weather is.", inputSchema: Weather,
    execute: async ({ town }) => (towns.push(town), told),
  }) };
  // The tool must be called first; what it says is in the next prompt.
  const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "auto" });
  const steps = { ...asked, tools, prepareStep, stopWhen: stepCountIs(2) };
  const judged = (what, all, text) => {
    const [first, second] = all;
    const results = first.toolResults.map((it) => it.output);
    const more = second.usage.inputTokens > first.usage.inputTokens;
    const good = is(Weather, { town: towns[0] }) && results.length > 0 && results.every((it) => it === told);
    look("vercel ai", what, good && more && heard(text), text);
    towns.length = 0;
  };
  const whole = await generateText(steps);
  judged("tools, two steps", whole.steps, whole.text);
  const stream = streamText(steps);
  let text = "";
  for await (const part of stream.textStream) text += part;
  judged("the same, streamed", await stream.steps, text);
}

async function langchain() {
  const chat = new ChatOpenAI({
    model, apiKey: key, temperature: 0, maxTokens: 200, maxRetries: 0, configuration: { baseURL: url },
  });
  for (const method of ["jsonSchema", "functionCalling"]) {
    const day = await chat.withStructuredOutput(Day, { method, name: "day" }).invoke(content);
    look("langchain npm", `form, ${method}`, is(Day, day), day);
  }
  const weather = { type: "function", function: { name: "weather", parameters: z.toJSONSchema(Weather) } };
  const bound = chat.bindTools([weather], { tool_choice: "required", parallel_tool_calls: false });
  const said = await bound.invoke(content);
  look("langchain npm", "tools, required", is(Weather, said.tool_calls?.[0]?.args), said.tool_calls);
  const result = new ToolMessage({ content: told, tool_call_id: said.tool_calls[0].id });
  const again = await chat.bindTools([weather]).invoke([new HumanMessage(content), said, result]);
  look("langchain npm", "what came of it", heard(again.content), again.content);
}

for (const client of [openai, vercel, langchain]) {
  try {
    await client();
  } catch (error) {
    failed = true;
    console.log(`FAIL ${client.name.padEnd(13)} ${process.env.TRACE ? error.stack : error}`);
  }
}
process.exit(failed ? 1 : 0);
