// Every page of the dashboard, how to open it, and sample data to show on it.

import { CHAT_MODEL, goTo, IMAGE_MODEL, signIn, TINY_MODEL, unfold, EMBEDDING_MODEL, waitForJob } from "./harness.mjs";

const TOOL = { type: "function", function: { name: "weather", description: "The weather in a city", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } };

// Shows what Markdown can do.
const ANSWER = `The one on the **port** side when you come in from the sea.

| side | light | buoy |
|---|---|---|
| port | red | can |
| starboard | green | cone |

1. Keep *red* on your left.
2. Keep *green* on your right.

\`\`\`python
def side(light: str) -> str:
    return {"red": "port", "green": "starboard"}[light]
\`\`\``;

/** Creates sample data of every kind. Returns `{project, conversation, agent, job, failed, tuned}`, the IDs. */
export async function seedData({ api, url, key }) {
  const { project_id: project } = await api("GET", "/me");
  await api("PUT", `/projects/${project}`, { name: "Lighthouse", environment: "production" });
  await api("PATCH", `/projects/${project}/rate-limits`, { requests_per_minute: 6000, burst_limit: 9000, token_budget: 50_000_000 });
  await api("POST", "/projects", { name: "Harbour", environment: "development" });
  const billing = await api("POST", "/api-keys", { name: "billing, production", project_id: project });
  await api("PUT", `/api-keys/${billing.id}`, { grace_period_seconds: 86_400, reason: "yearly" });
  const old = await api("POST", "/api-keys", { name: "old laptop", project_id: project, scopes: ["inference"], models: [CHAT_MODEL] });
  await api("DELETE", `/api-keys/${old.id}`);
  const agent = await api("POST", "/agents", { name: "Harbour pilot", model: CHAT_MODEL, instructions: "You guide ships into the harbour. Answer in one sentence.", tools: [TOOL], memory: { truncation: "auto", last_messages: 20 } });
  await api("PATCH", `/agents/${agent.id}`, { instructions: "You guide ships into the harbour. Answer in one short sentence." });
  const conversation = await api("POST", "/conversations", {
    messages: [{ role: "user", content: "Which light is red?" }, { role: "assistant", content: ANSWER }], metadata: { ship: "Aurora" },
  });
  const upload = async (name, text) => {
    const file = new FormData();
    file.append("purpose", "fine-tune");
    file.append("file", new Blob([text]), name);
    return (await api("POST", "/files", file)).id;
  };
  const line = (user, assistant) => `${JSON.stringify({ messages: [{ role: "user", content: user }, { role: "assistant", content: assistant }] })}\n`;
  const training_file = await upload("lights.jsonl", (line("Port?", "Red.") + line("Starboard?", "Green.")).repeat(10));
  const validation_file = await upload("questions.jsonl", line("Port side?", "Red."));
  const start = (name, more) => api("POST", "/fine_tuning/jobs", { model: TINY_MODEL, training_file, name, metadata: { team: "pilots" }, ...more });
  const method = { type: "supervised", supervised: { hyperparameters: { n_epochs: 5, batch_size: 2, learning_rate_multiplier: 20 } } };
  const job = await start("harbour lights", { validation_file, suffix: "lights", seed: 7, method });
  const { fine_tuned_model: tuned } = await waitForJob(api, job.id);
  const failed = await start("deep sea", { method: { type: "supervised", supervised: { hyperparameters: { max_length: 8 } } } });
  await waitForJob(api, failed.id);
  for (const content of ["Name three harbours.", "What is a buoy?", "How deep is the sea?"]) {
    await api("POST", "/chat/completions", { model: CHAT_MODEL, messages: [{ role: "user", content }], max_completion_tokens: 24, temperature: 0 });
  }
  await api("POST", "/embeddings", { model: EMBEDDING_MODEL, input: ["a", "b"] });
  const refused = { method: "POST", headers: { authorization: `Bearer ${key}`, "content-type": "application/json" }, body: "{}" };
  for (let count = 0; count < 2; count++) await fetch(`${url}/v1/embeddings`, refused);
  return { project, conversation: conversation.id, agent: agent.id, job: job.id, failed: failed.id, tuned };
}

/** A page: its route, its heading, and an action that prepares it. `name` is the name of its screenshot. */
const page = (route, heading, ready, name = route.replaceAll("/", "-")) => ({
  name,
  async open(page, ids) {
    await goTo(page, typeof route === "function" ? route(ids) : route, heading);
    await ready?.(page);
  },
});
const shows = (text) => (page) => page.getByText(text).first().waitFor();

