//! The tool call formats of model families.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::literals::GEMMA_QUOTE;
use super::parameters::{KEY_LINE_TAGS, KEY_TAGS, PARAMETER_TAGS, Tags};
use super::{CallMode, OutputSpec, TextFormat, Tool};
use crate::tokenizer::{Vocabulary, harmony};

/// How a model family writes tool calls. Detected from its chat template, which shows the format to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallFormat {
    /// `<tool_call>\n{"name": …, "arguments": …}\n</tool_call>` (Hermes, Qwen 2.5 and 3, Granite 4).
    Hermes,
    /// `{"name": …, "parameters": …}` as the whole answer (Llama 3.1 to 3.3).
    Llama,
    /// `[TOOL_CALLS] [{"name": …, "arguments": …}]` (Mistral up to 2024).
    Mistral,
    /// `[TOOL_CALLS]name[ARGS]{…}`, in some versions with `[CALL_ID]…` after the name (Mistral from 2025 on).
    MistralArgs,
    /// `<|tool_call|>[{"name": …, "arguments": …}]` (Granite 3).
    Granite3,
    /// `<TOOLCALL>[{"name": …, "arguments": …}]</TOOLCALL>` (Nemotron 2, and Nemotron models made from Llama).
    Nemotron2,
    /// `<tool_call>\n<function=…>\n<parameter=…>\n…\n</parameter>\n</function>\n</tool_call>` (Qwen3-Coder, Qwen 3.5,
    /// Nemotron 3).
    Qwen3Coder,
    /// `<tool_call>…\n<arg_key>…</arg_key>\n<arg_value>…</arg_value>\n</tool_call>` (GLM-4.5 and 4.6).
    Glm45,
    /// `<tool_call>…<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>` (GLM-4.7).
    Glm47,
    /// `<|tool_call_start|>[name(parameter="…")]<|tool_call_end|>` (LFM2 and LFM2.5).
    Lfm2,
    /// `<|tool_call>call:name{parameter:<|"|>…<|"|>}<tool_call|>` (Gemma 4).
    Gemma4,
    /// `<|channel|>commentary to=functions.… <|constrain|>json<|message|>…<|call|>` (gpt-oss). See
    /// [harmony](crate::tokenizer::harmony): the whole output has this format, and not only its calls.
    Harmony,
}

/// How arguments are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentStyle {
    Json,
    /// [Parameter by parameter](super::parameters), each between tags.
    Tagged(Tags),
    /// As [Python](super::literals) writes the keyword arguments of a call.
    Python,
    /// As [Gemma](super::literals) writes them.
    Gemma,
}

/// The texts of a format, in their order.
pub struct Notation {
    /// Markers that end text and start calls, the usual one first. Empty if calls can only start the output.
    pub openings: &'static [&'static str],
    /// Between the opening and the first call.
    pub lead: &'static str,
    /// In a call before its name, and between its name and its arguments.
    head: (&'static str, &'static str),
    /// The first character of the arguments, if only it shows where the name ends.
    pub name_end: &'static str,
    /// What may follow the name: this marker, and an ID of so many letters and digits.
    pub call_id: Option<(&'static str, usize)>,
    pub arguments: ArgumentStyle,
    /// In a call after its arguments.
    pub tail: &'static str,
    /// Between calls; `None` if there can be only one.
    pub separator: Option<&'static str>,
    /// After the last call.
    pub closing: &'static str,
    /// Further markers that are control tokens in some vocabularies, as the openings may be.
    other_markers: &'static [&'static str],
}

/// The head of a call that is JSON.
const JSON_HEAD: (&str, &str) = ("{\"name\": \"", "\", \"arguments\": ");

const TOOL_CALLS: &str = "[TOOL_CALLS]";

