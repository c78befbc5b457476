use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::{CallParser, Parsed};
use crate::text::tools::{CallFormat, CallSyntax, Tool};

fn parser(format: CallFormat, call_required: bool) -> CallParser {
    let parameters = json!({ "properties": { "x": { "type": "string" }, "y": { "type": "array" } } });
    let definition = json!({ "function": { "parameters": parameters } });
    let tool = |name: &str| Tool { name: name.to_owned(), definition: definition.clone(), strict: false, input: None };
    let callable = vec![(0, tool("a")), (1, tool("ab"))];
    let bare = !call_required && format.notation().allows_bare_calls();
    CallParser::new(Arc::new(CallSyntax {
        format,
        control_tokens: Vec::new(),
        callable,
        call_required,
        free_text: !call_required,
        bare,
        parallel: true,
    }))
}

/// The text, and each call's name and arguments.
fn run(format: CallFormat, call_required: bool, text: &str, cut: usize) -> (String, Vec<(String, String)>) {
    let (mut parser, mut output, mut calls) = (parser(format, call_required), String::new(), Vec::new());
    let chars: Vec<char> = text.chars().collect();
    for part in chars.chunks(cut) {
        let Parsed { text, calls: pieces, .. } = parser.push(0, &part.iter().collect::<String>());
        output += &text;
        for delta in pieces {
            match delta.name {
                Some(name) => calls.push((name, delta.arguments)),
                None => calls[delta.index as usize].1 += &delta.arguments,
            }
        }
    }
    (output + &parser.finish(), calls)
}

fn call(name: &str, arguments: &str) -> (String, String) {
    (name.to_owned(), arguments.to_owned())
}

const TRICKY: &str = r#"{"x": "}</tool_call>\"{[", "y": [{}, {"z": "<tool_call>"}]}"#;

#[test]
fn calls_are_found_with_any_chunking() {
    let hermes = format!(
        "Let me <tool see.\n<tool_call>\n{{\"name\": \"ab\", \"arguments\": {TRICKY}}}\n</tool_call>\n<tool_call>\n{{\"name\": \"a\", \"arguments\": {{}}}}\n</tool_call>"
    );
    let mistral = format!(
        "[TOOL_CALLS] [{{\"name\": \"ab\", \"arguments\": {TRICKY}}}, {{\"name\": \"a\", \"arguments\": {{}}}}]"
    );
    let tagged = "See.\n<tool_call>\n<function=ab>\n<parameter=x>\n}</tool_call>\"{[\n</parameter>\n<parameter=y>\n[{}, {\"z\": \"<tool_call>\"}]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=a>\n</function>\n</tool_call>";
    let glm = |line: &str| {
        let key =
            |name: &str, value: &str| format!("<arg_key>{name}</arg_key>{line}<arg_value>{value}</arg_value>{line}");
        let arguments = key("x", "}</tool_call>\"{[") + &key("y", "[{}, {\"z\": \"<tool_call>\"}]");
        format!("See.\n<tool_call>ab{line}{arguments}</tool_call>{line}<tool_call>a{line}</tool_call>")
    };
    let llama = format!(" {{\"name\": \"ab\", \"parameters\": {TRICKY}}}");
    let list = |before: &str, after: &str| mistral.replace("[TOOL_CALLS] ", before) + after;
    let python =
        "See.<|tool_call_start|>[ab(x='}</tool_call>\"{[', y=[{}, {\"z\": \"<tool_call>\"},]), a()]<|tool_call_end|>";
    for cut in 1..30 {
        let both = vec![call("ab", TRICKY), call("a", "{}")];
        assert_eq!(run(CallFormat::Hermes, false, &hermes, cut), ("Let me <tool see.\n".to_owned(), both.clone()));
        assert_eq!(run(CallFormat::Mistral, false, &mistral, cut), (String::new(), both.clone()));
        assert_eq!(run(CallFormat::Qwen3Coder, false, tagged, cut), ("See.\n".to_owned(), both.clone()));
        assert_eq!(run(CallFormat::Glm45, false, &glm("\n"), cut), ("See.\n".to_owned(), both.clone()));
        assert_eq!(run(CallFormat::Glm47, false, &glm(""), cut), ("See.\n".to_owned(), both.clone()));
        assert_eq!(run(CallFormat::Mistral, true, &mistral, cut).1, both);
        for (format, before, after) in [
            (CallFormat::Granite3, "Text <|tool_call<|tool_call|>", ""),
            (CallFormat::Granite3, "Text <|tool_call<tool_call>", ""),
            (CallFormat::Nemotron2, "Text <|tool_call<TOOLCALL>", "</TOOLCALL>"),
        ] {
            let expected = ("Text <|tool_call".to_owned(), both.clone());
            assert_eq!(run(format, false, &list(before, after), cut), expected);
        }
        let args = format!("See.[TOOL_CALLS]ab[ARGS]{TRICKY}[TOOL_CALLS]a[CALL_ID]0aB345678[ARGS]{{}}");
        assert_eq!(run(CallFormat::MistralArgs, false, &args, cut), ("See.".to_owned(), both.clone()));
        assert_eq!(run(CallFormat::Lfm2, false, python, cut), ("See.".to_owned(), both.clone()));
        assert_eq!(run(CallFormat::Llama, false, &llama, cut), (String::new(), vec![call("ab", TRICKY)]));
    }
}

