//! The grammar of a turn in [harmony](crate::text::harmony): it governs all messages of the turn, and leaves reasoning free.
//!
//! It begins after the role of the first message, where templates end the prompt. The recipient of a call may stand after the
//! role or after the channel.

use std::fmt::Write;

use super::regex_escape::quote;
use crate::text::tools::CallSyntax;
use crate::tokenizer::harmony::{CHANNEL, CONSTRAIN, END, MESSAGE, START};

/// Lark rules of a turn. `arguments`: the expression of each callable tool's arguments. `max_calls`: the most calls of a turn.
pub(super) fn lark(syntax: &CallSyntax, arguments: &[String], max_calls: usize) -> String {
    let marker = |text: &str| syntax.control_id(text).map(|id| format!("<[{id}]>")).unwrap_or_default();
    let [start, channel, constrain, message, end] = [START, CHANNEL, CONSTRAIN, MESSAGE, END].map(marker);
    let text = if syntax.free_text { "TEXT" } else { "@text" };
    let mut out = String::from("%llguidance {}\n");
    let mut rule = |name: &str, body: &str| {
        let _ = writeln!(out, "{name}: {body}");
    };
    let answer = match (syntax.call_required, syntax.callable.is_empty()) {
        (true, _) => "calls",
        (false, true) => "final",
        (false, false) => "final | calls",
    };
    rule("start", &format!("({start} \"assistant\")? (thought {end} {start} \"assistant\")* ({answer})"));
    // A text before the calls need not have the format of the answer, and would not.
    let has_preambles = !syntax.callable.is_empty() && (syntax.free_text || syntax.call_required);
    let channels = if has_preambles { "(\"analysis\" | \"commentary\")" } else { "\"analysis\"" };
    rule("thought", &format!("{channel} {channels} {message} TEXT"));
    if !syntax.call_required {
        rule("final", &format!("{channel} \"final\" type? {message} {text}"));
    }
    rule("type", &format!("\" \"? {constrain} \"json\" | \" json\""));
    if !syntax.callable.is_empty() {
        let several = match syntax.parallel {
            true => format!(" ({end} {start} \"assistant\" call){{0,{}}}", max_calls - 1),
            false => String::new(),
        };
        rule("calls", &format!("call{several}"));
        let names: Vec<String> = syntax.callable.iter().map(|(index, _)| format!("call_{index}")).collect();
        rule("call", &names.join(" | "));
        rule("calling", &format!("{channel} (\"commentary\" | \"analysis\")"));
        rule("call_type", &format!("type | \" \"? {constrain} \"code\" | \" code\" | \" \""));
        for ((index, tool), arguments) in syntax.callable.iter().zip(arguments) {
            let to = quote(&format!(" to=functions.{}", tool.name));
            rule(&format!("call_{index}"), &format!("({to} calling | calling {to}) call_type? {message} {arguments}"));
        }
    }
    out.push_str("TEXT: /(?s:.*)/\n");
    out
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, LazyLock};

    use llguidance::{Matcher, ParserFactory};
    use serde_json::json;
    use toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};

    use crate::text::grammar::{factory, parse, source};
    use crate::text::tools::{CallFormat, CallSyntax, OutputSpec, TextFormat, Tool};
    use crate::tokenizer::harmony::{CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START};

    /// The markers follow the tokens of single bytes. The last two end generation.
    const MARKERS: [&str; 7] = [START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN];

    static FACTORY: LazyLock<ParserFactory> = LazyLock::new(|| {
        let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
        let markers = MARKERS.map(|marker| [&[TokTrie::SPECIAL_TOKEN_MARKER], marker.as_bytes()].concat());
        let words: Vec<Vec<u8>> = bytes.chain(markers).collect();
        let trie = TokTrie::from(&TokRxInfo::new(263, 261), &words).with_eos_tokens(&[261, 262]);
        let environment: toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        factory(&environment).unwrap()
    });

    struct Format {
        call_required: bool,
        parallel: bool,
        tools: &'static [&'static str],
        text: TextFormat,
    }

    fn matcher(Format { call_required, parallel, tools, text }: &Format) -> Matcher {
        let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } },
            "required": ["city"], "additionalProperties": false });
        let tool = |name: &&str| Tool {
            name: (*name).to_owned(),
            definition: json!({ "type": "function", "function": { "name": name, "parameters": parameters } }),
            strict: true,
            input: None,
        };
        let tools: Vec<Tool> = tools.iter().map(tool).collect();
        let syntax = CallSyntax {
            format: CallFormat::Harmony,
            control_tokens: MARKERS.into_iter().zip(256..).collect(),
            callable: tools.iter().cloned().enumerate().collect(),
            call_required: *call_required,
            free_text: !call_required && *text == TextFormat::Free,
            bare: false,
            parallel: *parallel,
        };
        let spec = OutputSpec { tools: tools.into(), text: text.clone(), ..OutputSpec::default() };
        parse(&FACTORY, &source::build(&spec, Some(&syntax)).unwrap(), None).unwrap()
    }

    /// How much of a text is accepted, and whether the output may end after it.
    fn accepted<'a>(format: &Format, text: &'a str) -> (&'a str, bool) {
        let (mut matcher, mut at) = (matcher(format), 0);
        let allows = |matcher: &mut Matcher, token: u32| matcher.compute_mask_or_eos().unwrap().is_allowed(token);
        while at < text.len() {
            let marker = MARKERS.iter().zip(256..).find(|(marker, _)| text[at..].starts_with(**marker));
            let (token, size) = marker.map_or((u32::from(text.as_bytes()[at]), 1), |(marker, id)| (id, marker.len()));
            if !allows(&mut matcher, token) {
                return (&text[..at], false);
            }
            matcher.consume_token(token).unwrap();
            at += size;
        }
        (text, allows(&mut matcher, 262))
    }

    fn is_whole(format: &Format, text: &str) -> bool {
        accepted(format, text) == (text, true)
    }

    const TOOLS: &[&str] = &["get", "get_weather"];
    const HM: &str = "<|channel|>analysis<|message|>Hm {\"<\"}<|end|><|start|>assistant";
    const ARGUMENTS: &str = "{\"city\": \"Rome\"}";

    #[test]
    fn a_schema_applies_to_the_final_channel_only() {
        let text =
            TextFormat::Schema { schema: json!({ "type": "array", "items": { "type": "integer" } }), strict: true };
        let format = Format { call_required: false, parallel: true, tools: &[], text };
        for text in [
            "<|channel|>final<|message|>[1]",
            "<|channel|>final <|constrain|>json<|message|>[1]",
            &format!("{HM}<|channel|>final<|message|>[1, 2]"),
            &format!("{HM}{HM}<|channel|>final json<|message|>[]"),
            "<|start|>assistant<|channel|>final<|message|>[]",
        ] {
            assert!(is_whole(&format, text), "{:?}", accepted(&format, text));
        }
        for (text, whole) in [
            ("<|channel|>final<|message|>", "{"),
            ("<|channel|>analysis<|message|>Hm", "<|return|>"),
            ("", "[1]"),
            ("<|channel|>", "other"),
            ("<|channel|>", "commentary<|message|>So<|end|><|start|>assistant<|channel|>final<|message|>[]"),
            ("<|channel|>final<|message|>[1]", "<|end|>"),
        ] {
            assert_eq!(accepted(&format, &format!("{text}{whole}")), (text, false));
        }
    }

    #[test]
    fn calls_match_their_schema_and_name_a_tool() {
        let format = |call_required, parallel| Format { call_required, parallel, tools: TOOLS, text: TextFormat::Free };
        let calls = [
            "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
            "<|channel|>commentary to=functions.get<|constrain|>json<|message|>",
            "<|channel|>commentary to=functions.get <|message|>",
            "<|channel|>analysis to=functions.get code<|message|>",
            " to=functions.get_weather<|channel|>commentary json<|message|>",
            " to=functions.get<|channel|>commentary<|message|>",
        ];
        for head in calls {
            for call_required in [false, true] {
                for text in [format!("{head}{ARGUMENTS}"), format!("{HM}{head}{ARGUMENTS}")] {
                    assert!(
                        is_whole(&format(call_required, false), &text),
                        "{:?}",
                        accepted(&format(call_required, false), &text)
                    );
                    let two = format!("{text}<|end|><|start|>assistant{head}{ARGUMENTS}");
                    assert!(is_whole(&format(call_required, true), &two), "{two}");
                    assert_eq!(accepted(&format(call_required, false), &two), (text.as_str(), false));
                }
                let refused = accepted(&format(call_required, true), &format!("{head}{{\"town\"")).0.to_owned();
                assert!(refused.starts_with(head), "{refused}");
            }
        }
        let preamble = "<|channel|>commentary<|message|>So<|end|><|start|>assistant";
        assert!(is_whole(&format(true, true), &format!("{HM}{preamble}{}{ARGUMENTS}", calls[0])));
        let answer = format!("{HM}<|channel|>final<|message|>Any <text>");
        assert!(is_whole(&format(false, true), &answer));
        assert_eq!(accepted(&format(true, true), &answer).0, format!("{HM}<|channel|>"));
        let other = "<|channel|>commentary to=functions.g";
        assert_eq!(accepted(&format(false, true), &format!("{other}o")).0, other);
    }
}
