// Every string that the dashboard shows, in one place.

export const t = {
  // Shared by several pages
  name: "Name", status: "Status", created: "Created", updated: "Updated", actions: "Actions", create: "Create", edit: "Edit", save: "Save", cancel: "Cancel", close: "Close",
  delete: "Delete", done: "Done", copy: "Copy", copied: "Copied", showMore: "Show more", time: "Time", from: "From", to: "To", never: "Never", loading: "Loading…",
  project: "Project", menu: "Menu", skipToContent: "Skip to main content", pageNotFound: "Page not found", home: "Go to the start page",
  signedInWith: "Signed in with key", signOut: "Sign out", back: "Back to list",
  archivedName: (name) => `${name} (archived)`,
  metadata: "Metadata", metadataHint: "JSON object with key-value pairs of your choice.",
  toolsHint: "JSON array of OpenAI function definitions.",
  invalidJson: (field, reason) => `${field} is not valid JSON: ${reason}`,
  errors: {
    requestId: "Request ID", retry: "Try again", unreachable: "Cannot reach the server. It may be stopped, or the network may be down.",
    status: (status) => `The server returned status ${status}.`,
  },
  pages: {
    label: "Main", start: "Get started", playground: "Playground", models: "Models", conversations: "Conversations", agents: "Agents", tuning: "Fine-tuning",
    keys: "API keys", usage: "Usage", live: "Live metrics", projects: "Projects", audit: "Audit log",
  },

  signIn: {
    title: "Sign in", key: "API key", action: "Sign in",
    about: "Use any API key of this server. When the server first started, it printed an admin key and stored it in the file admin.key in the data folder.",
    hint: "The key stays in this browser tab and is sent only to this server.",
  },

  start: {
    about: "Make your first API request in three steps.",
    noModels: "No models are installed yet. Run this command on the server, then reload this page:",
    createKey: "Create an API key",
    createKeyAbout: "Create one key for each application and environment. You can then restrict, rotate and revoke each key independently.",
    createKeyAction: "Go to API keys",
    request: "Send a request", requestAbout: "Use any OpenAI-compatible client with your key and one of the base URLs below. Or use curl:",
    play: "Try the playground", playAbout: "Chat, generate images and compare embeddings in the browser. You can copy each request as curl, Python or Node.js code.",
    playAction: "Open playground",
    baseUrl: "Base URL", strictBaseUrl: "Base URL for strict clients",
    baseUrlHint: "Responses contain all OpenAI fields plus a service envelope.", strictBaseUrlHint: "Responses contain only the OpenAI fields.",
    reference: "API reference: ",
  },

  keys: {
    about: (project) => `API keys of the project ${project}. A secret is shown only once, when a key is created or rotated.`,
    create: "Create API key", empty: "No API keys yet", emptyHint: "Create one key for each application that calls this server.",
    active: "Active", expired: "Expired", revoked: "Revoked", rotating: "Rotating", oldSecretExpires: "Old secret expires",
    current: "Current session", scopes: "Scopes", onlyModels: (models) => `Only ${models}`, lastUsed: "Last used", expires: "Expires",
    nameHint: "For example, “billing service, production”.", expiresHint: "Leave empty for a key that never expires.",
    models: "Models", modelsHint: "Select none to allow all models.",
    scope: { inference: "call models", project: "manage the project", admin: "manage the server" },
    secretTitle: "Save your API key", secretAbout: "Copy this secret now. You will not see it again.",
    editTitle: (name) => `Edit ${name}`,
    rotate: "Rotate", rotateTitle: (name) => `Rotate ${name}`,
    rotateAbout: "The key gets a new secret. Its name, project and scopes stay the same. Both secrets work during the grace period, so you can update your deployments.",
    grace: "Grace period", noGrace: "None: the old secret stops working immediately", hour: "1 hour", day: "1 day", week: "7 days", month: "30 days",
    reason: "Reason", reasonHint: "Recorded in the audit log.",
    revoke: "Revoke", revokeTitle: (name) => `Revoke ${name}?`, revokeAbout: "The key stops working immediately. This cannot be undone.",
  },

  projects: {
    about: "Each project has its own API keys, limits, usage and stored data.", aboutOwn: "The project of your API key.",
    create: "Create project", environment: "Environment", environmentHint: "For example, production or development.",
    active: "Active", archived: "Archived", editTitle: (name) => `Edit ${name}`,
    archive: "Archive", archiveTitle: (name) => `Archive ${name}?`,
    archiveAbout: "All API keys of the project stop working immediately, and the project becomes read-only. Its usage and audit log stay available. This cannot be undone.",
  },
  limits: {
    title: (name) => `Limits for ${name}`, noLimit: "No limit", defaultQuota: "Default",
    requests_per_minute: "Requests per minute", burst_limit: "Burst limit", tokens_per_minute: "Tokens per minute", token_budget: "Tokens per month",
    hints: {
      requests_per_minute: "Requests above the rate limit get status 429 and a Retry-After header.",
      burst_limit: "Requests allowed in a burst, up to 10 times the rate. Defaults to the rate.",
      tokens_per_minute: "Input and output tokens together.",
      token_budget: "Per calendar month, in UTC. When the budget is used up, model requests are refused until the next month.",
    },
    ceilingHint: (maximum) => `Maximum: ${maximum}, set by an administrator.`,
    effective: (rate, burst) => (rate ? `Effective limit: ${rate} requests per minute, up to ${burst} at once.` : "Effective limit: none."),
    monthUsage: (used, budget) => (budget ? `Used this month: ${used} of ${budget} tokens.` : `Used this month: ${used} tokens. No budget is set.`),
    ceilingTitle: "Maximum limits", ceilingAbout: "The highest limits that the project’s own keys can set. Only administrators can change them.",
    quotaTitle: "Quotas", quotaAbout: "Clear a field to restore the default. Only administrators can change quotas.",
    resourceUsage: "Resource usage", resource: "Resource", used: "Used", quotaColumn: "Quota",
    quota: { api_keys: "API keys", conversations: "Conversations", agents: "Agents", files: "Files", fine_tuning_jobs: "Fine-tuning jobs", storage_bytes: "Storage" },
  },

  usage: {
    about: "Requests, tokens and images of this project, as reported by the usage API.", csv: "Export CSV", timeRange: "Time range",
    timeRanges: { hour: "Last hour", day: "Last 24 hours", week: "Last 7 days", month: "Last 30 days", custom: "Custom" },
    group: "Group by", noGroup: "None", byModel: "Model", byKey: "API key", byEndpoint: "Endpoint", metric: "Metric", unassigned: "(none)",
    metrics: { requests: "Requests", tokens: "Tokens", images: "Images" }, chart: (metric) => `${metric} over time`,
    input: "Input tokens", output: "Output tokens", cached: (count) => `${count} cached`, cachedTokens: "Cached tokens", audio: "Audio processed", storage: "Current storage",
    unsuccessful: (count) => `${count} unsuccessful`, empty: "No usage in this time range", emptyHint: "Select a longer time range, or send a request in the playground.",
  },

  live: {
    about: "Current state of the whole server. Refreshes every 2 seconds while this tab is visible.", active: "Active generations", queuedRequests: "Queued requests",
    throughput: "Token throughput", perSecond: "tokens/s", generatedTokens: "Generated tokens", sinceStart: "since server start", queuedImages: "Queued images", embeddingQueue: "Embedding queue", tokens: "tokens",
    memory: "Model memory", used: "Total used", of: (used, total) => `${used} of ${total}`, chart: "Generated tokens per second",
    memoryUse: { weights: "Weights", scratch: "Scratch buffers", kv_held: "KV cache in use", kv_cached: "Prefix cache" },
    byModel: "By model", activeColumn: "Active", queuedColumn: "Queued", noModels: "No model has been used since the server started.", model: "Model", promptTokens: "Prompt tokens", cachedTokens: "Cached tokens", images: "Images", loaded: "Loaded",
    timeToFirstToken: "Time to first token",
  },

  models: {
    about: "Models installed on this server.", empty: "No models installed", emptyHint: "Add a model to the models folder, or pull the starter set on the server:",
    pullCommand: "Pull command", capabilities: "Capabilities", format: "Format", parameters: "Parameters", size: "Size", error: "Error", loaded: "Loaded", notLoaded: "Not loaded",
    load: "Load", unload: "Unload", loading: "Loading…", unloading: "Unloading…", catalog: "Available from the catalog", allInstalled: "All models of the catalog are installed.",
    capability: { chat_completions: "Chat", embeddings: "Embeddings", reranking: "Reranking", image_generation: "Images" },
    limits: "Limits", context: (tokens) => `${tokens}-token context`, dimensions: (count) => `${count} dimensions`, sizes: (sizes) => `${sizes} pixels`,
  },

  audit: {
    about: "Every change, with its time and the API key that made it.", csv: "Export CSV", allProjects: "All projects", action: "Action", actor: "API key", target: "Target", details: "Details",
    server: "Server", empty: "No matching events", emptyHint: "Remove a filter, or select a longer time range.",
  },

  code: { title: "Request code", about: "Set the environment variable OUTPOST_KEY to your API key.", language: "Language" },

  playground: {
    about: "Send requests to the models of this server.", kinds: { chat: "Chat", images: "Images", embeddings: "Embeddings" }, kind: "Mode", viewCode: "View code",
    model: "Model", noModel: (capability) => `No installed model supports ${capability}`, noModelHint: "See which models you can install.",
    capability: { chat: "chat", images: "image generation", embeddings: "embeddings" },
  },
  chat: {
    send: "Send", stop: "Stop", clear: "Clear chat", message: "Message", messageHint: "Press Enter to send, Shift+Enter for a new line.", empty: "Start a chat",
    emptyHint: "The response appears as it is generated. Nothing is stored unless you select a conversation.",
    settings: "Settings", agent: "Agent", noAgent: "None", agentModel: "Agent’s model", conversation: "Conversation", noConversation: "None (not stored)", newConversation: "New conversation", system: "System prompt",
    temperature: "Temperature", top_p: "Top P", max_completion_tokens: "Max tokens", seed: "Seed", default: "Default",
    format: "Response format", formats: { text: "Text", json_object: "JSON object", json_schema: "JSON schema" }, schema: "JSON schema", tools: "Tools",
    tool_choice: "Tool choice", toolChoices: { auto: "Auto", required: "Required", none: "None" },
    roles: { user: "User", assistant: "Assistant", system: "System", developer: "Developer", tool: "Tool" }, toolCall: (name) => `Tool call: ${name}`, toolResult: (name) => `Result of ${name}`, submitResults: "Submit results",
    tokens: (input, output) => `${input} input, ${output} output tokens`, cached: (count) => `${count} cached`, speed: (rate) => `${rate} tokens/s`, maxTokensReached: "max tokens reached", stopped: "stopped",
    log: "Chat",
  },
  images: {
    prompt: "Prompt", negativePrompt: "Negative prompt", size: "Size", steps: "Steps", guidance: "Guidance", seed: "Seed", scheduler: "Scheduler", count: "Images", modelDefault: "Default", randomSeed: "Random",
    generate: "Generate", stop: "Stop", step: (step, steps) => `Step ${step} of ${steps}`, queued: "Queued…", progress: "Generation progress",
    reuseSeed: "Reuse seed", download: "Download", alt: (prompt) => `Generated image: ${prompt}`, gallery: "Gallery", empty: "No images yet",
    emptyHint: "Enter a prompt, then select Generate. The same seed and settings produce the same image.",
    seedOf: (seed) => `Seed ${seed}`,
  },
  embeddings: {
    texts: "Input texts", textsHint: "One text per line, 2 to 16 lines.", compare: "Compare", dimensions: "Dimensions", default: "Default", matrix: "Similarity matrix", cosine: "Cosine similarity: 1 means identical, 0 means unrelated.",
    summary: (count, size) => `${count} vectors with ${size} dimensions.`, example: "The cat sleeps on the sofa.\nA kitten naps on the couch.\nThe train leaves at noon.\nWhen does the railway depart?",
  },

  conversations: {
    about: "Conversations stored by your applications or by the playground.", search: "Search", searchHint: "Messages and metadata", empty: "No conversations yet",
    emptyHint: "Select “New conversation” in the playground, or create one with the API.", notFound: "No matching conversations", notFoundHint: "Try a shorter search term.",
    noPreview: "(no user message)", messages: "Messages", firstMessage: "First message", searchMore: "Continue search", title: "Conversation", export: "Export JSON", continue: "Continue in playground",
    editMetadata: "Edit metadata", content: "Content", contentOf: (index) => `Content of message ${index}`, roleOf: (index) => `Role of message ${index}`,
    deleteMessage: (index) => `Delete message ${index}`, addMessage: "Add message", editAsJson: "This message has content parts or tool calls. Edit it as JSON.", save: "Save changes", version: (version) => `Version ${version}`,
    deleteTitle: "Delete this conversation?", deleteAbout: "All of its messages are deleted. This cannot be undone.", noMessages: "No messages yet",
  },

  agents: {
    about: "An agent combines instructions, tools and a model under one ID. Requests select an agent with agent_id. Each change creates a version.", create: "Create agent", empty: "No agents yet",
    emptyHint: "Create an agent, then select it in the playground.",
    model: "Model", modelFromRequest: "Set by the request", instructions: "Instructions", instructionsHint: "The agent’s role, behavior and task.", tools: "Tools",
    truncation: "Truncation", truncationHint: "What to do when a conversation exceeds the context window.", truncations: { "": "Set by the request", auto: "Drop the oldest messages", disabled: "Refuse the request" }, maxMessages: "Max messages", maxMessagesHint: "The number of recent messages that the model sees.", allMessages: "All",
    unnamed: "(unnamed)", version: "Version", versions: "Versions", current: "Current", versionTitle: (version) => `Version ${version}`, restore: "Restore this version", try: "Try in playground", editTitle: "Edit agent",
    deleteTitle: (name) => `Delete ${name}?`, deleteAbout: "Requests that select this agent will fail. This cannot be undone.", view: "View",
  },

  tuning: {
    about: "Training files and jobs. This version cannot train yet: it validates files, but each job fails immediately.", uploadFile: "Upload file", files: "Files", noFiles: "No files yet",
    noFilesHint: "Upload a JSON Lines file with lines such as {\"messages\": […]}, {\"prompt\": …, \"completion\": …} or {\"text\": …}.",
    file: "File", fileHint: "JSON Lines. Each line is validated during the upload.", examples: "Examples", size: "Size", upload: "Upload", uploading: "Uploading…",
    jobs: "Jobs", startJob: "Start job", noJobs: "No jobs yet", noJobsHint: "Upload a training file, then start a job.", model: "Model", training: "Training file", validation: "Validation file", noValidation: "None", epochs: "Epochs", auto: "Auto", suffix: "Model name suffix",
    job: "Job", events: "Events", level: "Level", message: "Message", noEvents: "No events yet.", loss: "Training loss", noLoss: "The loss curve appears when the job reports its first values.", step: "Step", cancelJob: "Cancel job", editJob: "Edit job", fineTunedModel: "Fine-tuned model", noneYet: "None yet", trainedTokens: "Trained tokens",
    deleteTitle: (name) => `Delete ${name}?`, deleteAbout: "Jobs that used this file keep their results. This cannot be undone.", start: "Start",
    states: { queued: "Queued", validating_files: "Validating files", running: "Running", succeeded: "Succeeded", failed: "Failed", cancelled: "Cancelled" },
    levels: { info: "Info", warn: "Warning", error: "Error" },
  },
};
