// Every place of the dashboard, and how to get there with something to see.

import { CHAT, go, PICTURES, VECTORS } from "./harness.mjs";

const TOOL = { type: "function", function: { name: "weather", description: "The weather in a city", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } };

/** One of everything that a server stores: `{conversation, agent, job}`. */
export async function seed({ api, key }) {
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
  return { conversation: conversation.id, agent: agent.id, job: job.id, key };
}

const at = (name, heading, ready) => ({
  name: name.replaceAll("/", "-"),
  async open(page) {
    await go(page, name, heading);
    await ready?.(page);
  },
});
const shows = (text) => (page) => page.getByText(text).first().waitFor();

export const PLACES = [
  at("start", "Start", shows(CHAT)),
  {
    name: "playground-chat",
    async open(page) {
      await go(page, "playground/chat", "Playground");
      await page.getByLabel("Message").fill("What is a lighthouse for?");
      await page.getByLabel("Temperature").fill("0");
      await page.getByLabel("Most tokens").fill("60");
      await page.getByRole("button", { name: "Send" }).click();
      await page.getByText(/tokens a second/).waitFor();
    },
  },
  {
    name: "playground-images",
    async open(page) {
      await go(page, "playground/images", "Playground");
      await page.getByLabel("Prompt").fill("a lighthouse by the sea");
      await page.getByLabel("Steps").fill("4");
      await page.getByLabel("Seed").fill("7");
      await page.getByRole("button", { name: "Paint" }).click();
      await page.getByText("Seed 7").waitFor();
    },
  },
  {
    name: "playground-embeddings",
    async open(page) {
      await go(page, "playground/embeddings", "Playground");
      await page.getByRole("button", { name: "Compare" }).click();
      await page.getByText(/4 vectors of/).waitFor();
    },
  },
  at("models", "Models", shows(PICTURES)),
  at("conversations", "Conversations", shows("Which light is red?")),
  { name: "conversation", open: async (page, ids) => { await go(page, `conversations/${ids.conversation}`, "Conversation"); await shows("port side")(page); } },
  at("agents", "Agents", shows("Harbour pilot")),
  { name: "agent", open: (page, ids) => go(page, `agents/${ids.agent}`, "Harbour pilot") },
  at("tuning", "Fine-tuning", shows("harbour lights")),
  { name: "job", open: (page, ids) => go(page, `tuning/${ids.job}`, "harbour lights") },
  at("keys", "API keys", shows("billing")),
  {
    name: "key-secret",
    async open(page) {
      await go(page, "keys", "API keys");
      await page.getByRole("button", { name: "Create a key" }).click();
      await page.getByLabel("Name").fill("a new one");
      await page.getByRole("button", { name: "Create", exact: true }).click();
      await page.getByText("Keep this secret now").waitFor();
    },
  },
  at("usage", "Usage", async (page) => {
    await page.getByLabel("Window").selectOption({ label: "Last hour" });
    await page.getByLabel("Group by").selectOption({ label: "model" });
    await page.getByLabel("Chart", { exact: true }).selectOption({ label: "Tokens" });
    await page.getByRole("region", { name: "Group by" }).waitFor();
  }),
  at("live", "Live", async (page) => page.locator("figure.chart").waitFor()),
  at("projects", "Projects", shows("What the project holds")),
  at("audit", "Audit log", shows("api_key.rotated")),
];
