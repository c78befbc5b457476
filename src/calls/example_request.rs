//! A request that a new user can try.

use serde_json::{Value, json};

use super::models::Models;
use crate::catalog::Catalog;
use crate::engine::{ModelInfo, ModelKind};

/// A request to an installed model.
#[derive(Clone, Debug, PartialEq)]
pub struct ExampleRequest {
    pub path: &'static str,
    pub body: Value,
}

impl Models {
    /// A request to the model that a user would try first: a chat model if there is one. `None` without usable models.
    /// Blocks while the models folder is read.
    pub fn example_request(&self) -> Option<ExampleRequest> {
        let mut models = self.on_disk_blocking();
        models.retain(|model| model.problem.is_none());
        let starter = Catalog::builtin().starter();
        let rank = |model: &ModelInfo| (kind_rank(model), !starter.contains(&model.id), model.id.clone());
        models.iter().min_by_key(|model| rank(model)).and_then(example)
    }
}

fn kind_rank(model: &ModelInfo) -> u8 {
    match model.kind {
        ModelKind::Text if model.has_chat_template => 0,
        ModelKind::Image => 1,
        ModelKind::Text => 2,
        ModelKind::Embedding => 3,
        ModelKind::Reranker => 4,
        ModelKind::Speech => 5,
        ModelKind::Transcription | ModelKind::Unknown => 6,
    }
}

fn example(model: &ModelInfo) -> Option<ExampleRequest> {
    let id = &model.id;
    let question = "What is an outpost?";
    let (path, body) = match model.kind {
        ModelKind::Text if !model.has_chat_template => {
            ("/v1/completions", json!({ "model": id, "prompt": "An outpost is", "max_tokens": 40 }))
        }
        ModelKind::Text => {
            ("/v1/chat/completions", json!({ "model": id, "messages": [{ "role": "user", "content": question }] }))
        }
        ModelKind::Image => {
            ("/v1/images/generations", json!({ "model": id, "prompt": "a red house", "response_format": "url" }))
        }
        ModelKind::Embedding => ("/v1/embeddings", json!({ "model": id, "input": question })),
        ModelKind::Reranker => (
            "/v1/rerank",
            json!({ "model": id, "query": question, "documents": ["A remote settlement.", "A kind of bread."] }),
        ),
        ModelKind::Speech => ("/v1/audio/speech", json!({ "model": id, "input": question, "voice": "alloy" })),
        // It takes a form with a file.
        ModelKind::Transcription | ModelKind::Unknown => return None,
    };
    Some(ExampleRequest { path, body })
}