const HERMES: Notation = Notation {
    openings: &["<tool_call>"],
    lead: "\n",
    head: JSON_HEAD,
    name_end: "",
    call_id: None,
    arguments: ArgumentStyle::Json,
    tail: "}\n</tool_call>",
    separator: Some("\n<tool_call>\n"),
    closing: "",
    other_markers: &["</tool_call>"],
};
const LLAMA: Notation = Notation {
    openings: &[],
    lead: "",
    head: ("{\"name\": \"", "\", \"parameters\": "),
    tail: "}",
    separator: None,
    other_markers: &[PYTHON],
    ..HERMES
};
const MISTRAL: Notation = Notation {
    openings: &[TOOL_CALLS],
    lead: " [",
    tail: "}",
    separator: Some(", "),
    closing: "]",
    other_markers: &[],
    ..HERMES
};
const MISTRAL_ARGS: Notation = Notation {
    openings: &[TOOL_CALLS],
    lead: "",
    head: ("", "[ARGS]"),
    call_id: Some(("[CALL_ID]", 9)),
    tail: "",
    separator: Some(TOOL_CALLS),
    closing: "",
    other_markers: &["[ARGS]", "[CALL_ID]"],
    ..HERMES
};
/// Templates of all versions show the token, but Granite 3.1 was trained on the tag.
const GRANITE_3: Notation = Notation { openings: &["<|tool_call|>", "<tool_call>"], lead: "[", ..MISTRAL };
const NEMOTRON_2: Notation = Notation {
    openings: &["<TOOLCALL>"],
    lead: "[",
    closing: "]</TOOLCALL>",
    other_markers: &["</TOOLCALL>"],
    ..MISTRAL
};
const QWEN_3_CODER: Notation = Notation {
    head: ("<function=", ">\n"),
    arguments: ArgumentStyle::Tagged(PARAMETER_TAGS),
    tail: "</function>\n</tool_call>",
    ..HERMES
};
const GLM_45: Notation = Notation {
    lead: "",
    head: ("", "\n"),
    arguments: ArgumentStyle::Tagged(KEY_LINE_TAGS),
    tail: "</tool_call>",
    separator: Some("\n<tool_call>"),
    ..HERMES
};
const GLM_47: Notation = Notation {
    head: ("", ""),
    name_end: "<",
    arguments: ArgumentStyle::Tagged(KEY_TAGS),
    separator: Some("<tool_call>"),
    ..GLM_45
};
const LFM_2: Notation = Notation {
    openings: &["<|tool_call_start|>"],
    lead: "[",
    head: ("", "("),
    name_end: "",
    call_id: None,
    arguments: ArgumentStyle::Python,
    tail: ")",
    separator: Some(", "),
    closing: "]<|tool_call_end|>",
    other_markers: &["<|tool_call_end|>"],
};
const GEMMA_4: Notation = Notation {
    openings: &["<|tool_call>"],
    lead: "",
    head: ("call:", "{"),
    arguments: ArgumentStyle::Gemma,
    tail: "}<tool_call|>",
    separator: Some("<|tool_call>"),
    closing: "",
    other_markers: &["<tool_call|>", GEMMA_QUOTE],
    ..HERMES
};
/// The grammar and the parser of this format are their own.
const HARMONY: Notation = Notation {
    openings: &[],
    lead: "",
    head: ("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>"),
    name_end: "",
    call_id: None,
    arguments: ArgumentStyle::Json,
    tail: harmony::CALL,
    separator: Some("<|start|>assistant"),
    closing: "",
    other_markers: &[
        harmony::START,
        harmony::CHANNEL,
        harmony::CONSTRAIN,
        harmony::MESSAGE,
        harmony::END,
        harmony::CALL,
        harmony::RETURN,
    ],
};

