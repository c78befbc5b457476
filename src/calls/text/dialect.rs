//! The API that a request came through. Errors use its names and texts.

/// An API for chats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's Chat Completions.
    #[default]
    Chat,
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Responses.
    Responses,
    /// Ollama's API.
    Ollama,
    /// llama.cpp's own API, which has no chats.
    LlamaCpp,
}

impl Dialect {
    /// The field with the schema of the output.
    pub(in crate::calls) fn output_schema(self) -> &'static str {
        match self {
            Self::Chat | Self::LlamaCpp => "response_format.json_schema.schema",
            Self::Messages => "output_config.format.schema",
            Self::Responses => "text.format.schema",
            Self::Ollama => "format",
        }
    }

    /// The field with the format of the output.
    pub(in crate::calls) fn output_format(self) -> &'static str {
        match self {
            Self::Chat | Self::LlamaCpp => "response_format",
            Self::Messages => "output_config.format",
            Self::Responses => "text.format",
            Self::Ollama => "format",
        }
    }

    /// The field with the conversation.
    pub(in crate::calls) fn prompt(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages | Self::Ollama | Self::LlamaCpp => "messages",
            Self::Responses => "input",
        }
    }

    /// True if neighbouring messages of a role are joined. Items of the Responses API are finer than messages.
    pub(in crate::calls) fn joins_messages(self) -> bool {
        self == Self::Responses
    }

    /// The field of a tool with the schema of its arguments.
    pub(in crate::calls) fn tool_schema(self) -> &'static str {
        match self {
            Self::Chat | Self::Ollama | Self::LlamaCpp => "function.parameters",
            Self::Messages => "input_schema",
            Self::Responses => "parameters",
        }
    }

    /// The field of a custom tool with the definition of its grammar.
    pub(in crate::calls) fn tool_grammar(self) -> &'static str {
        match self {
            Self::Responses => "format.definition",
            Self::Chat | Self::Messages | Self::Ollama | Self::LlamaCpp => "custom.format.grammar.definition",
        }
    }

    /// The field that names the tool to call.
    pub(in crate::calls) fn chosen_tool(self) -> &'static str {
        match self {
            Self::Chat | Self::Ollama | Self::LlamaCpp => "tool_choice.function.name",
            Self::Messages | Self::Responses => "tool_choice.name",
        }
    }

    /// Whether the number of tokens may exceed what the context leaves; generation then ends where the context does.
    /// Anthropic's clients always send a number, those of Ollama and llama.cpp know that generation ends with the context, and
    /// in the Responses API it is an upper bound.
    pub(in crate::calls) fn limits_max_tokens(self) -> bool {
        self != Self::Chat
    }
}