#[test]
fn calls_without_an_opening_are_found_with_any_chunking() {
    for (lead, blank, end) in
        [("", "", "}"), (" ```json\n", " ", "}\n```"), ("```\r\n", "\n\t", "\n}\n"), ("{", " ", "}}")]
    {
        let written = |name: &str, arguments: &str| {
            format!("{lead}{{{blank}\"name\":{blank}\"{name}\",{blank}\"parameters\":{blank}{arguments}{end}")
        };
        let (one, two) = (written("ab", TRICKY), format!("{}\n{}Done", written("ab", TRICKY), written("a", "{}")));
        for cut in 1..30 {
            for format in [CallFormat::Hermes, CallFormat::Mistral] {
                assert_eq!(run(format, false, &one, cut), (String::new(), vec![call("ab", TRICKY)]));
                // The second brace of a double one is left over and is no call.
                let second = (lead != "{").then(|| call("a", "{}"));
                let all = [call("ab", TRICKY)].into_iter().chain(second).collect();
                assert_eq!(run(format, false, &two, cut), (String::new(), all));
            }
        }
    }
}

#[test]
fn generation_ends_when_other_text_follows_the_last_call() {
    let mut parser = parser(CallFormat::Hermes, false);
    let ends: Vec<bool> = ["{\"name\": \"a\", \"arguments\": ", "{}", "}", "\n```", "\n\n", "Now"]
        .map(|part| parser.push(0, part).done)
        .to_vec();
    assert_eq!(ends, [false, false, false, false, false, true]);
    assert_eq!((parser.push(0, "x"), parser.finish()), (Parsed { done: true, ..Parsed::default() }, String::new()));
}

#[test]
fn text_that_only_resembles_a_call_is_text() {
    let bare = [
        "```json\n{\"name\": \"b\", \"arguments\": {}}\n```",
        "``",
        "```\n\n",
        "{\"name\":\"a\",\"x",
        "{\"name\": \"a b\", \"arguments\": {}}",
    ];
    let marked = [
        "",
        "<tool_",
        "a <tool_call",
        "<|tool_call_start|",
        "[TOOL_CALL",
        "[a(x=1)]",
        "{\"nam",
        "{\"no\": 1}",
        " {",
        "x{\"name\": \"a\"}",
    ];
    for format in [
        CallFormat::Hermes,
        CallFormat::Mistral,
        CallFormat::Llama,
        CallFormat::Granite3,
        CallFormat::Nemotron2,
        CallFormat::Lfm2,
    ] {
        let bare = bare.iter().filter(|_| format != CallFormat::Llama);
        for text in marked.iter().chain(bare) {
            assert_eq!(run(format, false, text, 1), ((*text).to_owned(), Vec::new()));
        }
    }
}

/// Its openings are control tokens, whose text the parser does not get.
#[test]
fn an_opening_that_is_a_control_token_begins_calls_and_its_text_does_not() {
    for (format, opening, other, call_text) in [
        (CallFormat::Granite3, "<|tool_call|>", Some("<tool_call>"), "[{\"name\": \"a\", \"arguments\": {}}]"),
        (CallFormat::Lfm2, "<|tool_call_start|>", None, "[a()]"),
    ] {
        let new = || {
            let CallParser { syntax, .. } = parser(format, false);
            let control_tokens = vec![(opening, 7)];
            CallParser::new(Arc::new(CallSyntax { control_tokens, bare: false, ..Arc::unwrap_or_clone(syntax) }))
        };
        let mut parser = new();
        assert_eq!(parser.push(1, &format!("Text {opening} ")).text, format!("Text {opening} "));
        assert_eq!(parser.push(7, ""), Parsed::default());
        assert_eq!(parser.push(1, call_text).calls[0].name.as_deref(), Some("a"));
        let Some(other) = other else { continue };
        assert_eq!(new().push(1, &format!("Text {other}{call_text}")).calls.len(), 2);
    }
}

/// Its markers between a name and its arguments are control tokens, too.
#[test]
fn markers_within_a_call_may_be_control_tokens() {
    let CallParser { syntax, .. } = parser(CallFormat::MistralArgs, false);
    let control_tokens = vec![("[TOOL_CALLS]", 7), ("[ARGS]", 8), ("[CALL_ID]", 9)];
    let syntax = Arc::new(CallSyntax { control_tokens, bare: false, ..Arc::unwrap_or_clone(syntax) });
    let mut parser = CallParser::new(syntax);
    let mut found = Vec::new();
    for (id, text) in [
        (7, ""),
        (1, "a"),
        (1, "b"),
        (8, ""),
        (1, "{}"),
        (7, ""),
        (1, "a"),
        (9, ""),
        (1, "012345678"),
        (8, ""),
        (1, "{}"),
    ] {
        found.extend(parser.push(id, text).calls.into_iter().map(|delta| (delta.index, delta.name, delta.arguments)));
    }
    let begin = |index: u32, name: &str| (index, Some(name.to_owned()), String::new());
    let more = |index: u32| (index, None, "{}".to_owned());
    assert_eq!(found, [begin(0, "ab"), more(0), begin(1, "a"), more(1)]);
}

#[test]
fn a_name_that_is_the_end_of_another_one_is_not_called() {
    let mut syntax = Arc::unwrap_or_clone(parser(CallFormat::Lfm2, true).syntax);
    syntax.callable[0].1.name = "b".to_owned();
    let mut parser = CallParser::new(Arc::new(syntax));
    let names = |parsed: Parsed| parsed.calls.into_iter().filter_map(|delta| delta.name).collect::<Vec<_>>();
    assert_eq!(names(parser.push(0, "[ab(x=1), b(x=2)]")), ["ab", "b"]);
}

proptest! {
    #[test]
    fn text_without_an_opening_is_passed_on(text in "[`\n<tol_ca{\" >]{0,20}", cut in 1usize..4) {
        prop_assume!(!text.contains("<tool_call>"));
        prop_assert_eq!(run(CallFormat::Hermes, false, &text, cut).0, text);
    }
}
