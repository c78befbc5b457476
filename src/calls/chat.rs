//! A chat completion, from a typed request to a ticket of pieces.

use std::sync::Arc;

use super::demand::{CallIds, Called, Demand, add};
use super::fit::Room;
use super::forms::Forms;
use super::keep::Keeping;
use super::models::{MEMORY_FREED, refuse_load, refuse_stopped, unusable};
use super::preparing::Preparing;
use super::recall::{Recall, Recalling};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::engine::{
    Ending, Engine, Failure, Generation, KvType, Message, Piece, Pieces, PromptError, Refused, Sampling, TextModel,
    TokenInfo, TooLarge,
};
use crate::error::{Code, Error, Result};
use crate::ids::CompletionId;
use crate::service::access::Access;
use crate::service::conversations::Conversation;
use crate::service::usage::{Outcome, Receipt};

/// What helps where a conversation is too long.
const TRUNCATE: &str = " Or send truncation: \"auto\", which leaves out the oldest turns of the conversation.";

/// Runs chat completions.
pub struct Chat {
    engine: Engine,
    clock_rng: Arc<dyn ClockRng>,
    preparing: Preparing,
    forms: Forms,
    recall: Recall,
}

/// What a caller asks for; `http` has checked the form of each field.
pub struct ChatCall {
    /// Absent: the agent's.
    pub model: Option<String>,
    pub messages: Vec<Message>,
    /// The agent and the conversation that the chat goes on with.
    pub recalling: Recalling,
    /// What the answer must be like, and what it may call.
    pub demand: Demand,
    /// Answers wanted for the one prompt.
    pub choices: u32,
    /// Most tokens an answer may have; `None` is what the context leaves, and the name of the
    /// field that set it, for messages.
    pub max_tokens: Option<(u32, &'static str)>,
    pub sampling: Sampling,
    /// Seed of the draw; `None` takes a fresh one.
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    /// How many alternatives to report at each token.
    pub logprobs: Option<u8>,
}

/// An answer that is being generated. Dropping it cancels the work.
pub struct Running {
    pub id: CompletionId,
    pub created: Timestamp,
    pub model: String,
    pub prompt_tokens: u32,
    /// Of those, so many were computed for an earlier prompt.
    cached_tokens: u32,
    pub choices: u32,
    /// Whether log-probabilities were asked for.
    pub logprobs: bool,
    /// How many messages of the conversation were left out; `None` where none may be.
    pub truncated: Option<usize>,
    /// Whether the answer may have calls.
    pub may_call: bool,
    pub call_ids: CallIds,
    pieces: Pieces,
    keeping: Keeping,
    generated: Vec<u32>,
    bill: Arc<Receipt>,
}

/// Tokens that a call used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub completion_tokens: u32,
}

/// One whole answer.
#[derive(Default)]
pub struct Choice {
    pub text: String,
    pub calls: Vec<Called>,
    pub tokens: Vec<TokenInfo>,
    pub ending: Option<Ending>,
}

impl Chat {
    pub fn new(engine: Engine, clock_rng: Arc<dyn ClockRng>, recall: Recall) -> Self {
        Self { engine, clock_rng, preparing: Preparing::new(), forms: Forms::new(), recall }
    }

