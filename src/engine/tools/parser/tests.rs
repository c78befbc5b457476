use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::{CallParser, Parsed};
use crate::engine::tools::{Format, Syntax, Tool};

fn parser(format: Format, at_once: bool) -> CallParser {
    let tool = |name: &str| Tool { name: name.to_owned(), definition: json!({}) };
    let callable = vec![(0, tool("a")), (1, tool("ab"))];
    CallParser::new(Arc::new(Syntax { format, marks: Vec::new(), callable, at_once, several: true }))
}

/// The text, and each call's name and arguments.
fn run(format: Format, at_once: bool, text: &str, cut: usize) -> (String, Vec<(String, String)>) {
    let (mut parser, mut shown, mut calls) = (parser(format, at_once), String::new(), Vec::new());
    let letters: Vec<char> = text.chars().collect();
    for part in letters.chunks(cut) {
        let Parsed { text, calls: pieces } = parser.push(0, &part.iter().collect::<String>());
        shown += &text;
        for piece in pieces {
            match piece.name {
                Some(name) => calls.push((name, piece.arguments)),
                None => calls[piece.index as usize].1 += &piece.arguments,
            }
        }
    }
    (shown + &parser.finish(), calls)
}

fn call(name: &str, arguments: &str) -> (String, String) {
    (name.to_owned(), arguments.to_owned())
}

const TRICKY: &str = r#"{"x": "}</tool_call>\"{[", "y": [{}, {"z": "<tool_call>"}]}"#;

#[test]
fn calls_are_found_however_the_text_is_cut() {
    let hermes = format!(
        "Let me <tool see.\n<tool_call>\n{{\"name\": \"ab\", \"arguments\": {TRICKY}}}\n</tool_call>\n<tool_call>\n{{\"name\": \"a\", \"arguments\": {{}}}}\n</tool_call>"
    );
    let mistral = format!(
        "[TOOL_CALLS] [{{\"name\": \"ab\", \"arguments\": {TRICKY}}}, {{\"name\": \"a\", \"arguments\": {{}}}}]"
    );
    let llama = format!(" {{\"name\": \"ab\", \"parameters\": {TRICKY}}}");
    for cut in 1..30 {
        let both = vec![call("ab", TRICKY), call("a", "{}")];
        assert_eq!(run(Format::Hermes, false, &hermes, cut), ("Let me <tool see.\n".to_owned(), both.clone()));
        assert_eq!(run(Format::Mistral, false, &mistral, cut), (String::new(), both.clone()));
        assert_eq!(run(Format::Mistral, true, &mistral, cut).1, both);
        assert_eq!(run(Format::Llama, false, &llama, cut), (String::new(), vec![call("ab", TRICKY)]));
    }
}

#[test]
fn what_only_looks_like_a_call_is_text() {
    for text in ["", "<tool_", "a <tool_call", "[TOOL_CALL", "{\"nam", "{\"no\": 1}", " {", "x{\"name\": \"a\"}"] {
        for format in [Format::Hermes, Format::Mistral, Format::Llama] {
            assert_eq!(run(format, false, text, 1), (text.to_owned(), Vec::new()));
        }
    }
}

proptest! {
    #[test]
    fn text_without_an_opening_is_passed_on(text in "[<tol_ca{\" >]{0,20}", cut in 1usize..4) {
        prop_assume!(!text.contains("<tool_call>"));
        prop_assert_eq!(run(Format::Hermes, false, &text, cut).0, text);
    }
}
