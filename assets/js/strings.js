// Every word that the dashboard says, in one place.

export const t = {
  // Everywhere
  name: "Name", created: "Created", changed: "Changed", actions: "Actions", edit: "Edit", save: "Save", cancel: "Cancel", close: "Close", remove: "Delete",
  copy: "Copy", copied: "Copied", more: "Show more", time: "Time", from: "From", until: "Until", waiting: "Loading…", project: "Project", menu: "Menu",
  skip: "Skip to the page", nothingHere: "There is nothing here", signedInAs: "Signed in with", signOut: "Sign out", back: "Back to the list",
  archivedName: (name) => `${name} (archived)`,
  metadata: "Metadata", metadataHint: "A JSON object: whatever your application wants to keep with it.",
  notJson: (what, why) => `${what} is not JSON: ${why}`,
  errors: {
    request: "Request", again: "Try again", unreachable: "The server does not answer. It may have been stopped, or the network is down.",
    status: (status) => `The server answered with status ${status}.`,
  },
  pages: {
    label: "Pages", start: "Start", playground: "Playground", models: "Models", conversations: "Conversations", agents: "Agents", tuning: "Fine-tuning",
    keys: "API keys", usage: "Usage", live: "Live", projects: "Projects", audit: "Audit log",
  },

  signIn: {
    title: "Sign in", key: "API key", action: "Sign in",
    about: "With any key of this server. The first one was printed when the server first started; it is also in the file admin.key in the data folder.",
    hint: "The key stays in this tab and goes nowhere but to this server.",
  },

  start: {
    about: "Three steps from here to your own application.",
    noModels: "No model is installed yet. Pull the starter set on the server, then reload this page:",
    key: "Make a key for your application", done: "done",
    keyAbout: "One key for each application and each environment: each can then be limited, rotated and revoked by itself.",
    keyAction: "Create an API key",
    curl: "Ask a model", curlAbout: "Any client that speaks OpenAI's API works: give it this address and your key. From a terminal:",
    play: "Try it here", playAbout: "Chat, paint and compare texts in the browser, then take the same request along as curl, Python or Node.",
    playAction: "Open the playground",
    address: "Address for clients", strict: "Address for strict clients",
    addressHint: "Answers have the fields of OpenAI's, and an envelope around them.", strictHint: "Answers have exactly OpenAI's fields.",
    reference: "Every endpoint is described in ",
  },

  keys: {
    about: (project) => `Keys of the project ${project}. A key's secret is shown once, when it is made.`,
    create: "Create a key", make: "Create", none: "No key yet", noneHint: "Create one for each application that calls this server.",
    state: "State", active: "active", expired: "expired", revoked: "revoked", rotating: "rotating", oldUntil: "the old secret works until",
    yours: "yours", scopes: "May", only: (models) => `only ${models}`, lastUse: "Last use", expires: "Expires",
    nameHint: "What uses it, for example “billing service, production”.", expiresHint: "Empty: never.",
    models: "Models", modelsHint: "None chosen: all of them.",
    scope: { inference: "call models", project: "manage its project", admin: "operate the whole server" },
    secretTitle: "Keep this secret now", secretOnce: "It is shown this once. The server keeps no copy that anybody could read.", kept: "I have kept it",
    editTitle: (name) => `Edit ${name}`,
    rotate: "Rotate", rotateTitle: (name) => `Rotate ${name}`,
    rotateAbout: "The key gets a new secret and keeps its name, project and scopes. During the grace period the old secret works beside the new one, so that your deployments can follow.",
    grace: "Grace period", atOnce: "None: the old secret ends at once", hour: "1 hour", day: "1 day", week: "7 days", month: "30 days",
    reason: "Reason", reasonHint: "For the audit log.",
    revoke: "Revoke", revokeTitle: (name) => `Revoke ${name}?`, revokeAbout: "It stops working from the next request on, and cannot be brought back.",
  },

  projects: {
    about: "A project owns keys, limits, usage and everything that its applications store.", aboutOwn: "The project of your key.",
    create: "Create a project", make: "Create", environment: "Environment", environmentHint: "A label such as production or development.",
    state: "State", active: "active", archived: "archived", editTitle: (name) => `Edit ${name}`,
    archive: "Archive", archiveTitle: (name) => `Archive ${name}?`,
    archiveAbout: "Its keys stop working at once and nothing in it can change any more. Usage and audit log stay readable. This cannot be undone.",
  },
  limits: {
    title: (name) => `Limits of ${name}`, none: "no limit",
    requests_per_minute: "Requests a minute", burst_limit: "Burst", tokens_per_minute: "Tokens a minute", token_budget: "Tokens a month",
    hints: {
      requests_per_minute: "What comes faster is refused with status 429 and told when to come back.",
      burst_limit: "How many may come at once, up to 10 times the rate. Empty: as many as the rate.",
      tokens_per_minute: "Prompts and answers together.",
      token_budget: "In a calendar month, UTC. When it is used up, models are refused until the next.",
    },
    ceiling: (most) => `At most ${most}, as an administrator set it.`,
    effect: (rate, burst) => (rate ? `Now: ${rate} requests a minute on average, and up to ${burst} at once.` : "Now: requests are not limited."),
    month: (used, budget) => (budget ? `This month: ${used} of ${budget} tokens are used.` : `This month: ${used} tokens are used; there is no budget.`),
    ceilingTitle: "Ceiling", ceilingAbout: "What keys of the project cannot exceed when they set its limits. Only administrators set it.",
    quotaTitle: "What the project may hold", quotaAbout: "Empty brings the default back. Only administrators set it.",
    holds: "What the project holds", what: "What", held: "Held", most: "At most",
    quota: { api_keys: "API keys", conversations: "Conversations", agents: "Agents", files: "Files", fine_tuning_jobs: "Fine-tuning jobs", storage_bytes: "Storage" },
  },

  usage: {
    about: "What was asked and used, to the last token. The API tells the same figures.", csv: "Export CSV", window: "Window",
    windows: { hour: "Last hour", day: "Last day", week: "Last 7 days", month: "Last 30 days", own: "From … until …" },
    group: "Group by", together: "nothing", byModel: "model", byKey: "API key", byEndpoint: "endpoint", shown: "Chart", none: "none",
    measure: { requests: "Requests", tokens: "Tokens", images: "Images" }, chart: (what) => `${what} over time`,
    input: "Input tokens", output: "Output tokens", cached: (count) => `${count} of them cached`, cachedTokens: "Cached", audio: "Audio", storage: "Storage now",
    notSucceeded: (count) => `${count} did not succeed`, nothing: "Nothing was used in this window", nothingHint: "Choose a longer one, or ask a model in the playground.",
  },

  live: {
    about: "The whole server, as it is now. Read every two seconds while this page is in front.", running: "Answers running", queued: "Requests queued", speed: "Tokens computed",
    perSecond: "a second", generated: "Tokens generated", sinceStart: "since the start", pictures: "Pictures waiting", texts: "Text tokens waiting",
    memory: "Memory for models", used: "In use", of: (used, total) => `${used} of ${total}`, chart: "Tokens generated a second",
    use: { weights: "Weights", scratch: "Working memory", kv_held: "Running chats", kv_cached: "Remembered prompts" },
    models: "By model", noModels: "No model has been asked since the server started.", model: "Model", prompt: "Prompt tokens", cached: "Cached", images: "Images", loaded: "in memory",
    refused: "Refused", first: "First token", firstHint: "on average",
  },

  models: {
    about: "What lies in the models folder, and what this server can do with it.", none: "No model is installed", noneHint: "Pull the starter set on the server, or put a model's folder into the models folder:",
    pull: "Command that pulls it", can: "Can", format: "Format", parameters: "Parameters", size: "Size", state: "State", broken: "unusable", loaded: "loaded", onDisk: "on disk",
    load: "Load", unload: "Unload", working: "Working…", catalog: "More in the catalog", allThere: "Everything in the catalog is installed.",
    capability: { chat_completions: "chat", embeddings: "embeddings", reranking: "ranking", image_generation: "images" },
    limits: "Limits", context: (tokens) => `${tokens} tokens of context`, dimensions: (count) => `${count} dimensions`, sizes: (sizes) => `${sizes} pixels`,
  },

  audit: {
    about: "Who changed what, and when. Rows are written together with the change itself.", csv: "Export CSV", all: "All projects", action: "Action", actor: "Key", target: "Target", detail: "Detail",
    operator: "the server", none: "No row fits", noneHint: "Take a filter away, or look at a longer time.",
  },

  code: { title: "The same request", about: "Put your key into the environment variable OUTPOST_KEY.", language: "Language" },

  play: {
    about: "Ask the models of this server as your applications would.", kinds: { chat: "Chat", images: "Images", embeddings: "Embeddings" }, kind: "Kind", code: "Copy as code",
    model: "Model", none: (what) => `No installed model can ${what}`, noneHint: "The page Models shows what can be pulled.",
    chatWith: "chat", paint: "paint", embed: "embed texts",
  },
  chat: {
    send: "Send", stop: "Stop", clear: "Start over", message: "Message", messageHint: "Enter sends, Shift and Enter begin a line.", empty: "Say something", emptyHint: "The answer comes as it is generated. Nothing is kept unless you choose a conversation.",
    settings: "Settings", agent: "Agent", noAgent: "none", ofAgent: "the agent's", conversation: "Conversation", noConversation: "not kept", newConversation: "a new one", system: "System prompt",
    temperature: "Temperature", top_p: "Top p", max_completion_tokens: "Most tokens", seed: "Seed", usual: "default",
    format: "Answer", formats: { text: "text", json_object: "JSON object", json_schema: "JSON of a schema" }, schema: "JSON schema", tools: "Tools", toolsHint: "Functions as OpenAI defines them: a JSON array.", tool_choice: "Calls", choices: { auto: "as the model likes", required: "one at least", none: "none" },
    roles: { user: "You", assistant: "Model", system: "System", developer: "Developer", tool: "Tool" }, calls: (name) => `calls ${name}`, result: (name) => `What ${name} gives`, giveResults: "Give the results",
    tokens: (input, output) => `${input} + ${output} tokens`, cached: (count) => `${count} cached`, speed: (rate) => `${rate} tokens a second`, cut: "cut off at the most tokens", stopped: "stopped",
    log: "Chat",
  },
  images: {
    prompt: "Prompt", negative: "Not in the picture", size: "Size", steps: "Steps", guidance: "Guidance", seed: "Seed", scheduler: "Scheduler", count: "Pictures", usual: "the model's own", paint: "Paint", stop: "Stop",
    step: (step, steps) => `Step ${step} of ${steps}`, begins: "Waits for its turn…", again: "Use this seed", download: "Download", shown: (prompt) => `Picture: ${prompt}`, gallery: "Gallery", empty: "No picture yet", emptyHint: "Describe one and paint it. The same seed and settings give the same picture again.",
    seeded: (seed) => `Seed ${seed}`, drawn: "drawn",
  },
  embed: {
    texts: "Texts", textsHint: "One a line, 2 to 16 of them.", compare: "Compare", dimensions: "Dimensions", matrix: "Similarity of each text to each", cosine: "Cosine of the angle between the vectors: 1 is the same, 0 is unrelated.",
    figures: (count, size) => `${count} vectors of ${size} numbers.`, example: "The cat sleeps on the sofa.\nA kitten naps on the couch.\nThe train leaves at noon.\nWhen does the railway depart?",
  },

  talks: {
    about: "Transcripts that your applications, or the playground, keep here.", search: "Search", searchHint: "In messages and metadata", none: "No conversation yet", noneHint: "Choose “a new one” as the conversation in the playground, or create one by the API.", notFound: "No conversation holds this", notFoundHint: "Try a shorter word.",
    noPreview: "(no message from a user)", messages: "Messages", begins: "Begins", searchOn: "Search on", open: "Open", title: "Conversation", export: "Export JSON", go: "Go on in the playground", role: "Role", content: "Content", contentOf: (at) => `Content of message ${at}`, roleOf: (at) => `Role of message ${at}`,
    removeMessage: (at) => `Remove message ${at}`, add: "Add a message", parts: "These are parts or tool calls: edit the JSON.", save: "Save the transcript", saved: "Saved", version: (version) => `Version ${version}`,
    removeTitle: "Delete this conversation?", removeAbout: "All its messages go with it. This cannot be undone.", empty: "No message in it yet",
  },

  agents: {
    about: "Instructions, tools and a model under one id, which chats name as agent_id. Every change makes a version.", create: "Create an agent", none: "No agent yet", noneHint: "Create one with instructions; then choose it in the playground.",
    model: "Model", anyModel: "the request names it", instructions: "Instructions", instructionsHint: "Behaviour and the bounds of its task.", tools: "Tools", toolsHint: "Functions as OpenAI defines them: a JSON array.",
    memory: "Memory", truncation: "A conversation that is too long", truncations: { "": "as the request says", auto: "its oldest turns are left out", disabled: "is refused" }, last: "Most messages it is given", all: "all",
    unnamed: "(no name)", version: "Version", versions: "Versions", current: "current", versionTitle: (version) => `Version ${version}`, restore: "Make it the current one", try: "Try it", editTitle: "Edit the agent", make: "Create",
    removeTitle: (name) => `Delete ${name}?`, removeAbout: "Chats that name it are refused from then on. This cannot be undone.", show: "Show",
  },

  tuning: {
    about: "Training files and jobs. This version of the server checks data and keeps jobs, but cannot train yet: a job fails at once and says so.", upload: "Upload a file", files: "Files", noFiles: "No file yet", noFilesHint: "Upload JSON lines: {\"messages\": […]}, {\"prompt\": …, \"completion\": …} or {\"text\": …}.",
    file: "File", fileHint: "JSON lines, checked line by line while they come in.", examples: "Examples", size: "Size", send: "Upload", uploading: "Uploading…",
    jobs: "Jobs", start: "Start a job", noJobs: "No job yet", noJobsHint: "Upload a training file, then start a job with it.", model: "Model", training: "Training file", validation: "Validation file", noValidation: "none", epochs: "Epochs", auto: "auto", suffix: "Suffix of the model's name", state: "State",
    open: "Open", job: "Job", events: "Events", noEvents: "Nothing has happened yet.", loss: "Loss", noLoss: "The curve is drawn when the job tells its loss.", step: "Step", stop: "Cancel the job", labels: "Labels", result: "Trained model", none: "none yet", trained: "Tokens trained", removeTitle: (name) => `Delete ${name}?`, removeAbout: "Jobs that have read it keep their results. This cannot be undone.", make: "Start",
    level: { info: "info", warn: "warning", error: "error" },
  },
};
