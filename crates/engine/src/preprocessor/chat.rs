//! Turns conversations into prompts: applies the model's chat template, then its tokenizer.
//!
//! A prefilled assistant message is continued by cutting the rendered prompt after the last occurrence of its text, as
//! transformers does with `continue_final_message`, because templates close the last message. A template that changes
//! the text is refused, which is better than a prompt that ends elsewhere.
//!
//! Arguments of a call that are not an object are refused only if the template needs an object: a history may contain a
//! call that was cut off. If rendering fails, it is tried again with empty objects. If that succeeds, the arguments
//! were the cause, and the error names the call by its ID, because messages are joined before rendering and have other
//! numbers than in the request.

use std::collections::HashSet;
use std::sync::Arc;

use minijinja::value::{Serde, Value};

use super::spec::ModelFiles;
use super::template_sources::TemplateSources;
use super::tokenizer_info::{ChatTokenizerInfo, TokenizerDescription};
use crate::text::chat_template::{PromptError, Template};
use crate::text::prompt_options::{PromptEnd, PromptOptions, TemplateVariable};
use crate::text::reasoning::ReasoningSyntax;
use crate::text::tools::{CallFormat, Tool, ToolPromptStyle, protected};
use crate::tokenizer::harmony::{self, HarmonyTokens};
use crate::tokenizer::{ChatTokenizer, TokenIds, TokenizeLimits};
use outpost_common::clock_rng::ClockRng;
use outpost_content::Message;

/// A chat model's tokenizer and templates.
pub struct ChatPreprocessor {
    tokens: ChatTokenizer,
    /// The tokens that end generation, and the one that ends texts.
    eos_ids: HashSet<u32>,
    eos: Option<u32>,
    /// `None`: a base model, which only completes texts.
    default: Option<PromptTemplate>,
    /// For requests with tools, if the model has a separate template that shows its call format.
    tool_use: Option<PromptTemplate>,
    /// Whether the template writes [harmony].
    writes_harmony: bool,
}

/// The prompt up to the end of the last message's text. As in transformers, white space around the text is part of it only if
/// the template keeps it.
fn end_after(mut rendered: String, text: &str) -> Result<String, PromptError> {
    let trimmed = text.trim();
    let found = rendered.rfind(trimmed).filter(|_| !trimmed.is_empty());
    let Some(start) = found else {
        let reason = "it does not render the text of the last message, so that the text cannot be continued";
        return Err(PromptError::Refused(reason.to_owned()));
    };
    let whole = text.trim_start();
    let kept = if rendered.get(start..).is_some_and(|rest| rest.starts_with(whole)) { whole } else { trimmed };
    rendered.truncate(start + kept.len());
    Ok(rendered)
}

/// A template, and how tools are described to it.
struct PromptTemplate {
    template: Template,
    wording: ToolPromptStyle,
}

impl ChatPreprocessor {
    /// `rows` is the number of rows of the token embedding; token IDs must be below it.
    pub fn new(
        source: &ModelFiles,
        rows: usize,
        clock: &Arc<dyn ClockRng>,
    ) -> Result<(Self, ChatTokenizerInfo), String> {
        let templates = source.templates()?;
        let written = templates.as_ref().map(TemplateSources::joined).unwrap_or_default();
        let (tokens, vocabulary) = match source {
            ModelFiles::Gguf(metadata) => ChatTokenizer::from_gguf(metadata, rows, &written)?,
            ModelFiles::Folder(files) => ChatTokenizer::from_hugging_face(files, rows, &written)?,
            ModelFiles::Ggml(tokens) => ChatTokenizer::from_whisper_vocabulary(tokens, rows)?,
        };
        let prompt_template = |(source, wording): (&str, ToolPromptStyle)| {
            let (bos, eos) = (vocabulary.text(vocabulary.bos), vocabulary.text(vocabulary.eos));
            let template = Template::new(source, bos, eos, Arc::clone(clock))?;
            Ok::<_, String>(PromptTemplate { template, wording })
        };
        let templates = templates.as_ref();
        let default = templates.map(TemplateSources::default_template).map(prompt_template).transpose()?;
        let tool_use = templates.and_then(TemplateSources::tool_use_template).map(prompt_template).transpose()?;
        let style = tool_use.as_ref().or(default.as_ref()).map_or(ToolPromptStyle::Described, |used| used.wording);
        let writes_harmony = style.format() == CallFormat::Harmony;
        if writes_harmony && HarmonyTokens::of(&vocabulary).is_none() {
            return Err("the chat template writes harmony, but the vocabulary lacks some of its tokens".to_owned());
        }
        let template_describes_tools = style != ToolPromptStyle::Described;
        let eos_ids = vocabulary.eos_ids().clone();
        let eos = vocabulary.eos.or_else(|| eos_ids.iter().min().copied());
        let prepends_space = tokens.encode("a").first().is_some_and(|first| vocabulary.bytes(*first).starts_with(b" "));
        let reasoning = ReasoningSyntax::detect(&written, &vocabulary, |text| tokens.encode(text));
        let text = |id: Option<u32>| id.map(|id| vocabulary.text(Some(id)));
        let description = TokenizerDescription {
            bos: text(vocabulary.bos),
            eos: text(eos),
            padding: source.special_token("padding", &vocabulary)?,
            unknown: source.special_token("unknown", &vocabulary)?,
            adds_bos: tokens.adds_bos(),
            chat_template: templates.map(|templates| templates.default.clone()),
        };
        let info = ChatTokenizerInfo {
            vocabulary,
            prepends_space,
            call_format: style.format(),
            reasoning,
            template_describes_tools,
            description,
        };
        Ok((Self { tokens, eos_ids, eos, default, tool_use, writes_harmony }, info))
    }

