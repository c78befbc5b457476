// Every string that the dashboard shows, in one place.

const plural = (noun) => (count) => (count === 1 ? noun : `${noun}s`);

export const t = {
  // Shared by several pages
  name: "Name", status: "Status", created: "Created", updated: "Updated", actions: "Actions", create: "Create", edit: "Edit", save: "Save", cancel: "Cancel", close: "Close",
  delete: "Delete", done: "Done", copy: "Copy", copied: "Copied", showMore: "Show more", time: "Time", from: "From", to: "To", never: "Never", loading: "Loading…",
  project: "Project", menu: "Menu", filters: "Filters", sortBy: "Sort by", timeRange: "Time range", skipToContent: "Skip to main content", pageNotFound: "Page not found", home: "Go to the start page",
  signedInWith: "Signed in with key", signOut: "Sign out", back: "Back to list",
  archivedName: (name) => `${name} (archived)`,
  timeRanges: { all: "All time", hour: "Last hour", day: "Last 24 hours", week: "Last 7 days", month: "Last 30 days", custom: "Custom" },
  chart: { running: "in progress", total: "Total" },
  metadata: "Metadata", metadataHint: "JSON object with key-value pairs of your choice.",
  toolsHint: "JSON array of OpenAI function definitions.",
  invalidJson: (field, reason) => `${field} is not valid JSON: ${reason}`,
  errors: {
    requestId: "Request ID", retry: "Try again", unreachable: "Cannot reach the server. It may be stopped, or the network may be down.",
    status: (status) => `The server returned status ${status}.`,
  },
  sections: { build: "Build", manage: "Manage" },
  pages: {
    label: "Main", start: "Get started", playground: "Playground", models: "Models", conversations: "Conversations", agents: "Agents", tuning: "Fine-tuning",
    keys: "API keys", usage: "Usage", live: "Live metrics", projects: "Projects", audit: "Audit log",
  },

  signIn: {
    title: "Sign in", key: "API key", action: "Sign in",
    about: "Use any API key of this server. Without one, open the link that outpost sign-in prints on the server. The first admin key is in the file admin.key in the data folder.",
    hint: "The key stays in this browser tab and is sent only to this server.",
  },

  start: {
    about: "From an API key to the first response.", question: "What is an outpost?",
    noModels: "No models are installed yet. Run this command on the server, then reload this page:",
    createKey: "Create an API key",
    createKeyAbout: "Create one key for each application and environment. You can then restrict, rotate and revoke each key independently.",
    createKeyAction: "Create API key",
    request: "Send a request", requestAbout: "OpenAI’s clients and the libraries built on them work: set the base URL and the API key.",
    mounts: "There are two base URLs. Responses under /openai/v1 have the format of OpenAI’s API. Responses under /v1 put the same fields into an envelope with an ID, an object type and a status.",
    clientUrl: "For OpenAI clients", baseUrl: "For other programs",
    play: "Explore the playground", playAbout: "Chat, generate images, compare embeddings, and turn speech into text and text into speech in the browser. You can copy each request as Python, Node.js or curl code.",
    playAction: "Open playground", reference: "API reference: ",
  },

  keys: {
    about: (project) => `API keys of the project ${project}. A secret is shown only once, when a key is created or rotated.`,
    create: "Create API key", empty: "No API keys yet", emptyHint: "Create one key for each application that calls this server.",
    active: "Active", expired: "Expired", revoked: "Revoked", rotating: "Rotating", oldSecretExpires: "Old secret expires",
    current: "Current session", scopes: "Scopes", onlyModels: (models) => `Only ${models}`, lastUsed: "Last used", expires: "Expires",
    nameHint: "For example, “billing service, production”.", expiresHint: "Leave empty for no expiry.",
    models: "Models", modelsHint: "Select none to allow all models.",
    scope: {
      inference: "Call models: chat, embeddings, reranking, images, audio. An application needs nothing else.",
      project: "Manage this project: its API keys, limits, agents, conversations, files and usage. For scripts and people that administer it.",
      admin: "Manage the whole server, including all projects. For its operators only.",
    },
    secretTitle: "Save this key now", secretAbout: "The secret is shown only once. Store it in a safe place.",
    editTitle: (name) => `Edit ${name}`,
    rotate: "Rotate", rotateTitle: (name) => `Rotate ${name}`,
    rotateAbout: "The key gets a new secret. Its name, project and scopes stay the same. Both secrets work during the grace period, so you can update your deployments.",
    grace: "Grace period", noGrace: "None: the old secret stops working immediately", hour: "1 hour", day: "1 day", week: "7 days", month: "30 days",
    reason: "Reason", reasonHint: "Recorded in the audit log.",
    revoke: "Revoke", revokeTitle: (name) => `Revoke ${name}?`, revokeAbout: "The key stops working immediately. This cannot be undone.",
  },

  projects: {
    about: "Each project has its own API keys, limits, usage and stored data.", aboutOwn: "The project of your API key.",
    create: "Create project", notFound: "Project not found", details: "Details", id: "Project ID", archivedAt: "Archived",
    tabsLabel: "Sections", tabs: { overview: "Overview", keys: "API keys", limits: "Limits and quotas", usage: "Usage", audit: "Audit log" }, environment: "Environment", environmentHint: "For example, production or development.",
    active: "Active", archived: "Archived", editTitle: (name) => `Edit ${name}`,
    archive: "Archive", archiveTitle: (name) => `Archive ${name}?`,
    archiveAbout: "All API keys of the project stop working immediately, and the project becomes read-only. Its usage and audit log stay available. This cannot be undone.",
  },
  limits: {
    title: "Limits", about: "Requests above a limit get status 429 and a Retry-After header.", noLimit: "No limit", defaultQuota: "Default",
    limit: "Limit", projectLimit: "Project limit", maximum: "Maximum", maximumOf: (limit) => `Maximum: ${limit}`, inEffect: "In effect",
    requests_per_minute: "Requests per minute", burst_limit: "Burst limit", tokens_per_minute: "Tokens per minute", audio_seconds_per_minute: "Seconds of audio per minute", token_budget: "Tokens per month",
    perUnit: {
      requests_per_minute: (value) => `${value} requests/min`, burst_limit: (value) => `${value} requests`,
      tokens_per_minute: (value) => `${value} tokens/min`, audio_seconds_per_minute: (value) => `${value} s of audio/min`, token_budget: (value) => `${value} tokens/month`,
    },
    hints: {
      requests_per_minute: "The rate at which new requests are accepted.",
      burst_limit: "Requests at once, up to 10 times the rate. Defaults to the rate.",
      tokens_per_minute: "Input and output tokens together.",
      audio_seconds_per_minute: "Audio sent for transcription and speech generated, together.",
      token_budget: "Per calendar month, in UTC. Then model requests are refused until the next month.",
    },
    emptyHint: "Clear a field to remove the limit. Administrators set the maximum that the project’s own keys can choose.",
    monthUsage: (used, budget) => (budget ? `Used this month: ${used} of ${budget} tokens.` : `Used this month: ${used} tokens. No budget is set.`),
    tokensThisMonth: "Tokens this month", ofQuota: (quota) => `of ${quota}`,
    quotaTitle: "Quotas", quotaAbout: "The number of resources that the project may have, and how many it has.", quotaHint: "Clear a field to restore the default.",
    resource: "Resource", used: "Used", share: "Share", quotaColumn: "Quota", quotaOf: (resource) => `Quota: ${resource}`, usedOf: (resource) => `Used: ${resource}`, unitOf: (field) => `Unit of ${field}`,
    quota: { api_keys: "API keys", conversations: "Conversations", responses: "Stored responses", agents: "Agents", files: "Files", fine_tuning_jobs: "Fine-tuning jobs", storage_bytes: "Storage" },
  },

  usage: {
    about: "Requests, tokens, images and audio of this project, as reported by the usage API.", csv: "Export CSV",
    group: "Group by", groups: { model: "Model", api_key_id: "API key", endpoint: "Endpoint" }, splits: { requests: "Status", tokens: "Type", images: "None", audio: "Type" },
    metric: "Metric", unassigned: "(none)", others: (count) => `${count} others`,
    metrics: { requests: "Requests", tokens: "Tokens", images: "Images", audio: "Audio" }, units: { requests: plural("request"), tokens: plural("token"), images: plural("image"), audio: plural("second") }, chart: (metric) => `${metric} over time`,
    outcomes: { succeeded: "Succeeded", refused: "Refused (4xx)", limited: "Rate-limited (429)", failed: "Failed (5xx)", abandoned: "Client disconnected" }, allSucceeded: "All succeeded",
    input: "Input tokens", output: "Output tokens", cached: (count) => `${count} cached`, cachedTokens: "Cached tokens", cachedInput: "Cached input", uncachedInput: "Input",
    audioInput: "Audio transcribed", audioOutput: "Speech generated", storage: "Storage", storageHint: "stored now", unsuccessful: "Unsuccessful",
    empty: (metric) => `No ${metric.toLowerCase()} in this time range`, emptyHint: "Select a longer time range, or send a request in the playground.",
  },

  devices: { cpu: "CPU", metal: "Metal" },

  live: {
    about: "Current state of the whole server. Refreshes every 2 seconds while this tab is visible.", active: "Active generations", queuedRequests: "Queued requests",
    throughput: "Token throughput", perSecond: "tokens/s", generatedTokens: "Generated tokens", sinceStart: "since server start", queuedImages: "Queued images", transcriptions: "Transcriptions", queuedSpeech: "Queued speech", embeddingQueue: "Embedding queue", tokens: "tokens",
    memory: (device) => `Model memory (${device})`, used: "Total used", of: (used, total) => `${used} of ${total}`, chart: "Generated tokens per second",
    memoryUse: { weights: "Weights", scratch: "Scratch buffers", kv_held: "KV cache in use", kv_cached: "Prompt cache" },
    byModel: "By model", activeColumn: "Active", queuedColumn: "Queued", noModels: "No model has been used since the server started.", model: "Model", promptTokens: "Prompt tokens", cachedTokens: "Cached tokens", images: "Images", audio: "Audio", loaded: "Loaded",
    uptime: (time) => `Up for ${time}`, kernels: (name) => `${name} kernels`, threads: (count) => `${count} compute ${count === "1" ? "thread" : "threads"}`, version: (version) => `Outpost ${version}`,
    timeToFirstToken: "Time to first token", milliseconds: (value) => `${value} ms`,
  },

  models: {
    about: "Models installed on this server.", empty: "No models installed", emptyHint: "Add a model to the models folder, or run this command on the server:",
    pullCommand: "Pull command", capabilities: "Capabilities", format: "Format", parameters: (count) => `${count} params`, size: "Size", error: "Error", loaded: "Loaded", notLoaded: "Not loaded", pinned: "Pinned", aliasOf: (model) => `Alias of ${model}`,
    try: "Try", baseModel: "Base model", tuned: "Trained models", tunedAbout: "Adapters that fine-tuning jobs of your key’s project have trained.", license: "License", load: "Load", unload: "Unload", loading: "Loading…", unloading: "Unloading…", catalog: "Available from the catalog", catalogAbout: "Run a command on the server to install a model. It is served within a second.", allInstalled: "All models of the catalog are installed.",
    capability: { chat_completions: "Chat", completions: "Text completion", embeddings: "Embeddings", reranking: "Reranking", moderation: "Moderation", image_generation: "Images", transcription: "Speech to text", speech: "Text to speech" },
    limits: "Limits", context: (tokens) => `${tokens}-token context`, dimensions: (count) => `${count} dimensions`, sizes: (sizes) => `${sizes} pixels`,
  },

  audit: {
    about: "Every change, with its time and the API key that made it.", csv: "Export CSV", allProjects: "All projects", action: "Action", actor: "API key", target: "Target", details: "Details",
    anyAction: "Any action", anyKey: "Any key", anyTarget: "Any target", view: "View", event: "Event",
    server: "Server", empty: "No matching events", emptyHint: "Remove a filter, or select a longer time range.",
  },

  code: { title: "Request code", about: "Set the environment variable OUTPOST_KEY to your API key.", language: "Language" },

  playground: {
    about: "Send requests to the models of this server.", kinds: { chat: "Chat", images: "Images", embeddings: "Embeddings", transcription: "Speech to text", speech: "Text to speech" }, kind: "Mode", viewCode: "View code",
    model: "Model", noModel: (capability) => `No installed model supports ${capability}`, noModelHint: "See which models you can install.", pullHint: "To install one, run this command on the server:",
    capability: { chat: "chat", images: "image generation", embeddings: "embeddings", transcription: "speech to text", speech: "text to speech" },
  },
  chat: {
    send: "Send", stop: "Stop", clear: "Clear chat", message: "Message", messagePlaceholder: "Ask the model something", placeholder: "Hello!", messageHint: "Enter sends, Shift+Enter starts a new line.",
    changed: "The conversation has changed. Reload it.", regenerate: "Regenerate", copyResponse: "Copy response", toEnd: "Jump to the end", reasoning: "Reasoning", thinking: "Reasoning…", table: "Table", codeBlock: (language) => (language ? `Code: ${language}` : "Code"), empty: "Start a chat",
    emptyHint: "The response appears as it is generated. Nothing is stored unless you select a conversation.",
    settings: "Settings", agent: "Agent", noAgent: "None", agentModel: "Agent’s model", conversation: "Conversation", noConversation: "Don’t save", newConversation: "New conversation", system: "System prompt",
    temperature: "Temperature", top_p: "Top P", max_completion_tokens: "Max tokens", seed: "Seed",
    placeholders: { temperature: "Default", top_p: "Default", max_completion_tokens: "No limit", seed: "Random" }, systemExample: "You are a helpful assistant.", noTools: "[]",
    format: "Response format", formats: { text: "Text", json_object: "JSON object", json_schema: "JSON schema" }, schema: "JSON schema", tools: "Tools",
    tool_choice: "Tool choice", toolChoices: { auto: "Auto", required: "Required", none: "None" },
    roles: { user: "User", assistant: "Assistant", system: "System", developer: "Developer", tool: "Tool" }, toolCall: (name) => `Tool call: ${name}`, toolResult: (name) => `Result of ${name}`, submitResults: "Submit results",
    tokens: (input, output) => `${input} input, ${output} output tokens`, cached: (count) => `${count} cached`, speed: (rate) => `${rate} tokens/s`, maxTokensReached: "max tokens reached", stopped: "stopped",
    log: "Chat",
    compareWith: "Compare with", noComparison: "None", comparisonModel: (position) => `Model ${position}`, baseModel: "Base model", fineTuned: "Fine-tuned",
    emptyComparison: "Compare two models", emptyComparisonHint: "Both models get each message with the same settings and the same seed. Nothing is stored.", comparisonPlaceholder: "Ask both models something",
  },
  images: {
    prompt: "Prompt", promptExample: "a red apple", negativeExample: "blurry, dark", negativePrompt: "Negative prompt", size: "Size", steps: "Steps", guidance: "Guidance", seed: "Seed", scheduler: "Scheduler", count: "Images", modelDefault: "Default", randomSeed: "Random",
    generate: "Generate", stop: "Stop", step: (step, steps) => `Step ${step} of ${steps}`, queued: "Queued…", progress: "Generation progress",
    reuseSeed: "Reuse seed", download: "Download", alt: (prompt) => `Generated image: ${prompt}`, gallery: "Gallery", empty: "No images yet",
    emptyHint: "Enter a prompt, then select Generate. The same seed and settings produce the same image.",
    seedOf: (seed) => `Seed ${seed}`,
  },
  embeddings: {
    texts: "Input texts", textsHint: "One per line, 2 to 16 texts.", compare: "Compare", dimensions: "Dimensions", default: "Default", matrix: "Similarity matrix", cosine: "Cosine similarity: 1 means identical, 0 means unrelated.",
    summary: (count, size) => `${count} vectors with ${size} dimensions.`, example: "The cat sleeps on the sofa.\nA kitten naps on the couch.\nThe train leaves at noon.\nWhen does the railway depart?",
  },
  transcription: {
    choose: "Drop an audio file here, or choose one", formats: "MP3, M4A, WAV, FLAC, Ogg, WebM and others. The sound of videos is used, too.", chosen: (name, size) => `${name} · ${size}`,
    record: "Record", stopRecording: "Stop recording", recorded: "Recorded time", level: "Sound level",
    noMicrophone: "Browsers allow the microphone only over HTTPS or on localhost.",
    microphoneErrors: {
      NotAllowedError: "The browser does not allow the microphone. Allow it in the settings of this site, then try again.",
      NotFoundError: "No microphone was found. Connect one, or choose a file.", NotReadableError: "The microphone cannot be used. Another program may be using it.",
    },
    task: "Task", taskNames: { transcriptions: "Transcribe", translations: "Translate to English" }, tasks: { transcriptions: "Transcribe", translations: "Translate" }, stop: "Stop",
    language: "Spoken language", detect: "Detect", prompt: "Prompt", promptHint: "Text that precedes the audio. It sets the style and the spelling of names.", promptExample: "Outpost, redb, Kokoro",
    empty: "No audio yet", emptyHint: "Record something or choose a file, then select Transcribe. Nothing is stored.", result: "Transcript", player: (name) => `Player: ${name}`,
    running: (position) => `Transcribing… ${position}`, finished: (audio, took, language) => `${audio} of audio in ${took}. Language: ${language}`, noSpeech: "No speech was found.", playFrom: "Play from",
    unplayable: "The browser cannot play this file. It can still be transcribed.", downloads: "Downloads", download: (ending) => `Download ${ending.toUpperCase()}`, copyText: "Copy text",
  },
  speech: {
    input: "Text", example: "Hello! This voice was generated on your own server.", speak: "Speak", stop: "Stop", voice: "Voice", otherVoices: "Not available", voiceHint: "Voices whose language is not supported cannot be selected.",
    speed: "Speed", format: "Format", running: "Generating speech…", finished: (first, took) => `First sound after ${first}, complete after ${took}`, result: "Speech", player: "Player: generated speech", download: "Download",
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
    about: "Training files, and jobs that train LoRA adapters of chat models with them.", uploadFile: "Upload file", files: "Files", noFiles: "No files yet",
    noFilesHint: "Upload a JSON Lines file with lines such as {\"messages\": […]}, {\"prompt\": …, \"completion\": …}, {\"text\": …}, or for preferences {\"input\": …, \"preferred_output\": …, \"non_preferred_output\": …}.",
    file: "File", fileHint: "JSON Lines. Each line is validated during the upload.", examples: "Examples", format: "Format", size: "Size", upload: "Upload", uploading: "Uploading…",
    formats: { messages: "Messages", prompt_completion: "Prompt and completion", text: "Text", preference: "Preferences" },
    deleteTitle: (name) => `Delete ${name}?`, deleteAbout: "Jobs that used this file keep their results. This cannot be undone.",
    jobs: "Jobs", startJob: "Start job", start: "Start", noJobs: "No jobs yet", noJobsHint: "Upload a training file, then start a job.", job: "Job", editJob: "Edit job", details: "Details",
    method: "Method", methods: { supervised: "Supervised", dpo: "Preferences (DPO)" },
    methodHints: { supervised: "The model learns the responses of the examples.", dpo: "The model learns which of two responses is preferred. Each line of the files has both." },
    model: "Model", noModels: "No installed chat model can be trained.", baseModel: "Base model", training: "Training file", validation: "Validation file", validationHint: "The loss on it is measured, but the model does not learn it.", noValidation: "None",
    fileOption: (name, format, examples, count) => `${name} · ${format} · ${examples} ${plural("example")(count)}`, suffix: "Model name suffix", suffixHint: "Part of the name of the trained model.", seed: "Seed", randomSeed: "Random",
    advanced: "Advanced", advancedHint: "The server chooses what you leave empty.", auto: "Auto", yes: "Yes", no: "No",
    hyperparameters: "Hyperparameters", hyperparameter: {
      n_epochs: "Epochs", batch_size: "Batch size", learning_rate_multiplier: "Learning rate multiplier", beta: "Beta", lora_rank: "LoRA rank", lora_alpha: "LoRA alpha", lora_dropout: "LoRA dropout",
      max_length: "Max tokens per example", target_modules: "Target modules", packing: "Packing",
    },
    hyperparameterHints: {
      n_epochs: "Passes over the file.", batch_size: "Examples per step.", learning_rate_multiplier: "1 is the usual rate.", beta: "How close it stays to the base model.", lora_rank: "Size of the adapter.", lora_alpha: "Scale of the adapter.",
      lora_dropout: "From 0 to below 1.", max_length: "Longer examples are an error.", target_modules: "Comma-separated names, such as q_proj, v_proj. Empty: all linear layers.", packing: "Several short examples in one row of a batch.",
    },
    progress: "Progress", progressOf: (step, steps) => `${step} of ${steps}`, stepOf: (step, steps) => `Step ${step} of ${steps}`, progressLabel: (step, steps) => `Progress: step ${step} of ${steps}`,
    step: "Step", of: (count) => `of ${count}`, epoch: "Epoch", accuracy: { supervised: "Token accuracy", dpo: "Preference accuracy" }, accuracyHint: { supervised: "tokens predicted", dpo: "pairs ranked correctly" }, validationAccuracy: (share) => `validation: ${share}`,
    speed: "Training speed", perSecond: "tokens/s", timeLeft: "Time left", trainedTokens: "Trained tokens", finished: "Finished",
    loss: "Loss", trainingLoss: "Training loss", validationLoss: "Validation loss", noLoss: "The loss curve appears when the job reports its first values.", noLossRecorded: "The job has not reported any values.", stepNumber: (step) => `Step ${step}`, valuesByStep: "Values by step",
    learningRate: "Learning rate", gradientNorm: "Gradient norm",
    pause: "Pause", resume: "Resume", cancelJob: "Cancel job", keepJob: "Keep job", cancelTitle: "Cancel this job?", cancelAbout: "The training stops and cannot be resumed. Checkpoints that exist are kept. To continue later, pause the job instead.",
    fineTunedModel: "Fine-tuned model", none: "None", noneYet: "None yet", deleted: "deleted", errorCode: "Error code",
    checkpoints: "Checkpoints", noCheckpoints: "A checkpoint is created at the end of each epoch. The last three are kept.", compare: "Compare", compareWithBase: "Compare with base model",
    otherProject: "Only keys of the job’s own project can call and delete its models.",
    deleteModel: "Delete model", deleteModelTitle: (name) => `Delete ${name}?`, deleteModelAbout: "Requests that name this model will fail. A final model and the checkpoint of its last step are deleted together. This cannot be undone.",
    events: "Events", level: "Level", message: "Message", noEvents: "No events yet.", levels: { info: "Info", warn: "Warning", error: "Error" },
    states: { queued: "Queued", running: "Running", paused: "Paused", succeeded: "Succeeded", failed: "Failed", cancelled: "Cancelled" },
  },
};