impl CallFormat {
    /// `None`: the template does not support tools, or in none of these formats.
    pub fn detect(template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        if !has("tools") {
            None
        } else if [harmony::START, harmony::CHANNEL, harmony::MESSAGE].iter().all(|marker| has(marker)) {
            Some(Self::Harmony)
        } else if has("<tool_call>") && !has("<function=") && !has("<arg_key>") {
            Some(Self::Hermes)
        } else if has("<tool_call>") && has("<function=") && has(PARAMETER_TAGS.head) {
            Some(Self::Qwen3Coder)
        } else if has("<tool_call>") && has("<arg_key>") && has("<arg_value>") {
            Some(if has("</arg_key>\n") || has("</arg_key>\\n") { Self::Glm45 } else { Self::Glm47 })
        } else if has("<|tool_call>call:") && has(GEMMA_QUOTE) {
            Some(Self::Gemma4)
        } else if has(TOOL_CALLS) {
            Some(if has("[ARGS]") { Self::MistralArgs } else { Self::Mistral })
        } else if has("<TOOLCALL>") {
            Some(Self::Nemotron2)
        } else if has("<|tool_call|>") && has("<|start_of_role|>") {
            Some(Self::Granite3)
        // Some templates of LFM2 and LFM2.5 show only the list of tools.
        } else if has("<|tool_call_start|>")
            || (has("<|im_start|>") && (has("List of tools: [") || has("List of tools: <|tool_list_start|>")))
        {
            Some(Self::Lfm2)
        } else if has("\"parameters\": ") && (has("<|python_tag|>") || has("ipython")) {
            Some(Self::Llama)
        } else {
            None
        }
    }

    pub fn notation(self) -> &'static Notation {
        match self {
            Self::Hermes => &HERMES,
            Self::Llama => &LLAMA,
            Self::Mistral => &MISTRAL,
            Self::MistralArgs => &MISTRAL_ARGS,
            Self::Granite3 => &GRANITE_3,
            Self::Nemotron2 => &NEMOTRON_2,
            Self::Qwen3Coder => &QWEN_3_CODER,
            Self::Glm45 => &GLM_45,
            Self::Glm47 => &GLM_47,
            Self::Lfm2 => &LFM_2,
            Self::Gemma4 => &GEMMA_4,
            Self::Harmony => &HARMONY,
        }
    }
}

impl Notation {
    /// A call up to its arguments.
    pub fn head(&self, name: &str) -> String {
        [self.name(name).as_str(), self.head.1].concat()
    }

    /// A call up to its name.
    pub fn name(&self, name: &str) -> String {
        [self.head.0, name].concat()
    }

    /// What stands between a call's name and its arguments.
    pub fn after_name(&self) -> &'static str {
        self.head.1
    }

    /// A text that may end in the head of a call, without the ID of the call.
    pub fn without_call_id<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let end = self.call_id.and_then(|(marker, _)| text.strip_suffix(self.head.1)?.rfind(marker));
        end.map_or(Cow::Borrowed(text), |end| [text.get(..end).unwrap_or_default(), self.head.1].concat().into())
    }

    /// Whether the output may also begin with a call without its opening, see [`super::bare_call`].
    pub fn allows_bare_calls(&self) -> bool {
        self.arguments == ArgumentStyle::Json && !self.openings.is_empty()
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
    /// Set if the output must have a call. It consists of calls from its first token on; in harmony, reasoning may precede them.
    pub call_required: bool,
    /// Whether the output may also be free text.
    pub free_text: bool,
    /// Whether the output may begin with a call without its opening, see [`super::bare_call`].
    pub bare: bool,
    /// Allows several calls.
    pub parallel: bool,
}

impl CallSyntax {
    /// `None` if no tool may be called, and the format is that of calls only.
    pub fn new(format: CallFormat, tokens: &Vocabulary, spec: &OutputSpec) -> Option<Self> {
        let is_callable = |tool: &Tool| match &spec.calling {
            CallMode::Named(name) => tool.name == *name,
            _ => true,
        };
        let callable: Vec<_> = spec.tools.iter().cloned().enumerate().filter(|(_, tool)| is_callable(tool)).collect();
        let notation = format.notation();
        let markers = notation.openings.iter().chain(notation.other_markers);
        let control_tokens = markers.filter_map(|text| tokens.control_id(text).map(|id| (*text, id)));
        let call_required = spec.calling != CallMode::Auto;
        let free_text = !call_required && matches!(spec.text, TextFormat::Free);
        (!callable.is_empty() || format == CallFormat::Harmony).then(|| Self {
            format,
            control_tokens: control_tokens.collect(),
            callable,
            call_required,
            free_text,
            bare: free_text && notation.allows_bare_calls(),
            parallel: spec.parallel && notation.separator.is_some() && !matches!(spec.calling, CallMode::Named(_)),
        })
    }

