//! `outpost launch`: starts a coding agent with the settings for this server.

use std::ffi::OsString;
use std::io::{Write, stderr};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::model_name::resolve_alias;
use super::output::Outcome;
use crate::app::ADMIN_KEY_FILE;
use crate::config::DataPaths;
use crate::engine::{ModelInfo, ModelKind, installed_models};
use crate::spelling;

/// The variable with the API key.
const KEY: &str = "OUTPOST_KEY";
/// Tokens of the instructions and tools that the largest of the agents sends, and room for work.
const AMPLE_CONTEXT: u32 = 32_768;
/// Tokens of a response, at most.
const MAX_OUTPUT: u32 = 8_192;
/// Agents wait this long for a response: the first prompt takes minutes on a CPU.
const TIMEOUT_MILLIS: u32 = 3_000_000;
/// Claude Code compacts a conversation by itself when less than this many tokens are left beside the response.
const COMPACTION_MARGIN: u32 = 13_000;
/// Tokens of a conversation from which on compaction helps: its instructions and tools have more than half of them.
const MIN_COMPACTED: u32 = 30_000;
/// Settings of Codex that switch off what needs OpenAI's servers (web search, plugins, apps, statistics), and tools of a
/// type that this server leaves out.
const CODEX_OFF: [&str; 6] = [
    "web_search=\"disabled\"",
    "analytics.enabled=false",
    "features.apps=false",
    "features.plugins=false",
    "features.remote_plugin=false",
    "features.multi_agent=false",
];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
pub struct LaunchArgs {
    /// The agent to start; it must be installed
    client: Client,
    /// A chat model in the models folder, or an alias of one; may be left out if there is only one
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Address of the server
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Print the settings and the command instead of starting the agent
    #[arg(long)]
    print: bool,
    /// Arguments for the agent
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// A coding agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Client {
    /// Claude Code
    Claude,
    /// Codex
    Codex,
    /// opencode
    Opencode,
    /// aider
    Aider,
}

/// How an agent is started.
#[derive(Debug, PartialEq, Eq)]
struct Launch {
    program: &'static str,
    arguments: Vec<String>,
    /// Variables to set; `None`: the API key.
    variables: Vec<(&'static str, Option<String>)>,
    /// Variables that would take precedence over those.
    removed: &'static [&'static str],
    package: &'static str,
}

pub(super) fn run(paths: &DataPaths, args: LaunchArgs, out: &mut dyn Write) -> Outcome {
    let LaunchArgs { client, model, url, print, arguments } = args;
    let model = model.map(|name| resolve_alias(&name, &paths.models));
    let model = find_model(&paths.models, model.as_deref())?;
    let launch = client.launch(url.trim_end_matches('/'), &model);
    if let Some(window) = model.context_window.filter(|window| *window < AMPLE_CONTEXT) {
        let text = format!(
            "outpost: {} has a context of {window} tokens; coding agents work best with {AMPLE_CONTEXT} or more",
            model.id
        );
        writeln!(stderr(), "{text}")?;
    }
    if print {
        return Ok(out.write_all(launch.shell(&paths.data, &arguments).as_bytes())?);
    }
    check_server(&url)?;
    let key = match std::env::var(KEY) {
        Ok(key) if !key.trim().is_empty() => key,
        _ => read_key(&paths.data.join(ADMIN_KEY_FILE))?,
    };
    let mut command = Command::new(launch.program);
    command.args(&launch.arguments).args(&arguments);
    for name in launch.removed {
        command.env_remove(name);
    }
    for (name, value) in &launch.variables {
        command.env(name, value.as_ref().unwrap_or(&key));
    }
    // Returns only if the program cannot be started.
    let cause = command.exec();
    Err(format!("{} cannot be started: {cause}. Install it with: {}", launch.program, launch.package).into())
}

