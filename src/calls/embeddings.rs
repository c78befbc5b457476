//! Vectors of texts, from a typed request to numbers.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::chat::{fail, overloaded, refuse};
use super::models::{blocking, refuse_load};
use crate::ambient::Ambient;
use crate::engine::{EncoderModel, Engine, InputType, Kind, Matryoshka, Tokenized, shorten};
use crate::error::{Code, Error, Result};
use crate::ids::EmbeddingId;
use crate::service::access::Access;
use crate::service::usage::Receipt;

/// Requests whose texts may be tokenised at once; more are refused, not piled up.
const PREPARING: usize = 64;

/// Runs embeddings, and what else encoders are for.
pub struct Embeddings {
    pub(super) engine: Engine,
    pub(super) ambient: Arc<dyn Ambient>,
    preparing: Arc<Semaphore>,
}

/// What a caller asks for; `http` has checked the form of each field.
pub struct EmbeddingCall {
    pub model: String,
    pub inputs: Vec<Input>,
    /// Whether `input` was one text and no list, for messages.
    pub single: bool,
    pub dimensions: Option<u32>,
    pub input_type: InputType,
    /// Whether texts that are too long are cut, rather than refused.
    pub truncate: bool,
}

/// A text.
pub enum Input {
    Text(String),
    /// As tokens of the model.
    Tokens(Vec<u32>),
}

/// What became of it.
pub struct Embedded {
    pub id: EmbeddingId,
    pub model: String,
    /// In the order of the texts.
    pub vectors: Vec<Vec<f32>>,
    pub tokens: u64,
}

impl Embeddings {
    pub fn new(engine: Engine, ambient: Arc<dyn Ambient>) -> Self {
        Self { engine, ambient, preparing: Arc::new(Semaphore::new(PREPARING)) }
    }

    /// Resolves the model, tokenises the texts and waits for their vectors. What is used goes on `bill`. Dropping
    /// the future cancels what is not computed yet.
    pub async fn run(&self, access: &Access, call: EmbeddingCall, bill: &Receipt) -> Result<Embedded> {
        access.require_model(&call.model)?;
        let engine = self.engine.clone();
        let prepare = move || {
            let id = call.model.as_str();
            let model = engine.models().load_encoder(id, Kind::Embedding).map_err(|error| refuse_load(id, &error))?;
            check_dimensions(&model, call.dimensions)?;
            let texts = tokenise(&model, &call)?;
            Ok((call, model, texts))
        };
        let (call, mut vectors, tokens) = self.compute(access, bill, prepare).await?;
        if let Some(length) = call.dimensions {
            vectors.iter_mut().for_each(|vector| shorten(vector, length as usize));
        }
        Ok(Embedded { id: EmbeddingId::generate(&*self.ambient), model: call.model, vectors, tokens })
    }

    /// Has texts computed that `prepare` makes of a call off the async threads: the call again, a vector for each
    /// text, and the texts' tokens.
    pub(super) async fn compute<T: Send + 'static>(
        &self,
        access: &Access,
        bill: &Receipt,
        prepare: impl FnOnce() -> Result<(T, Arc<EncoderModel>, Vec<Tokenized>)> + Send + 'static,
    ) -> Result<(T, Vec<Vec<f32>>, u64)> {
        let permit = self.preparing.clone().try_acquire_owned().map_err(|_| overloaded())?;
        let (call, model, texts) = blocking(move || {
            let _permit = permit;
            prepare()
        })
        .await?;
        bill.model(model.id());
        let tokens: u64 = texts.iter().map(|text| text.ids.len() as u64).sum();
        bill.prompt(tokens)?;
        let tenant = u128::from_be_bytes(access.project().to_bytes());
        // What never ran costs nothing.
        let receiver = self.engine.embed(&model, tenant, texts).inspect_err(|_| bill.waive()).map_err(refuse)?;
        let vectors = receiver.await.map_err(|_| Error::internal("the engine forgot a request"))?;
        Ok((call, vectors.inspect_err(|_| bill.waive()).map_err(fail)?, tokens))
    }
}

fn check_dimensions(model: &EncoderModel, asked: Option<u32>) -> Result<()> {
    let (own, Some(asked)) = (model.dimensions(), asked) else { return Ok(()) };
    let can = match model.matryoshka() {
        _ if asked as usize == own => return Ok(()),
        Matryoshka::No => format!("makes vectors of {own} numbers and was not trained for shorter ones"),
        Matryoshka::Any if (asked as usize) < own => return Ok(()),
        Matryoshka::Any => format!("makes vectors of 1 to {own} numbers"),
        Matryoshka::These(lengths) if lengths.contains(&(asked as usize)) && (asked as usize) < own => return Ok(()),
        Matryoshka::These(lengths) => {
            let all: Vec<String> = lengths.iter().chain([&own]).map(usize::to_string).collect();
            format!("makes vectors of {} numbers", all.join(", "))
        }
    };
    let message = format!("'dimensions' is {asked}, but the model '{}' {can}. Leave 'dimensions' out.", model.id());
    Err(Error::invalid("dimensions", message))
}

fn tokenise(model: &EncoderModel, call: &EmbeddingCall) -> Result<Vec<Tokenized>> {
    let field = |place: usize| if call.single { "input".to_owned() } else { format!("input[{place}]") };
    let one = |(place, input): (usize, &Input)| {
        let mut text = match input {
            Input::Text(text) => model.encode(text, call.input_type).map_err(Error::internal)?,
            Input::Tokens(ids) => {
                let foreign = ids.iter().find(|id| **id as usize >= model.vocabulary());
                foreign.map_or(Ok(()), |id| Err(foreign_token(&field(place), *id, model)))?;
                model.wrap(ids)
            }
        };
        let (count, limit) = (text.ids.len(), model.limit());
        if count > limit && !call.truncate {
            return Err(too_long(&field(place), "", count, model));
        }
        model.cut(&mut text);
        Ok(text)
    };
    call.inputs.iter().enumerate().map(one).collect()
}

/// `with`: what is counted, too.
pub(super) fn too_long(field: &str, with: &str, count: usize, model: &EncoderModel) -> Error {
    let message = format!(
        "'{field}' has {count} tokens{with}, the model '{}' takes {}. Split the text, or send truncate: true, which leaves its end out.",
        model.id(),
        model.limit()
    );
    Error::new(Code::ContextLengthExceeded, message).param(field)
}

fn foreign_token(field: &str, id: u32, model: &EncoderModel) -> Error {
    let message = format!(
        "'{field}' has the token {id}, but the model '{}' has tokens 0 to {}. Send text rather than another model's tokens.",
        model.id(),
        model.vocabulary() - 1
    );
    Error::invalid(field, message)
}
