//! Converts engine errors to API errors.

use std::time::Duration;

use crate::catalog::{Catalog, pull_command};
use crate::display::{one_of, shorten};
use crate::engine::{
    Engine, Failure, KvType, LoadError, ModelInfo, ModelKind, PreprocessError, PromptError, Refused, TooLarge,
};
use crate::error::{Code, Error};
use crate::service::access::Access;
use crate::service::fine_tuning::TUNED_PREFIX;
use crate::spelling;

/// Max models that an error names.
const MAX_NAMED_MODELS: usize = 3;

/// Retry delay after a lack of memory: by then other models' generations may have ended, or an operator may have
/// unloaded a model.
pub(super) const MEMORY_FREED: Duration = Duration::from_secs(30);

/// Max attempts of background work while its model is unavailable, which it may be for good.
const MAX_MODEL_ATTEMPTS: u32 = 5;

/// True if background work should be tried again after an error. `model_attempts`: earlier attempts that found its
/// model unavailable.
pub(super) fn is_temporary(error: &Error, model_attempts: u32) -> bool {
    match error.code() {
        Code::RateLimited => true,
        code if code.is_failed_write() => true,
        Code::ModelUnavailable => model_attempts + 1 < MAX_MODEL_ATTEMPTS,
        _ => false,
    }
}

/// The error for a request that can never fit into the KV cache. `shorten`: what to do, such as `Shorten the prompt`.
pub(super) fn too_large(large: &TooLarge, param: &str, shorten: &str, remedy: &str) -> Error {
    let smaller = if large.kv_type == KvType::Q8 { "" } else { " or with --kv-type q8" };
    let message = format!(
        "The request is too large for the server: {large}. {shorten}, or start the server with a larger --memory{smaller}.{remedy}"
    );
    Error::new(Code::ContextLengthExceeded, message).param(param)
}

pub(super) fn from_prompt_error(id: &str, error: PromptError) -> Error {
    match error {
        PromptError::PreprocessError(stopped) => from_stopped(id, &stopped),
        PromptError::NoTemplate => {
            let text = format!(
                "The model '{id}' has no chat template: it is a base model, which continues texts and does not answer. Send the text to POST /completions, or use a chat model."
            );
            Error::invalid("model", text)
        }
        PromptError::Refused(reason) => {
            let reason = reason.trim_end_matches('.');
            Error::invalid("messages", format!("The model's chat template rejects these messages: {reason}."))
        }
        PromptError::Arguments(call) => {
            let call = shorten(&call);
            let message = format!(
                "The arguments of the tool call '{call}' are not a JSON object, and the chat template of the model '{id}' accepts only objects. Send 'messages[…].tool_calls[…].function.arguments' as the JSON text of an object."
            );
            Error::invalid("messages", message)
        }
        PromptError::Unsupported(reason) => {
            let reason = shorten(&reason);
            let message = format!(
                "The chat template of the model '{id}' needs something that this server does not have: {reason}. Use another model, or correct the template in the model's files."
            );
            Error::invalid("model", message)
        }
        PromptError::Broken(cause) => {
            let message = format!(
                "The chat template of the model '{id}' fails on these messages: {}. Send messages that it supports, or use another model.",
                shorten(&cause)
            );
            Error::invalid("messages", message).with_cause(cause)
        }
    }
}

/// `model`: the model's id.
pub(super) fn from_refused(model: &str, refused: Refused) -> Error {
    match refused {
        Refused::QueueFull { retry_after } => {
            Error::new(Code::Overloaded, "The model's queue is full. Try again after the time in Retry-After.")
                .retry_after(retry_after)
        }
        Refused::TooLarge(large) => too_large(&large, "max_tokens", "Shorten the prompt or lower max_tokens", ""),
        Refused::ShuttingDown => shutting_down(),
        Refused::Invalid(reason) => Error::new(Code::InvalidParameter, reason),
        Refused::Preprocess(stopped) => from_stopped(model, &stopped),
    }
}