    /// Resolves agent, conversation and model, renders the prompt and hands it to the engine.
    /// Refuses at once when the key may not, the prompt does not fit, or the queue is full. What
    /// is used goes on `bill`.
    pub async fn start(&self, access: &Access, mut call: ChatCall, bill: Arc<Receipt>) -> Result<Running> {
        let mut recalled = self.recall.load(access, call.model.take(), &mut call.recalling).await?;
        let tools_bytes = call.demand.tools.as_ref().or(recalled.tools.as_ref()).map_or(0, String::len);
        let demanded = call.demand.resolve(recalled.tools.take())?;
        let name = recalled.model.clone();
        access.require_model(&name)?;
        let tenant = u128::from_be_bytes(access.project().to_bytes());
        if let Some(model) = self.engine.models().loaded_model(&name) {
            bill.model(model.id());
            self.engine.check_queue(&model, tenant).map_err(|refused| refuse(model.id(), refused))?;
            check_estimate(&self.engine, &model, &call.messages, &bill)?;
        }
        let call_ids = CallIds::new(&*self.clock_rng);
        let keeping = self.recall.keeping(access, recalled.conversation(), call.recalling.sent, call_ids);
        let (engine, id, messages) = (self.engine.clone(), name.clone(), call.messages);
        let (wanted, tools) = (call.max_tokens.map(|(count, _)| count), Arc::clone(&demanded.shape.tools));
        let messages_bytes: usize = messages.iter().map(|message| message.content.len()).sum();
        let bytes = recalled.bytes() + messages_bytes + tools_bytes;
        let prepared = self.preparing.run(access.project(), bytes, move |bound| {
            let model = engine.models().load(&id).map_err(|error| refuse_load(&id, &error))?;
            let window = engine.positions(&model);
            let room = Room { window, wanted, bound: bound.with_most(window as usize) };
            let fitted = recalled.prompt(&model, messages, tools, room)?;
            Ok((model, fitted))
        });
        let (model, fitted) = prepared.await?;
        bill.model(model.id());
        check_bias(&call.sampling, &model)?;
        let prompt_tokens = u32::try_from(fitted.prompt.ids.len()).unwrap_or(u32::MAX);
        let remedy = if keeping.is_idle() || fitted.dropped.is_some() { "" } else { TRUNCATE };
        let count = Count { tokens: prompt_tokens, exact: fitted.prompt.complete };
        let max_tokens = room(&self.engine, &model, count, call.max_tokens, remedy)?;
        let form = self.forms.form(&model, &demanded).await?;
        let mut sampling = call.sampling;
        sampling.seed = call.seed.unwrap_or_else(|| self.fresh_seed());
        let generation = Generation {
            prompt: fitted.prompt.ids,
            choices: call.choices,
            max_tokens,
            sampling,
            form,
            stop: call.stop,
            logprobs: call.logprobs,
            tenant,
        };
        bill.prompt(prompt_tokens.into())?;
        // What never ran costs nothing.
        let ticket = self.engine.submit(&model, generation).inspect_err(|_| bill.waive());
        let ticket = ticket.map_err(|refused| refuse(model.id(), refused))?;
        Ok(Running {
            id: CompletionId::generate(&*self.clock_rng),
            created: self.clock_rng.now(),
            model: name,
            prompt_tokens,
            cached_tokens: 0,
            choices: call.choices,
            logprobs: call.logprobs.is_some(),
            truncated: fitted.dropped,
            may_call: !demanded.shape.tools.is_empty(),
            call_ids,
            keeping,
            pieces: ticket.pieces,
            generated: vec![0; call.choices as usize],
            bill,
        })
    }

