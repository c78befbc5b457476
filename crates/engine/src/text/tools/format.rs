//! The tool call formats of model families.

use serde::{Deserialize, Serialize};

use super::parameters::PARAMETER_HEAD;
use super::{CallMode, OutputSpec, TextFormat, Tool};
use crate::tokenizer::Vocabulary;

/// How a model family writes tool calls. Detected from its chat template, which shows the format to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallFormat {
    /// `<tool_call>\n{"name": …, "arguments": …}\n</tool_call>` (Hermes, Qwen 2.5 and 3).
    Hermes,
    /// `{"name": …, "parameters": …}` as the whole answer (Llama 3.1 to 3.3).
    Llama,
    /// `[TOOL_CALLS] [{"name": …, "arguments": …}]` (Mistral up to 2024).
    Mistral,
    /// `<tool_call>\n<function=…>\n<parameter=…>\n…\n</parameter>\n</function>\n</tool_call>` (Qwen3-Coder, Qwen 3.5,
    /// Nemotron 3).
    Qwen3Coder,
}

impl CallFormat {
    /// `None`: the template does not support tools, or in none of these formats.
    pub fn detect(template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        if !has("tools") {
            None
        } else if has("<tool_call>") && !has("<function=") && !has("<arg_key>") {
            Some(Self::Hermes)
        } else if has("<tool_call>") && has("<function=") && has(PARAMETER_HEAD) {
            Some(Self::Qwen3Coder)
        } else if has("[TOOL_CALLS]") && !has("[ARGS]") {
            Some(Self::Mistral)
        } else if has("\"parameters\": ") && (has("<|python_tag|>") || has("ipython")) {
            Some(Self::Llama)
        } else {
            None
        }
    }

    /// The marker that ends text and starts calls. Empty if calls can only start the output.
    pub fn opening(self) -> &'static str {
        match self {
            Self::Hermes | Self::Qwen3Coder => "<tool_call>",
            Self::Llama => "",
            Self::Mistral => "[TOOL_CALLS]",
        }
    }

    /// Between the opening and the first call.
    pub fn lead(self) -> &'static str {
        match self {
            Self::Hermes | Self::Qwen3Coder => "\n",
            Self::Llama => "",
            Self::Mistral => " [",
        }
    }

    /// Whether arguments are written [parameter by parameter](super::parameters), and not as JSON.
    pub fn has_tagged_parameters(self) -> bool {
        self == Self::Qwen3Coder
    }

    /// A call up to its arguments. No head is a prefix of another, as the name has an end.
    pub fn head(self, name: &str) -> String {
        if self == Self::Qwen3Coder {
            return format!("<function={name}>\n");
        }
        let arguments = if self == Self::Llama { "parameters" } else { "arguments" };
        format!("{{\"name\": \"{name}\", \"{arguments}\": ")
    }

    /// A call after its arguments.
    pub fn tail(self) -> &'static str {
        match self {
            Self::Hermes => "}\n</tool_call>",
            Self::Llama | Self::Mistral => "}",
            Self::Qwen3Coder => "</function>\n</tool_call>",
        }
    }

    /// Between calls; `None` if there can be only one.
    pub fn separator(self) -> Option<&'static str> {
        match self {
            Self::Hermes | Self::Qwen3Coder => Some("\n<tool_call>\n"),
            Self::Llama => None,
            Self::Mistral => Some(", "),
        }
    }

    /// After the last call.
    pub fn closing(self) -> &'static str {
        if self == Self::Mistral { "]" } else { "" }
    }

    /// Markers that are control tokens in some vocabularies.
    fn control_texts(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::Qwen3Coder => &["<tool_call>", "</tool_call>"],
            Self::Llama => &[PYTHON],
            Self::Mistral => &["[TOOL_CALLS]"],
        }
    }
}

/// A marker that Llama models may put before a call.
pub const PYTHON: &str = "<|python_tag|>";

/// How the calls of one request are written.
#[derive(Clone, Debug)]
pub struct CallSyntax {
    pub format: CallFormat,
    /// Markers of the format that are control tokens in this vocabulary, with their IDs.
    pub control_tokens: Vec<(&'static str, u32)>,
    /// Tools that may be called, with their index among the request's tools.
    pub callable: Vec<(usize, Tool)>,
    /// Set if the output consists of calls from its first token on.
    pub call_required: bool,
    /// Whether the output may also be free text.
    pub free_text: bool,
    /// Whether the output may begin with a call without its opening, see [`super::bare_call`].
    pub bare: bool,
    /// Allows several calls.
    pub parallel: bool,
}

impl CallSyntax {
    /// `None` if no tool may be called.
    pub fn new(format: CallFormat, tokens: &Vocabulary, spec: &OutputSpec) -> Option<Self> {
        let is_callable = |tool: &Tool| match &spec.calling {
            CallMode::Named(name) => tool.name == *name,
            _ => true,
        };
        let callable: Vec<_> = spec.tools.iter().cloned().enumerate().filter(|(_, tool)| is_callable(tool)).collect();
        let control_tokens =
            format.control_texts().iter().filter_map(|text| tokens.control_id(text).map(|id| (*text, id)));
        let call_required = spec.calling != CallMode::Auto;
        let free_text = !call_required && matches!(spec.text, TextFormat::Free);
        (!callable.is_empty()).then(|| Self {
            format,
            control_tokens: control_tokens.collect(),
            callable,
            call_required,
            free_text,
            bare: free_text && matches!(format, CallFormat::Hermes | CallFormat::Mistral),
            parallel: spec.parallel && format.separator().is_some() && !matches!(spec.calling, CallMode::Named(_)),
        })
    }

    /// The control token that opens calls.
    pub fn opening_id(&self) -> Option<u32> {
        let opening = if self.format == CallFormat::Llama { PYTHON } else { self.format.opening() };
        self.control_tokens.iter().find(|(text, _)| *text == opening).map(|(_, id)| *id)
    }
}