    /// The control token of a marker, if it is one.
    pub fn control_id(&self, marker: &str) -> Option<u32> {
        self.control_tokens.iter().find(|(control, _)| *control == marker).map(|(_, id)| *id)
    }

    /// The control tokens that open calls.
    pub fn opening_ids(&self) -> impl Iterator<Item = u32> {
        let opens = |text: &str| text == PYTHON || self.format.notation().openings.contains(&text);
        self.control_tokens.iter().filter(move |(text, _)| opens(text)).map(|(_, id)| *id)
    }

    /// The openings that are no control tokens.
    pub fn opening_texts(&self) -> Vec<&'static str> {
        self.format.notation().openings.iter().copied().filter(|text| self.control_id(text).is_none()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::CallFormat;

    /// The parts of the families' templates that show the format.
    #[test]
    fn a_format_is_recognized_by_its_template() {
        let granite_4 = "{%- set suffix = 'For each tool call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\\n</tool_call>.' %}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{{- '<|start_of_role|>system<|end_of_role|>' }}";
        for (format, template) in [
            (Some(CallFormat::Hermes), granite_4),
            (
                Some(CallFormat::Qwen3Coder),
                "{% for tool in tools %}{% endfor %}<tool_call>\\n<function=example>\\n<parameter=a>\\nvalue\\n</parameter>",
            ),
            (
                Some(CallFormat::Glm45),
                "{% for tool in tools %}{% endfor %}<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n</tool_call>",
            ),
            (
                Some(CallFormat::Glm47),
                "{% for tool in tools %}{% endfor %}<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value></tool_call>",
            ),
            (Some(CallFormat::Mistral), "[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS]{{ '[TOOL_CALLS] [' }}"),
            (Some(CallFormat::MistralArgs), "{{ tools }}[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}"),
            (
                Some(CallFormat::Llama),
                "{{ tools }}Respond in the format {\"name\": function name, \"parameters\": dictionary}.<|start_header_id|>ipython",
            ),
            (
                Some(CallFormat::Granite3),
                "{%- elif tools %}When a tool is required to answer the user's query, respond only with <|tool_call|> followed by a JSON list of tools used.{% endif %}{{- '<|start_of_role|>system<|end_of_role|>' }}",
            ),
            // Phi-4-mini.
            (None, "{{ tools }}<|tool_call|>[{{ calls }}]<|/tool_call|><|end|>"),
            (
                Some(CallFormat::Nemotron2),
                "{%- if tools -%}{{- '<AVAILABLE_TOOLS>[' -}}{{- '<TOOLCALL>[{{\"name\": \"tool_name1\", \"arguments\": \"tool_args1\"}}]</TOOLCALL>' -}}{%- endif -%}",
            ),
            // LFM2, and LFM2.5 in two versions.
            (
                Some(CallFormat::Lfm2),
                "{{- \"<|im_start|>system\\n\" + \"List of tools: <|tool_list_start|>[\" -}}{%- for tool in tools -%}{%- endfor -%}",
            ),
            (
                Some(CallFormat::Lfm2),
                "{%- for tool in tools -%}{%- endfor -%}{{- \"<|im_start|>system\\nList of tools: [\" -}}",
            ),
            (
                Some(CallFormat::Lfm2),
                "{{- \"<|tool_call_start|>[\" + (tool_calls | join(\", \")) + \"]<|tool_call_end|>\" -}}{{ (tools | tojson) }}",
            ),
            (
                Some(CallFormat::Harmony),
                "{{ tools }}{{- \"<|start|>assistant<|channel|>final<|message|>\" + message.content + \"<|end|>\" }}",
            ),
            (
                Some(CallFormat::Gemma4),
                "{{ tools }}{{- '<|tool_call>call:' + function['name'] + '{' -}}{{- '<|\"|>' + argument + '<|\"|>' -}}",
            ),
            (None, "{{ tools }}"),
            (None, "{{ messages }}<tool_call>"),
        ] {
            assert_eq!(CallFormat::detect(template), format, "{template}");
        }
    }
}
