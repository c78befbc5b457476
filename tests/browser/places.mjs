// Every place of the dashboard, and how to get there with something to see.

import { CHAT, go, PICTURES, signIn, VECTORS } from "./harness.mjs";

const TOOL = { type: "function", function: { name: "weather", description: "The weather in a city", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } };

/** One of everything that a server stores: the ids `{conversation, agent, job}`. */
export async function seed({ api }) {
  const { project_id: project } = await api("GET", "/me");
  await api("PUT", `/projects/${project}`, { name: "Lighthouse", environment: "production" });
  await api("PATCH", `/projects/${project}/rate-limits`, { requests_per_minute: 6000, burst_limit: 9000, token_budget: 50_000_000 });
  await api("POST", "/projects", { name: "Harbour", environment: "development" });
  const billing = await api("POST", "/api-keys", { name: "billing, production", project_id: project });
  await api("PUT", `/api-keys/${billing.id}`, { grace_period_seconds: 86_400, reason: "yearly" });
  const old = await api("POST", "/api-keys", { name: "old laptop", project_id: project, scopes: ["inference"], models: [CHAT] });
  await api("DELETE", `/api-keys/${old.id}`);
  const agent = await api("POST", "/agents", { name: "Harbour pilot", model: CHAT, instructions: "You guide ships into the harbour. Answer in one sentence.", tools: [TOOL], memory: { truncation: "auto", last_messages: 20 } });
  await api("PATCH", `/agents/${agent.id}`, { instructions: "You guide ships into the harbour. Answer in one short sentence." });
  const conversation = await api("POST", "/conversations", {
    messages: [{ role: "user", content: "Which light is red?" }, { role: "assistant", content: "The one on the port side when you come in from the sea." }], metadata: { ship: "Aurora" },
  });
  const file = new FormData();
  file.append("purpose", "fine-tune");
  const line = JSON.stringify({ messages: [{ role: "user", content: "Port?" }, { role: "assistant", content: "Red." }] });
  file.append("file", new Blob([`${line}\n`.repeat(20)]), "lights.jsonl");
  const { id: training_file } = await api("POST", "/files", file);
  const job = await api("POST", "/fine_tuning/jobs", { model: CHAT, training_file, name: "harbour lights", metadata: { team: "pilots" } });
  for (const content of ["Name three harbours.", "What is a buoy?", "How deep is the sea?"]) {
    await api("POST", "/chat/completions", { model: CHAT, messages: [{ role: "user", content }], max_completion_tokens: 24, temperature: 0 });
  }
  await api("POST", "/embeddings", { model: VECTORS, input: ["a", "b"] });
  return { conversation: conversation.id, agent: agent.id, job: job.id };
}

/** A place: where it is, its heading, what is done there; `name` is that of its picture. */
const at = (route, heading, ready, name = route.replaceAll("/", "-")) => ({
  name,
  async open(page, ids) {
    await go(page, typeof route === "function" ? route(ids) : route, heading);
    await ready?.(page);
  },
});
const shows = (text) => (page) => page.getByText(text).first().waitFor();

const PLACES = [
  at("start", "Get started", shows(CHAT)),
  at("playground/chat", "Playground", async (page) => {
    await page.getByLabel("Message").fill("What is a lighthouse for?");
    await page.getByLabel("Temperature").fill("0");
    await page.getByLabel("Max tokens").fill("60");
    await page.getByRole("button", { name: "Send" }).click();
    await page.getByText(/tokens\/s/).waitFor();
  }),
  at("playground/images", "Playground", async (page) => {
    await page.getByLabel("Prompt", { exact: true }).fill("a lighthouse by the sea");
    await page.getByLabel("Steps").fill("4");
    await page.getByLabel("Seed").fill("7");
    await page.getByRole("button", { name: "Generate" }).click();
    await page.getByText("Seed 7").waitFor();
  }),
  at("playground/embeddings", "Playground", async (page) => {
    await page.getByRole("button", { name: "Compare" }).click();
    await page.getByText(/4 vectors with/).waitFor();
  }),
  at("models", "Models", shows(PICTURES)),
  at("conversations", "Conversations", shows("Which light is red?")),
  at((ids) => `conversations/${ids.conversation}`, "Conversation", shows("port side"), "conversation"),
  at("agents", "Agents", shows("Harbour pilot")),
  at((ids) => `agents/${ids.agent}`, "Harbour pilot", undefined, "agent"),
  at("tuning", "Fine-tuning", shows("harbour lights")),
  at((ids) => `tuning/${ids.job}`, "harbour lights", undefined, "job"),
  at("keys", "API keys", shows("billing")),
  at("keys", "API keys", async (page) => {
    await page.getByRole("button", { name: "Create API key" }).click();
    await page.getByLabel("Name").fill("a new one");
    await page.getByRole("button", { name: "Create", exact: true }).click();
    await page.getByText("Save your API key").waitFor();
  }, "key-secret"),
  at("usage", "Usage", async (page) => {
    await page.getByLabel("Time range").selectOption({ label: "Last hour" });
    await page.getByLabel("Group by").selectOption({ label: "Model" });
    await page.getByLabel("Metric").selectOption({ label: "Tokens" });
    await page.getByRole("region", { name: "Group by" }).waitFor();
  }),
  at("live", "Live metrics", async (page) => page.locator("figure.chart").waitFor()),
  at("projects", "Projects", shows("Resource usage")),
  at("audit", "Audit log", shows("api_key.rotated")),
];

/** How it may be looked at. */
export const VIEWS = { light: { colorScheme: "light" }, dark: { colorScheme: "dark" }, narrow: { viewport: { width: 360, height: 740 } } };

/** Goes to every place, the door first, and calls `look` with its name. */
export async function tour(page, server, ids, look) {
  await page.goto(server.url);
  await page.getByLabel("API key").waitFor();
  await look("sign-in");
  await signIn(page, server.url, server.key);
  for (const place of PLACES) {
    await place.open(page, ids);
    await look(place.name);
  }
}