pub(super) fn from_failure(failure: Failure) -> Error {
    match failure {
        Failure::ShuttingDown => shutting_down(),
        Failure::ClientStalled => Error::new(
            Code::RequestTimeout,
            "Generation was cancelled because the client did not read the response. Read streams as they arrive.",
        ),
        Failure::Grammar(reason) => Error::new(
            Code::InvalidParameter,
            format!(
                "Generation stopped because the requested schema could not be satisfied: {reason}. Simplify the schema."
            ),
        ),
        Failure::NoToken => Error::new(
            Code::InvalidParameter,
            "Generation stopped because the request bans every token that could come next. Ban fewer tokens with 'bad_words', 'logit_bias' and 'min_tokens', or allow more with 'allowed_token_ids' and the output format.",
        ),
        Failure::OutOfMemory => Error::new(
            Code::Overloaded,
            "The memory for the KV cache is in use by other models. Try again when their requests have ended; the operator can unload a model or give the server more memory with --memory.",
        )
        .retry_after(MEMORY_FREED),
        Failure::ModelUnusable { id, reason } => model_unusable(&id, &reason),
        Failure::Device { id, reason } => Error::new(
            Code::Overloaded,
            format!(
                "The model '{id}' could not be computed: {reason}. Try again; if it fails again, the operator can restart the server, or start it with --device '{id}=cpu'."
            ),
        )
        .retry_after(MEMORY_FREED),
        Failure::Internal(reason) => Error::internal(reason),
    }
}

fn shutting_down() -> Error {
    Error::new(Code::ShuttingDown, "The server is shutting down. Try again when it is back.")
}

/// Turns errors about the models that a request names into API errors, which name a model that would do.
pub(super) struct ModelErrors<'a> {
    pub engine: &'a Engine,
    /// Only models that it may use are named.
    pub access: &'a Access,
}