    fn fresh_seed(&self) -> u64 {
        let mut bytes = [0; 8];
        self.clock_rng.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

impl Running {
    /// The next piece of any choice; `None` when all have ended. The last one comes when the turn is
    /// in its conversation. May be dropped and called again.
    pub async fn next(&mut self) -> Option<Result<Piece>> {
        if !self.keeping.is_closing() {
            let passed = self.receive().await?.map(|piece| self.keeping.pass(piece)).transpose();
            if passed.is_some() {
                return passed;
            }
        }
        self.keeping.close().await
    }

    /// The conversation with this turn in it, once it is.
    pub fn conversation(&self) -> Option<&Conversation> {
        self.keeping.kept()
    }

    async fn receive(&mut self) -> Option<Result<Piece>> {
        let piece = self.pieces.recv().await?;
        Some(piece.map_err(fail).inspect(|piece| self.count(piece)))
    }

    /// Puts on the bill what a piece tells.
    fn count(&mut self, piece: &Piece) {
        if let Some(generated) = self.generated.get_mut(piece.choice as usize) {
            *generated = piece.generated;
        }
        self.cached_tokens = piece.cached;
        self.bill.cached(piece.cached.into());
        self.bill.output(self.usage().completion_tokens.into());
    }

    /// Puts what was used on the disk; before the last byte of a stream. Whole answers are closed
    /// by whoever sends them.
    pub async fn close(&self, outcome: Outcome) -> Result<()> {
        self.bill.close(outcome).await
    }

    /// What has been used so far.
    pub fn usage(&self) -> Usage {
        let Self { prompt_tokens, cached_tokens, .. } = *self;
        Usage { prompt_tokens, cached_tokens, completion_tokens: self.generated.iter().sum() }
    }

    /// Waits for every choice to end.
    pub async fn whole(&mut self) -> Result<Vec<Choice>> {
        let mut choices: Vec<Choice> = (0..self.choices).map(|_| Choice::default()).collect();
        while let Some(piece) = self.next().await {
            let piece = piece?;
            let Some(choice) = choices.get_mut(piece.choice as usize) else { continue };
            choice.text.push_str(&piece.text);
            add(&mut choice.calls, &piece.calls);
            choice.tokens.extend(piece.tokens);
            choice.ending = piece.end.or(choice.ending);
        }
        match choices.iter().all(|choice| choice.ending.is_some()) {
            true => Ok(choices),
            false => Err(Error::internal("the engine closed a ticket before its end")),
        }
    }
}

impl Drop for Running {
    /// A client that left is billed for what was made, received or not.
    fn drop(&mut self) {
        let left: Vec<Piece> = self.pieces.leave().collect();
        left.iter().for_each(|piece| self.count(piece));
    }
}

/// How many tokens may be generated: what was asked for, if prompt and answer fit together into the
/// model's context, and into the memory for their keys and values.
fn room(
    engine: &Engine,
    model: &TextModel,
    count: Count,
    asked: Option<(u32, &'static str)>,
    remedy: &str,
) -> Result<u32> {
    let prompt = count.tokens;
    let left = engine.positions(model).saturating_sub(prompt);
    let (wanted, field) = asked.unwrap_or((left.max(1), "messages"));
    if wanted <= left {
        return Ok(wanted);
    }
    let (all, window) = (u64::from(prompt) + u64::from(wanted), model.context_window());
    let param = if left == 0 { "messages" } else { field };
    if all <= u64::from(window) {
        engine.fits(model, all).map_err(|large| too_large(&large, param, remedy))?;
    }
    let id = model.id();
    let counts = match count.exact {
        true => {
            format!("The prompt has {prompt} tokens and {wanted} more were requested for the answer, {all} in all.")
        }
        false => format!("The prompt has at least {prompt} tokens."),
    };
    let message = format!(
        "The model '{id}' has a context of {window} tokens. {counts} Shorten the messages or lower max_completion_tokens.{remedy}"
    );
    Err(Error::new(Code::ContextLengthExceeded, message).param(param))
}

/// Tokens of a prompt, or the least that it can have.
#[derive(Clone, Copy)]
struct Count {
    tokens: u32,
    exact: bool,
}

/// Refuses by the length of the messages alone what cannot fit or what the project may not use now, before any of it
/// is rendered.
fn check_estimate(engine: &Engine, model: &TextModel, messages: &[Message], bill: &Receipt) -> Result<()> {
    let fewest = model.fewest_tokens(messages);
    if fewest > u64::from(engine.positions(model)) {
        let tokens = u32::try_from(fewest).unwrap_or(u32::MAX);
        room(engine, model, Count { tokens, exact: false }, None, "")?;
    }
    if fewest > 0 { bill.check(fewest) } else { Ok(()) }
}

/// What a caller is told of a request whose keys and values have no room, however long he waits.
fn too_large(large: &TooLarge, param: &'static str, remedy: &str) -> Error {
    let smaller = if large.kv_type == KvType::Q8 { "" } else { " or with --kv-type q8" };
    let message = format!(
        "The request is too large for the server: {large}. Shorten the messages or lower max_completion_tokens, or start the server with a larger --memory{smaller}.{remedy}"
    );
    Error::new(Code::ContextLengthExceeded, message).param(param)
}

fn check_bias(sampling: &Sampling, model: &TextModel) -> Result<()> {
    match sampling.logit_bias.iter().find(|(id, _)| *id as usize >= model.vocabulary()) {
        None => Ok(()),
        Some((id, _)) => {
            let message = format!(
                "logit_bias names the token {id}, but the model '{}' has tokens 0 to {}.",
                model.id(),
                model.vocabulary() - 1
            );
            Err(Error::invalid(format!("logit_bias.{id}"), message))
        }
    }
}

pub(super) fn refuse_prompt(id: &str, error: PromptError) -> Error {
    match error {
        PromptError::Stopped(stopped) => refuse_stopped(id, &stopped),
        error => Error::invalid("messages", format!("The model's chat template refused the messages: {error}")),
    }
}

/// `model`: its id.
pub(super) fn refuse(model: &str, refused: Refused) -> Error {
    match refused {
        Refused::QueueFull { retry_after } => {
            Error::new(Code::Overloaded, "The model's queue is full. Try again after the time in Retry-After.")
                .retry_after(retry_after)
        }
        Refused::TooLarge(large) => too_large(&large, "max_completion_tokens", ""),
        Refused::ShuttingDown => shutting_down(),
        Refused::Invalid(reason) => Error::new(Code::InvalidParameter, reason),
        Refused::Stopped(stopped) => refuse_stopped(model, &stopped),
    }
}

pub(super) fn fail(failure: Failure) -> Error {
    match failure {
        Failure::ShuttingDown => shutting_down(),
        Failure::Unread => Error::new(
            Code::RequestTimeout,
            "The answer was given up because the client did not read it. Read streams as they come.",
        ),
        Failure::Format(reason) => Error::new(
            Code::InvalidParameter,
            format!(
                "The answer broke off because the form that was demanded cannot be kept: {reason}. Make the schema simpler."
            ),
        ),
        Failure::NoMemory => Error::new(
            Code::Overloaded,
            "The memory for the answer's keys and values is held by other models in use. Try again when their answers have ended; the operator can unload a model or give the server more with --memory.",
        )
        .retry_after(MEMORY_FREED),
        Failure::Unusable { id, reason } => unusable(&id, &reason),
        Failure::Broken(reason) => Error::internal(reason),
    }
}

fn shutting_down() -> Error {
    Error::new(Code::ShuttingDown, "The server is shutting down. Try again when it is back.")
}