const PAGES = [
  page("start", "Get started", shows(CHAT_MODEL)),
  page("playground/chat", "Playground", async (page) => {
    await unfold(page, "Settings");
    await page.getByLabel("Temperature").fill("0");
    await page.getByLabel("Max tokens").fill("60");
    if (await page.locator(".fold-button").isVisible()) await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("Message").fill("What is a lighthouse for?");
    await page.getByRole("button", { name: "Send" }).click();
    await page.getByText(/tokens\/s/).waitFor();
  }),
  page("playground/images", "Playground", async (page) => {
    await unfold(page, "Settings");
    await page.getByLabel("Prompt", { exact: true }).fill("a lighthouse by the sea");
    await page.getByLabel("Steps").fill("4");
    await page.getByLabel("Seed").fill("7");
    await page.getByRole("button", { name: "Generate" }).click();
    await page.getByText("Seed 7").waitFor();
  }),
  page("playground/embeddings", "Playground", async (page) => {
    await page.getByRole("button", { name: "Compare" }).click();
    await page.getByText(/4 vectors with/).waitFor();
  }),
  // What these two pages show with a model is in audio.test.mjs.
  page("playground/transcription", "Playground", shows("outpost models pull whisper-tiny.en")),
  page("playground/speech", "Playground", shows("outpost models pull kokoro-82m")),
  page("models", "Models", shows(IMAGE_MODEL)),
  page("conversations", "Conversations", shows("Which light is red?")),
  page((ids) => `conversations/${ids.conversation}`, "Conversation", shows("port side"), "conversation"),
  page("agents", "Agents", shows("Harbour pilot")),
  page((ids) => `agents/${ids.agent}`, "Harbour pilot", undefined, "agent"),
  page("tuning", "Fine-tuning", shows("harbour lights")),
  page("tuning", "Fine-tuning", async (page) => {
    await page.getByRole("button", { name: "Start job" }).click();
    await page.getByText("Advanced").click();
    await page.getByLabel("LoRA rank").waitFor();
    await page.getByRole("option", { name: /^lights/ }).first().waitFor({ state: "attached" });
  }, "start-job"),
  page((ids) => `tuning/${ids.job}`, "harbour lights", async (page) => {
    await page.locator("figure.chart path.line").first().waitFor();
    await page.getByRole("region", { name: "Checkpoints" }).waitFor();
    await page.getByRole("link", { name: "Compare with base model" }).waitFor();
  }, "job"),
  page((ids) => `tuning/${ids.failed}`, "deep sea", shows("invalid_training_file"), "job-failed"),
  page((ids) => `playground/chat/model/${TINY_MODEL}/compare/${encodeURIComponent(ids.tuned)}`, "Playground", async (page) => {
    await unfold(page, "Settings");
    await page.getByLabel("Temperature").fill("0");
    await page.getByLabel("Max tokens").fill("30");
    if (await page.locator(".fold-button").isVisible()) await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("Message").fill("Port?");
    await page.getByRole("button", { name: "Send" }).click();
    await page.getByText(/\d+ output tokens/).nth(1).waitFor();
  }, "comparison"),
  page("keys", "API keys", shows("billing")),
  page("keys", "API keys", async (page) => {
    await page.getByRole("button", { name: "Create API key" }).click();
    await page.getByLabel("Name").fill("a new one");
    await page.getByRole("button", { name: "Create", exact: true }).click();
    await page.getByText("Save this key now").waitFor();
  }, "key-secret"),
  page("usage", "Usage", async (page) => page.locator("figure.chart path.bar").first().waitFor(), "usage-status"),
  page("usage", "Usage", async (page) => {
    await unfold(page, "Filters");
    await page.getByLabel("Time range").selectOption({ label: "Last hour" });
    await page.getByLabel("Group by").selectOption({ label: "Model" });
    await page.getByLabel("Metric").selectOption({ label: "Tokens" });
    await page.getByRole("region", { name: "Group by" }).waitFor();
  }),
  page("live", "Live metrics", async (page) => page.locator("figure.chart").waitFor()),
  page("projects", "Projects", (page) => page.getByRole("link", { name: "Harbour" }).waitFor()),
  page((ids) => `projects/${ids.project}`, "Lighthouse", shows("Tokens this month"), "project"),
  page((ids) => `projects/${ids.project}/limits`, "Lighthouse", (page) => page.getByRole("form", { name: "Quotas" }).waitFor(), "project-limits"),
  page((ids) => `projects/${ids.project}/audit`, "Lighthouse", shows("api_key.rotated"), "project-audit"),
  page("audit", "Audit log", shows("api_key.rotated")),
];

/** Browser options for each view. */
export const VIEWS = { light: { colorScheme: "light" }, dark: { colorScheme: "dark" }, narrow: { viewport: { width: 390, height: 844 } } };

/** Opens every page, starting with the sign-in page, and calls `inspect` with its name. */
export async function visitPages(page, server, ids, inspect) {
  await page.goto(server.url);
  await page.getByLabel("API key").waitFor();
  await inspect("sign-in");
  await signIn(page, server.url, server.key);
  for (const { name, open } of PAGES) {
    await open(page, ids);
    await inspect(name);
  }
}