/// The chat model with this name, or the only one.
fn find_model(folder: &Path, name: Option<&str>) -> Result<ModelInfo, String> {
    let is_usable =
        |model: &ModelInfo| model.kind == ModelKind::Text && model.has_chat_template && model.problem.is_none();
    let mut models: Vec<ModelInfo> = installed_models(folder).into_iter().filter(is_usable).collect();
    let names: Vec<String> = models.iter().map(|model| model.id.clone()).collect();
    let list = names.join(", ");
    match name {
        _ if models.is_empty() => {
            let folder = folder.display();
            Err(format!("{folder} has no chat model; install one with: outpost models pull starter"))
        }
        Some(name) => models.into_iter().find(|model| model.id == name).ok_or_else(|| {
            match spelling::nearest(name, names.iter().map(String::as_str)) {
                Some(near) => format!("there is no chat model '{name}'; did you mean '{near}'?"),
                None => format!("there is no chat model '{name}'; there are: {list}"),
            }
        }),
        None if models.len() == 1 => Ok(models.remove(0)),
        None => Err(format!("there are several chat models; choose one with --model: {list}")),
    }
}

fn read_key(path: &Path) -> Result<String, String> {
    let key = std::fs::read_to_string(path).map_err(|cause| {
        format!("the API key cannot be read from {}: {cause}. Set the variable {KEY}", path.display())
    })?;
    Ok(key.trim().to_owned())
}

/// Checks that something listens at the address.
fn check_server(url: &str) -> Result<(), String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or(rest);
    let host = match (host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()), url) {
        (true, _) => host.to_owned(),
        (false, url) if url.starts_with("https:") => format!("{host}:443"),
        (false, _) => format!("{host}:80"),
    };
    let failed = |cause: &dyn std::fmt::Display| {
        format!("no server answers at {url} ({cause}); start one with: outpost serve, or set --url")
    };
    let mut tried = Err(failed(&"the name has no address"));
    for address in host.to_socket_addrs().map_err(|cause| failed(&cause))? {
        tried = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map(drop).map_err(|cause| failed(&cause));
        if tried.is_ok() {
            break;
        }
    }
    tried
}