    /// Renders the conversation and tokenizes it. Tokenizing stops at `limits`.
    pub fn prompt(
        &self,
        messages: &[Message],
        tools: &[Tool],
        options: &PromptOptions,
        limits: &TokenizeLimits,
    ) -> Result<TokenIds, PromptError> {
        let rendered = self.prompt_text(messages, tools, options)?;
        let prompt = self.tokens.encode_prompt(&rendered, limits);
        if prompt.ids.is_empty() && prompt.complete {
            return Err(PromptError::Broken("it renders these messages to an empty prompt".to_owned()));
        }
        Ok(prompt)
    }

    /// Renders the conversation. Special tokens in messages look like those of the template.
    pub fn text(&self, messages: &[Message], tools: &[Tool], options: &PromptOptions) -> Result<String, PromptError> {
        Ok(self.tokens.unprotect(&self.prompt_text(messages, tools, options)?))
    }

    pub fn tokenizer(&self) -> &ChatTokenizer {
        &self.tokens
    }

    /// True for tokens that end generation.
    pub fn ends_generation(&self, id: u32) -> bool {
        self.eos_ids.contains(&id)
    }

    /// The token that ends texts.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Renders the conversation to be continued. gpt-oss was trained with another token after a conversation's last message
    /// than after earlier ones, which is for training only.
    fn prompt_text(
        &self,
        messages: &[Message],
        tools: &[Tool],
        options: &PromptOptions,
    ) -> Result<String, PromptError> {
        let mut rendered = self.render_with_tools(messages, tools, options)?;
        if options.end == PromptEnd::LastMessage
            && self.writes_harmony
            && let Some(rest) = rendered.strip_suffix(harmony::RETURN)
        {
            rendered = [rest, harmony::END].concat();
        }
        Ok(rendered)
    }

    /// Renders the conversation up to where `options` says.
    pub fn render_with_tools(
        &self,
        messages: &[Message],
        tools: &[Tool],
        options: &PromptOptions,
    ) -> Result<String, PromptError> {
        let mut rendered = self.render(messages, tools, options, false);
        // Some templates reject system messages. Then merge the tool descriptions into another message.
        if matches!(rendered, Err(PromptError::Refused(_))) && !tools.is_empty() {
            rendered = self.render(messages, tools, options, true);
        }
        let rendered = match rendered {
            // Most templates want the arguments of calls as objects, others as text.
            Err(error) => match self.render_with_text_arguments(messages, tools, options) {
                Some(rendered) => rendered,
                None => return Err(self.blame_arguments(messages, tools, options).unwrap_or(error)),
            },
            Ok(rendered) => rendered,
        };
        match messages.last().filter(|_| options.end == PromptEnd::LastMessageText) {
            Some(last) => end_after(rendered, &self.tokens.protect(&last.content.text())),
            None => Ok(rendered),
        }
    }

    /// Renders the arguments of calls as text. `None` if there are none, or if that fails, too.
    fn render_with_text_arguments(
        &self,
        messages: &[Message],
        tools: &[Tool],
        options: &PromptOptions,
    ) -> Option<String> {
        let mut messages = messages.to_vec();
        let calls = messages.iter_mut().flat_map(|message| &mut message.tool_calls);
        let quoted = calls.map(|call| call.arguments = serde_json::Value::from(call.arguments.as_str()).to_string());
        if quoted.count() == 0 {
            return None;
        }
        self.render(&messages, tools, options, false).ok()
    }

    /// The error for arguments of a call that are no object, if the template fails because of them: many templates iterate
    /// over the arguments.
    fn blame_arguments(&self, messages: &[Message], tools: &[Tool], options: &PromptOptions) -> Option<PromptError> {
        let mut messages = messages.to_vec();
        let calls = messages.iter_mut().flat_map(|message| &mut message.tool_calls);
        let mut unfit = calls.filter(|call| !call.arguments_value().is_object());
        let first = unfit.next()?;
        let id = first.id.clone();
        first.arguments.clear();
        unfit.for_each(|call| call.arguments.clear());
        self.render(&messages, tools, options, false).ok().map(|_| PromptError::Arguments(id))
    }

    fn render(
        &self,
        messages: &[Message],
        tools: &[Tool],
        options: &PromptOptions,
        merged: bool,
    ) -> Result<String, PromptError> {
        let tool_use = self.tool_use.as_ref().filter(|_| !tools.is_empty());
        let used = tool_use.or(self.default.as_ref()).ok_or(PromptError::NoTemplate)?;
        let PromptTemplate { template, wording } = used;
        let protect = |text: &str| self.tokens.protect(text);
        let (messages, tools) = wording.template_input(messages, tools, merged, &protect);
        let values = |all: Vec<serde_json::Value>| -> Vec<Value> {
            all.into_iter().map(|one| Value::from(Serde(one))).collect()
        };
        let variable = |TemplateVariable { name, value }: &TemplateVariable| {
            (name.clone(), Value::from(Serde(protected(wording.variable(name, value.clone()), &protect))))
        };
        let variables = options.variables.iter().map(variable).collect();
        let generation_prompt = options.end == PromptEnd::NextMessage;
        template.render(Value::from(values(messages)), values(tools), variables, generation_prompt)
    }
}
