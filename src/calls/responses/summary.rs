//! Summaries of conversations that have become long.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::calls::conversations::context::ConversationContextRequest;
use crate::calls::output_format::output_spec::OutputRequest;
use crate::calls::prompt::message_joining::{join, last_turn};
use crate::calls::text::chat::{Chat, ChatCall, RunningChat};
use crate::calls::text::dialect::Dialect;
use crate::calls::text::generation::RunningText;
use crate::calls::text::sampling_request::SamplingRequest;
use crate::content::Message;
use crate::engine::{PromptOptions, SamplingParameters};
use crate::error::{Code, Error, Result};
use crate::service::access::Access;
use crate::service::usage::UsageRecorder;

/// What the model is asked for, in the last message.
pub const TASK: &str = "Summarize this conversation, so that another assistant can go on with it from your summary alone. \
Write down what the user wants and has decided, what was done and found out, names, paths, numbers and other exact values \
that will be needed, and what remains to be done. Write only the summary.";
/// Max tokens of a summary, and the part of the context that it may fill.
const MAX_SUMMARY_TOKENS: u32 = 1024;
const SUMMARY_PART: u32 = 4;
/// Bytes of a part whose repetition is a loop. Shorter ones occur in tables and rules.
const LOOP_BYTES: RangeInclusive<usize> = 24..=600;

/// A conversation that a model summarizes.
pub struct LongConversation {
    pub model: String,
    /// Of the model, if it is known.
    pub context_window: Option<u32>,
    /// They end with [`TASK`].
    pub messages: Vec<Message>,
    pub context: ConversationContextRequest,
    pub prompt: PromptOptions,
}

/// The summary of a conversation.
pub struct Summary {
    /// The chat that wrote it, which has ended.
    pub chat: RunningChat,
    pub text: String,
    /// The number of messages that did not fit into the context.
    pub left_out: usize,
}

/// Lets the model summarize a conversation. Fails if no message before its last turn fits into the context.
pub async fn summarize(
    chat: &Chat,
    access: &Access,
    conversation: LongConversation,
    recorder: Arc<UsageRecorder>,
) -> Result<Summary> {
    let LongConversation { model, context_window, messages, context, prompt } = conversation;
    let earlier = earlier_messages([&context.history[..], &messages].concat());
    let max_tokens =
        context_window.map_or(MAX_SUMMARY_TOKENS, |window| (window / SUMMARY_PART).clamp(1, MAX_SUMMARY_TOKENS));
    let parameters = SamplingParameters { temperature: Some(0.0), ..SamplingParameters::default() };
    let call = ChatCall {
        model: Some(model),
        messages,
        context,
        prompt,
        max_reasoning_tokens: None,
        output: OutputRequest { dialect: &Dialect::RESPONSES, ..OutputRequest::default() },
        choices: 1,
        max_tokens: Some((max_tokens, "input")),
        sampling: SamplingRequest { parameters, ..SamplingRequest::default() },
        seed: Some(0),
        stop: Some(Vec::new()),
        logprobs: None,
        prompt_logprobs: None,
    };
    let mut chat = chat.start(access, call, recorder).await?;
    let left_out = chat.truncated.unwrap_or(0);
    if left_out > 0 && left_out == earlier {
        let text = "The last turn of the conversation and the summary do not fit into the context of the model. Leave out the oldest items, or use a model with a longer context.";
        return Err(Error::new(Code::ContextLengthExceeded, text).param("input"));
    }
    let text = generate(&mut chat).await?;
    Ok(Summary { chat, text, left_out })
}

/// The number of messages before the last one of the user, without system messages.
fn earlier_messages(messages: Vec<Message>) -> usize {
    let joined = join(messages, false);
    joined[..last_turn(&joined)].iter().filter(|message| message.role != "system").count()
}

/// What the model writes, until it begins to repeat itself.
async fn generate(chat: &mut RunningChat) -> Result<String> {
    let mut text = String::new();
    while let Some(delta) = chat.next().await {
        text.push_str(&delta?.text);
        if let Some(end) = end_before_loop(&text) {
            text.truncate(end);
            chat.cancel();
            break;
        }
    }
    Ok(text.trim().to_owned())
}

/// The length of a text without its loop, if it ends with three copies of the same part. One copy stays.
fn end_before_loop(text: &str) -> Option<usize> {
    let (bytes, length) = (text.as_bytes(), text.len());
    let is_loop = |part: &usize| {
        let copies = bytes.len().checked_sub(3 * part).and_then(|start| bytes.get(start..));
        copies.is_some_and(|copies| copies[..2 * part] == copies[*part..])
    };
    let part = LOOP_BYTES.into_iter().find(is_loop)?;
    // The copies need not begin between two characters.
    (0..=length - 2 * part).rev().find(|end| text.is_char_boundary(*end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_cut_after_its_first_copy() {
        let sentence = "They left Brest — on 14 May. ";
        let text = format!("The boat is Rosa.\n{}", sentence.repeat(3));
        assert_eq!(&text[..end_before_loop(&text).unwrap()], format!("The boat is Rosa.\n{sentence}"));
        assert_eq!(end_before_loop(&text[..text.len() - 1]), None, "it is cut as soon as it is complete");
        assert_eq!(end_before_loop(&sentence.repeat(2)), None);
        assert_eq!(end_before_loop("| --- | --- | --- |"), None);
        assert_eq!(end_before_loop(""), None);
        for end in 0..text.len() {
            text.get(..end).and_then(end_before_loop);
        }
    }
}