impl Client {
    fn launch(self, url: &str, model: &ModelInfo) -> Launch {
        let (id, window) = (model.id.clone(), model.context_window.unwrap_or(AMPLE_CONTEXT));
        let output = MAX_OUTPUT.min(window / 4);
        let openai = format!("{url}/openai/v1");
        let set = |name, value: String| (name, Some(value));
        match self {
            Self::Claude => {
                let mut variables = vec![
                    set("ANTHROPIC_BASE_URL", url.to_owned()),
                    ("ANTHROPIC_AUTH_TOKEN", None),
                    set("ANTHROPIC_MODEL", id.clone()),
                    set("ANTHROPIC_DEFAULT_OPUS_MODEL", id.clone()),
                    set("ANTHROPIC_DEFAULT_SONNET_MODEL", id.clone()),
                    set("ANTHROPIC_DEFAULT_HAIKU_MODEL", id.clone()),
                    set("ANTHROPIC_SMALL_FAST_MODEL", id),
                    // It assumes 200,000 tokens otherwise.
                    set("CLAUDE_CODE_MAX_CONTEXT_TOKENS", window.to_string()),
                    set("CLAUDE_CODE_MAX_OUTPUT_TOKENS", output.to_string()),
                    set("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
                    set("API_TIMEOUT_MS", TIMEOUT_MILLIS.to_string()),
                    // It gives up a stream without text after five minutes otherwise, even if the server sends pings.
                    set("CLAUDE_STREAM_IDLE_TIMEOUT_MS", TIMEOUT_MILLIS.to_string()),
                ];
                // In a smaller context, it would compact after every turn. Without the variable, it compacts when the server
                // says that the prompt is too long.
                if window.saturating_sub(output + COMPACTION_MARGIN) > MIN_COMPACTED {
                    variables.push(set("CLAUDE_CODE_AUTO_COMPACT_WINDOW", window.to_string()));
                }
                Launch {
                    program: "claude",
                    arguments: Vec::new(),
                    variables,
                    removed: &["ANTHROPIC_API_KEY", "CLAUDE_CODE_AUTO_COMPACT_WINDOW"],
                    package: "npm install -g @anthropic-ai/claude-code",
                }
            }
            Self::Codex => {
                let provider = |field: &str, value: &str| format!("model_providers.outpost.{field}={value}");
                let settings = [
                    "model_provider=\"outpost\"".to_owned(),
                    provider("name", "\"Outpost\""),
                    provider("base_url", &json!(openai).to_string()),
                    provider("env_key", &json!(KEY).to_string()),
                    provider("wire_api", "\"responses\""),
                    provider("stream_idle_timeout_ms", &TIMEOUT_MILLIS.to_string()),
                    format!("model_context_window={window}"),
                ];
                let settings = settings
                    .into_iter()
                    .chain(CODEX_OFF.map(str::to_owned))
                    .flat_map(|setting| ["-c".to_owned(), setting]);
                Launch {
                    program: "codex",
                    arguments: ["--model".to_owned(), id].into_iter().chain(settings).collect(),
                    variables: vec![(KEY, None)],
                    removed: &[],
                    package: "npm install -g @openai/codex",
                }
            }
            Self::Opencode => {
                let limits = json!({ "name": id, "limit": { "context": window, "output": output } });
                let options = json!({ "baseURL": openai, "apiKey": "{env:OUTPOST_KEY}", "timeout": TIMEOUT_MILLIS });
                let provider = json!({
                    "npm": "@ai-sdk/openai-compatible", "name": "Outpost", "options": options, "models": { &id: limits },
                });
                let name = format!("outpost/{id}");
                let config = json!({ "model": name, "small_model": name, "provider": { "outpost": provider } });
                Launch {
                    program: "opencode",
                    arguments: Vec::new(),
                    variables: vec![set("OPENCODE_CONFIG_CONTENT", config.to_string()), (KEY, None)],
                    removed: &[],
                    package: "npm install -g opencode-ai",
                }
            }
            Self::Aider => Launch {
                program: "aider",
                arguments: [
                    "--model",
                    &format!("openai/{id}"),
                    "--no-show-model-warnings",
                    "--no-analytics",
                    "--timeout",
                    "3000",
                ]
                .map(str::to_owned)
                .to_vec(),
                variables: vec![
                    set("OPENAI_API_BASE", openai),
                    ("OPENAI_API_KEY", None),
                    // It loads a list of prices otherwise.
                    set("LITELLM_LOCAL_MODEL_COST_MAP", "True".to_owned()),
                ],
                removed: &[],
                package: "pip install aider-chat",
            },
        }
    }
}

impl Launch {
    /// The settings and the command for a shell. The key stays in its file or variable.
    fn shell(&self, data: &Path, arguments: &[OsString]) -> String {
        let file = quoted(&data.join(ADMIN_KEY_FILE).to_string_lossy());
        let key = format!("\"${{{KEY}:-$(cat {file})}}\"");
        let mut lines = String::new();
        if !self.removed.is_empty() {
            lines += &format!("unset {}\n", self.removed.join(" "));
        }
        for (name, value) in &self.variables {
            let value = value.as_ref().map_or_else(|| key.clone(), |value| quoted(value));
            lines += &format!("export {name}={value}\n");
        }
        let own = self.arguments.iter().map(|argument| quoted(argument));
        let arguments = own.chain(arguments.iter().map(|argument| quoted(&argument.to_string_lossy())));
        let command: Vec<String> = std::iter::once(self.program.to_owned()).chain(arguments).collect();
        lines + &command.join(" ") + "\n"
    }
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@,+".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("http://127.0.0.1:8080/v1"), "http://127.0.0.1:8080/v1");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }
}
