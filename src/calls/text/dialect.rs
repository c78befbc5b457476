//! What a call must know of the API that its request came through: the names of fields, for errors, and the few rules in
//! which APIs differ.
//!
//! The dialect of an API is a constant in the API's folder, so a new API changes nothing here. Only two are here: that of
//! Chat Completions, from which the others take what they do not set, and that of the Responses API, which calls use
//! themselves.

/// An API for chats or for texts.
#[derive(Debug)]
pub struct Dialect {
    /// The field with the conversation.
    pub prompt: &'static str,
    /// The field with the format of the output.
    pub output_format: &'static str,
    /// The field with the schema of the output.
    pub output_schema: &'static str,
    /// The field that requests the continuation of the last message.
    pub continuation: &'static str,
    /// The field of a tool with the schema of its arguments.
    pub tool_schema: &'static str,
    /// The field of a custom tool with the definition of its grammar.
    pub tool_grammar: &'static str,
    /// The field that names the tool to call.
    pub chosen_tool: &'static str,
    /// True if custom tools are accepted.
    pub has_custom_tools: bool,
    /// True if neighbouring messages of a role are joined, because the prompt consists of items that are finer than messages.
    pub joins_messages: bool,
    /// True if the number of tokens may exceed what the context leaves; generation then ends where the context does.
    pub limits_max_tokens: bool,
    /// True if a large number of tokens reserves no more room for the output than the default does. More of the oldest turns
    /// would be left out for it.
    pub limits_reserve: bool,
    /// True if the number of tokens for reasoning is a strict limit.
    pub limits_reasoning: bool,
    /// The first sentence of the error for a prompt that is too long, with the tokens of the prompt and of the context; `None`:
    /// OpenAI's text.
    pub prompt_too_long: Option<fn(u32, u32) -> String>,
}

impl Dialect {
    /// OpenAI's Chat Completions.
    pub const CHAT: Self = Self {
        prompt: "messages",
        output_format: "response_format",
        output_schema: "response_format.json_schema.schema",
        continuation: "continue_final_message",
        tool_schema: "function.parameters",
        tool_grammar: "custom.format.grammar.definition",
        chosen_tool: "tool_choice.function.name",
        has_custom_tools: false,
        joins_messages: false,
        limits_max_tokens: false,
        limits_reserve: false,
        limits_reasoning: true,
        prompt_too_long: None,
    };

    /// OpenAI's Responses. The number of tokens is an upper bound.
    pub const RESPONSES: Self = Self {
        prompt: "input",
        output_format: "text.format",
        output_schema: "text.format.schema",
        continuation: "input",
        tool_schema: "parameters",
        tool_grammar: "format.definition",
        chosen_tool: "tool_choice.name",
        has_custom_tools: true,
        joins_messages: true,
        limits_max_tokens: true,
        limits_reasoning: false,
        ..Self::CHAT
    };
}

impl Default for &Dialect {
    fn default() -> Self {
        &Dialect::CHAT
    }
}