impl ModelErrors<'_> {
    /// Blocks while the models folder is read.
    pub fn not_found(&self, id: &str) -> Error {
        if id.starts_with(TUNED_PREFIX) {
            let text =
                format!("Your project has no model '{}'. GET /v1/models lists the models that it has.", shorten(id));
            return Error::new(Code::ModelNotFound, text).param("model");
        }
        let installed = self.installed();
        let meant = spelling::nearest(id, installed.iter().map(|model| model.id.as_str()));
        let hint = match meant {
            _ if Catalog::builtin().find(id).is_some() => format!("'{}' installs it.", self.pull_command(id)),
            Some(meant) => format!("Did you mean '{meant}'?"),
            None => "GET /v1/models lists the installed models; 'outpost models pull' downloads more.".to_owned(),
        };
        let settings = self.engine.models().model_settings();
        let visible = settings.aliases_of(id).filter(|_| self.access.lists(id)).take(MAX_NAMED_MODELS);
        let aliases: Vec<String> = visible.map(|alias| format!("'{}'", shorten(alias))).collect();
        let id = shorten(id);
        let text = match aliases.as_slice() {
            [] => format!("No model '{id}' is installed. {hint}"),
            aliases => {
                let aliases = aliases.join(" and ");
                format!("No model '{id}' is installed, for which {aliases} stands in the settings of models. {hint}")
            }
        };
        Error::new(Code::ModelNotFound, text).param("model")
    }

    /// The error for a model that could not be loaded. Blocks while the models folder is read.
    pub fn load_failed(&self, id: &str, error: &LoadError) -> Error {
        let no_memory = |remedy: &str| model_unavailable(format!("The model '{id}' cannot be used: {error}.{remedy}"));
        match error {
            LoadError::NotFound => self.not_found(id),
            LoadError::WrongKind { architecture, expected, .. } => self.wrong_kind(id, architecture, *expected),
            LoadError::Unusable { reason, .. } => model_unusable(id, reason),
            LoadError::Upstream { .. } => not_local(id),
            LoadError::OutOfMemory { pinned, .. } => {
                let again = " Try again when their requests have ended, or give the server more memory with --memory.";
                no_memory(&format!("{again}{}", self.pinned(pinned)))
            }
            LoadError::TooLarge { .. } => {
                no_memory(" Give the server more memory with --memory, or use a smaller model.")
            }
        }
    }

    /// The note that pinned models take memory, if there are any.
    fn pinned(&self, models: &[String]) -> String {
        let visible = models.iter().filter(|id| self.access.lists(id)).take(MAX_NAMED_MODELS);
        let names: Vec<String> = visible.map(|id| format!("'{id}'")).collect();
        match names.as_slice() {
            [] => String::new(),
            [name] => format!(" The model {name} is pinned, so it stays loaded."),
            names => format!(" The models {} are pinned, so they stay loaded.", names.join(" and ")),
        }
    }

    fn wrong_kind(&self, id: &str, architecture: &str, expected: ModelKind) -> Error {
        let installed = self.installed();
        let kind = installed.iter().find(|model| model.id == id).map(|model| model.kind);
        let is = match kind {
            None | Some(ModelKind::Unknown) => format!("has the architecture {architecture}"),
            Some(kind) => format!("is {}", described(kind)),
        };
        let usable = |model: &&ModelInfo| model.kind == expected && model.problem.is_none();
        let names: Vec<String> =
            installed.iter().filter(usable).map(|model| format!("'{}'", model.id)).take(MAX_NAMED_MODELS).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let remedy = match (names.as_slice(), Catalog::builtin().first_of(expected)) {
            ([], Some(model)) => format!("'{}' installs one.", self.pull_command(&model.name)),
            ([], None) => "'outpost models import' installs one from a file.".to_owned(),
            (names, _) => format!("Send {} instead.", one_of(names)),
        };
        let needed = described(expected);
        Error::invalid("model", format!("The model '{id}' {is}, but this request needs {needed}. {remedy}"))
    }

    fn pull_command(&self, name: &str) -> String {
        let folder = self.access.is_admin().then(|| self.engine.models().folder());
        pull_command(name, folder.as_deref())
    }

    fn installed(&self) -> Vec<ModelInfo> {
        let mut models = self.engine.models().list();
        models.retain(|model| self.access.lists(&model.id));
        models.sort_by(|a, b| a.id.cmp(&b.id));
        models
    }
}

/// The kind with its article: `an image model`.
fn described(kind: ModelKind) -> String {
    let name = kind.name();
    let article = if name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {name} model")
}

/// The error for work on an upstream model that only this server can do.
pub(super) fn not_local(id: &str) -> Error {
    let text = format!("The model '{id}' runs on another server. This request needs a model that runs on this one.");
    Error::invalid("model", text)
}

/// The error for a tokenizer or chat template that failed or was stopped.
pub(super) fn from_stopped(id: &str, stopped: &PreprocessError) -> Error {
    match stopped {
        PreprocessError::NotStarted(reason) => model_unavailable(format!(
            "The server cannot start the process that prepares requests to the model '{id}': {reason}. Try again later; the operator can free memory or processes."
        )),
        PreprocessError::NotRead(seconds) => model_unavailable(format!(
            "The process that prepares requests to the model '{id}' did not take this request within {seconds} seconds. It is replaced by a new one. Try again."
        )),
        _ => model_unusable(id, &format!("its tokenizer or its chat template fails on this request: {stopped}")),
    }
}

/// The error for a model whose files are damaged or not supported.
pub(super) fn model_unusable(id: &str, reason: &str) -> Error {
    let reason = reason.trim_end_matches('.');
    let message = format!(
        "The model '{id}' cannot be used: {reason}. Its files are damaged or not supported; the operator can replace them."
    );
    model_unavailable(message)
}

fn model_unavailable(message: String) -> Error {
    Error::new(Code::ModelUnavailable, message).param("model").retry_after(MEMORY_FREED)
}
