// The strings of the dialog that installs models. They are loaded with it.

export const s = {
  install: "Install a model", off: "The server was started without --allow-pull.",
  model: "Model", hint: "A name from the catalog, hf:USER/REPO[:QUANT], ollama:NAME, oci:HOST/REPOSITORY or https://…", placeholder: "hf:unsloth/Qwen3.5-4B-GGUF",
  look: "Look up", looking: "Looking up…",
  license: "License", unknown: "Not stated", gated: "Must be accepted on the hub first.", kind: "Model type", context: (tokens) => `${tokens}-token context`,
  parameters: (count) => `${count} params`, disk: "Disk", free: (size) => `· ${size} free`, memory: "Memory", of: (part, whole) => `${part} of ${whole}`, later: "Known after the download",
  files: "Files", file: "File", size: "Size", fits: "Fits", tooLarge: "Does not fit", unsupported: "Not supported", installAs: "Name", nameHint: "The name under which programs call the model.",
  replace: "Replace the installed model of that name", force: "Install it although it does not fit into memory",
  start: "Install", stop: "Cancel the installation", background: "Close", goesOn: "The installation goes on if you close this dialog or leave the page.",
  states: { queued: "Waiting for another installation…", resolving: "Reading the list of files…", downloading: "Downloading", verifying: "Verifying", installing: "Installing…", succeeded: "Installed", failed: "Failed", cancelled: "Cancelled" },
  progress: "Progress", speed: (size) => `${size}/s`, left: (time) => `${time} left`, installed: (name) => `${name} is installed and can be used now.`, running: (name) => `Installing ${name}`, show: "Show",
};
