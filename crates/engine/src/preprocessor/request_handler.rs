//! The tokenizers and templates of one model, built from its files. The files control what happens here: it may take
//! any time and memory, or crash the process.

use std::sync::Arc;

use super::chat::ChatPreprocessor;
use super::request::Request;
use super::sandbox_protocol;
use super::spec::{ModelFiles, Spec};
use crate::embedding::EncoderTokenizer;
use crate::image::PromptTokenizer;
use crate::tokenizer::TokenizeLimits;
use outpost_common::clock_rng::ClockRng;

pub enum RequestHandler {
    Chat(Box<ChatPreprocessor>),
    Encoder(Box<EncoderTokenizer>),
    Image(Vec<PromptTokenizer>),
}

impl RequestHandler {
    /// Builds the handler from the files that [`Spec::read`] returned. Also returns the encoded tokenizer info for the
    /// server.
    pub fn new(spec: &Spec, sources: &[ModelFiles], clock: &Arc<dyn ClockRng>) -> Result<(Self, Vec<u8>), String> {
        let only = || sources.first().ok_or("the model has no files");
        match spec {
            Spec::Chat { rows, .. } => {
                let (chat, info) = ChatPreprocessor::new(only()?, *rows, clock)?;
                Ok((Self::Chat(Box::new(chat)), sandbox_protocol::encode(&info)?))
            }
            Spec::Encoder { tokenizer, .. } => {
                let tokens = match only()? {
                    ModelFiles::Gguf(metadata) => EncoderTokenizer::from_gguf(metadata, tokenizer, clock)?,
                    ModelFiles::Folder(files) => EncoderTokenizer::from_folder(files, tokenizer, clock)?,
                    ModelFiles::Ggml(_) => return Err("it is not an embedding model".to_owned()),
                };
                let info = sandbox_protocol::encode(&tokens.info())?;
                Ok((Self::Encoder(Box::new(tokens)), info))
            }
            Spec::Image { texts } => {
                let files = sources.iter().filter_map(|source| match source {
                    ModelFiles::Folder(files) => Some(files),
                    ModelFiles::Gguf(_) | ModelFiles::Ggml(_) => None,
                });
                let tokenizers = files.zip(texts).map(|(files, text)| PromptTokenizer::new(files, text));
                let tokenizers = tokenizers.collect::<Result<Vec<_>, _>>()?;
                let info = sandbox_protocol::encode(&tokenizers.iter().map(PromptTokenizer::len).collect::<Vec<_>>())?;
                Ok((Self::Image(tokenizers), info))
            }
        }
    }

    /// Handles an encoded [`Request`]. The response is encoded too; its type depends on the request.
    pub fn handle(&self, encoded: Vec<u8>, limits: &TokenizeLimits) -> Result<Vec<u8>, String> {
        let (max_tokens, request): (Option<usize>, Request<'_>) = sandbox_protocol::decode(&encoded)?;
        // Do not keep large requests in memory twice.
        drop(encoded);
        let limits =
            &max_tokens.map_or_else(|| limits.clone(), |max_tokens| limits.clone().with_max_tokens(max_tokens));
        match (request, self) {
            (Request::Prompt { messages, tools, options }, Self::Chat(chat)) => {
                sandbox_protocol::encode(&chat.prompt(&messages, &tools, &options, limits))
            }
            (Request::TrainingTexts { example, max_tokens }, Self::Chat(chat)) => {
                sandbox_protocol::encode(&chat.training_texts(&example, max_tokens, limits))
            }
            (Request::Text { text, special }, Self::Chat(chat)) => {
                sandbox_protocol::encode(&chat.tokenizer().encode_text(&text, special, limits))
            }
            (Request::Render { messages, tools, options }, Self::Chat(chat)) => {
                sandbox_protocol::encode(&chat.text(&messages, &tools, &options))
            }
            (Request::Infill { texts }, Self::Chat(chat)) => {
                sandbox_protocol::encode(&chat.tokenizer().encode_infill(&texts, limits))
            }
            (Request::Words { words }, Self::Chat(chat)) => {
                let forms = words.iter().flat_map(|word| chat.tokenizer().encode_word(word));
                sandbox_protocol::encode(&forms.collect::<Vec<_>>())
            }
            (Request::Decode { ids }, Self::Encoder(tokens)) => sandbox_protocol::encode(&tokens.decode(&ids)),
            (Request::Pieces { ids }, Self::Encoder(tokens)) => sandbox_protocol::encode(&tokens.pieces(&ids)),
            (Request::Texts { texts, keep_going }, Self::Encoder(tokens)) => {
                sandbox_protocol::encode(&tokens.encode_all(&texts, keep_going, limits))
            }
            (Request::Pairs { query, documents, instruction, max }, Self::Encoder(tokens)) => {
                let pairs = tokens.encode_pairs(&query, &documents, instruction.as_deref(), max, limits);
                sandbox_protocol::encode(&pairs)
            }
            (Request::Image { texts }, Self::Image(tokenizers)) => {
                let encode = |tokenizer: &PromptTokenizer| texts.iter().map(|text| tokenizer.encode(text)).collect();
                sandbox_protocol::encode(&tokenizers.iter().map(encode).collect::<Result<Vec<Vec<Vec<u32>>>, String>>())
            }
            _ => Err("the model does not support this kind of request".to_owned()),
        }
    }
}
