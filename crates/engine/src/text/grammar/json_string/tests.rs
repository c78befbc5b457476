//! Tests which arguments the grammars of custom tools' inputs accept.

use serde_json::Value;

use super::super::tests::accepted_text;
use super::arguments;
use crate::text::tools::{InputFormat, TextFormat};

/// Whether a call with this input is accepted.
fn accepts(format: &InputFormat, input: &str) -> bool {
    let arguments = format!("{{\"input\": {}}}", Value::from(input));
    accepts_arguments(format, &arguments)
}

fn accepts_arguments(format: &InputFormat, text: &str) -> bool {
    let lark = arguments(format).unwrap();
    accepted_text(TextFormat::Lark(lark), text) == (text.len(), true)
}

fn check(format: &InputFormat, right: &[&str], wrong: &[&str]) {
    for input in right {
        assert!(accepts(format, input), "{format:?} {input:?} {}", arguments(format).unwrap());
    }
    for input in wrong {
        assert!(!accepts(format, input), "{format:?} {input:?}");
    }
}

fn lark(grammar: &str) -> InputFormat {
    InputFormat::Lark(grammar.to_owned())
}

#[test]
fn text_is_any_string_in_its_usual_form() {
    check(&InputFormat::Text, &["", "a", "é漢😀 \"x\"\\ \n\t\r\u{8}\u{c}\u{0}\u{1f}\u{7f}/"], &[]);
    for (text, accepted) in [
        (r#"{"input": "a\/b"}"#, false),
        (r#"{"input": "\u00e9"}"#, false),
        (r#"{"input": "\u000a"}"#, false),
        ("{\"input\": \"\n\"}", false),
        (r#"{"input": "\"}"#, false),
        (r#"{"input":"a"}"#, false),
        (r#"{"input": "a", "b": 1}"#, false),
        (r#"{"input": "a\u001f"}"#, true),
    ] {
        assert_eq!(accepts_arguments(&InputFormat::Text, text), accepted, "{text}");
    }
}

#[test]
fn regular_expressions_match_the_unescaped_text_as_a_whole() {
    for (regex, right, wrong) in [
        (r"^a+$", &["a", "aa"][..], &["", "b", "a\n"][..]),
        (r#""[^"\\]*""#, &["\"\"", "\"é\n😀\""], &["\"", "\"\\\"", "\"\"\""]),
        (r"\\\\", &["\\\\"], &["\\", "\\\\\\"]),
        (r".", &["a", "\"", "\\", "\t", "\u{1}", "漢"], &["\n", "", "ab"]),
        (r"(?s).", &["\n"], &["", "\n\n"]),
        (r"[^a-z]+", &["A\n\"\\é", "\u{0}"], &["a", "Aa", ""]),
        (r"(?i)straße\n", &["STRAßE\n", "Straße\n"], &["straße"]),
        (r"\d{2,3}\s(x|y)*?", &["12 ", "123\txyx", "12\n"], &["1 ", "1234 "]),
        (r"(\r?\n)+", &["\n", "\r\n\n"], &["\r", ""]),
        ("\u{0}|\u{1f}|\u{7f}", &["\u{0}", "\u{1f}", "\u{7f}"], &["\u{1}", ""]),
        (r"[\x00-\x09]x?", &["\u{0}", "\tx"], &["\n", "x"]),
        (r"", &[""], &["a"]),
    ] {
        check(&InputFormat::Regex(regex.to_owned()), right, wrong);
    }
}

/// The escape that follows a terminal may also continue it, until its second byte.
#[test]
fn escapes_after_terminals_are_found() {
    check(&lark("start: line+\nline: /(.*)/ LF\n%import common.LF"), &["\n", "a\n", "a\tb\\\"\n\n"], &["", "a"]);
    check(&lark("start: /[a-z\\t]*/ /[\\n\"]/ \"x\"?"), &["\n", "a\t\n", "a\"x", "\t\"x"], &["a", "a\n\n", "\t"]);
    check(
        &lark("start: A B C?\nA: /[a\\t]*/\nB: /\\n*/\nC: \"\\\\\""),
        &["", "a", "\t\n\n", "a\n\\", "\\"],
        &["\na", "b"],
    );
    check(&lark("start: (A | \"\\n\" A)+\nA: \"a\" | \"\\t\""), &["a", "\na", "a\n\t\t\na"], &["\n", "a\n"]);
    check(&lark("start: pair{2,3}\npair: \"\\n\" | /[ab]/"), &["\n\n", "a\nb", "\nab"], &["\n", "ab\n\n", ""]);
    check(&lark("start: (\"\\n\" /[a\\t]+/){2,}"), &["\na\n\t", "\na\na\na"], &["\na", "a\na"]);
    check(&lark("start: \"\\t\" start \"\\n\" | \"\"\n"), &["", "\t\n", "\t\t\n\n"], &["\t", "\t\n\n"]);
    check(
        &lark("start: [\"\\n\"] \"\\\"\"~2..3 (\"a\" |\n \"\\\\\")?"),
        &["\"\"", "\n\"\"\"a", "\"\"\\"],
        &["\"", "\n"],
    );
}

#[test]
fn ignored_terminals_follow_others() {
    let list = "start: \"[\" (item (\",\" item)*)? \"]\"\nitem: ESCAPED_STRING | start\n\
        %import common (ESCAPED_STRING, WS)\n%ignore WS\n%ignore /#[^\\n]*\\n/";
    check(
        &lark(list),
        &["[]", "[ \"a\\\"b\" ,\n\t[\"c\"]\r\n]\n", "[ # one\n\n# two\n\"\"]"],
        &["", " []", "[\"a\" \"b\"]", "[\"]", "[#]"],
    );
}

#[test]
fn terminals_may_be_combined() {
    let words = "start: WORD (\" \" WORD)*\nWORD: /[a-z\"]+/ & ~/if|else/\n";
    check(&lark(words), &["iff", "a \"b\"", "els \"if"], &["if", "a else"]);
    let comment = "start: \"/*\" BODY \"*/\"\nBODY: /(?s:.*)/ & ~(/(?s:.*)/ \"*\" /(?s:.*)/)";
    check(&lark(comment), &["/**/", "/* \n\"\\ */"], &["/* * */", "/*"]);
    check(&lark("start: DIGIT+ \"a\"..\"c\" \"Ö\"i\n%import common.INT -> DIGIT"), &["12aö", "1cÖ"], &["ab", "1d"]);
    check(&lark("?start: x -> y\n!x: \"a\" // comment\n\n  | B # another\nB: \"b\"i"), &["a", "b", "B"], &["A"]);
}

/// The format of patches to files that coding models write.
pub const PATCH: &str = include_str!("../../../../../../tests/fixtures/apply_patch.lark");

#[test]
fn patches_are_accepted() {
    let update = "*** Begin Patch\n*** Update File: src/a b.rs\n*** Move to: src/c.rs\n@@ fn main()\n \n-\tprintln!(\"a\\n\");\n+    let x = 'é';\n*** End of File\n*** End Patch";
    let several = "*** Begin Patch\n*** Add File: a\n+\n+b\n*** Delete File: c\n*** Update File: d\n@@\n-a\n+b\n@@ class B\n c\n*** End Patch\n";
    let broken = [
        "*** Begin Patch\n*** End Patch",
        "*** Begin Patch\n*** Add File: a\nb\n*** End Patch",
        "*** Begin Patch\n*** Add File: \n+b\n*** End Patch",
        "*** Begin Patch\n*** Delete File: a\n",
        "*** Begin Patch\n*** Update File: a\n*** End Patch\nmore",
    ];
    check(&lark(PATCH), &[update, several], &broken);
}

#[test]
fn what_is_wrong_is_named() {
    for (grammar, problem) in [
        ("", "has no rule 'start'"),
        ("begin: \"a\"", "has no rule 'start'"),
        ("start: \"a\"\nstart: \"b\"", "defines 'start' twice (line 2)"),
        ("start: other", "uses the undefined rule 'other' (line 1)"),
        ("start: \"a\"\n  | OTHER", "uses the undefined terminal 'OTHER' (line 2)"),
        ("start: A\nA: \"a\" B\nB: A", "has the terminal 'A', which is part of itself (line 3)"),
        ("start: A\nA: start", "uses the rule 'start' in a terminal (line 2)"),
        ("start: start \"a\"", "matches no text"),
        (
            "start: \"a\" & \"b\"",
            "has '&' in a rule, which only terminals can have; their names are in upper case (line 1)",
        ),
        ("start \"a\"", "has no ':' after the name 'start' (line 1)"),
        ("start[capture]: \"a\"", "has attributes ([…]), which are not supported (line 1)"),
        ("start.2: \"a\"", "has a priority, which is not supported (line 1)"),
        ("start{x}: \"a\"", "has parameters, which are not supported (line 1)"),
        ("start: a{b}", "has parameters, which are not supported (line 1)"),
        ("start: (\"a\"", "has no ')' where it should be (line 1)"),
        ("start: \"a\")", "has an unexpected ')' (line 1)"),
        ("start: \"a", "has no closing \" for the \" that opens a text or a regular expression (line 1)"),
        ("start: \"\\q\"", "has an unknown escape in a text. The escapes are those of JSON, and \\x41 (line 1)"),
        ("start: /(a/", "has a regular expression that is invalid: unclosed group (line 1)"),
        (
            "start: /a(?=b)/",
            "has a regular expression that is invalid: look-around, including look-ahead and look-behind, is not supported (line 1)",
        ),
        ("start: \"a\"{3,2}", "has a repetition whose maximum is below its minimum (line 1)"),
        ("start: \"a\"{1,2000}", "has a repetition above 1000 (line 1)"),
        ("start: \"a\"*?", "has two repetitions in a row; put the first one in parentheses (line 1)"),
        ("start: \"b\"..\"a\"", "has a range whose ends are not two ascending characters (line 1)"),
        ("start: <think>", "has a special token (<…>), which is not supported (line 1)"),
        ("start: @other", "has a reference to another grammar (@…), which is not supported (line 1)"),
        ("start: %json {}", "has %json, which is not supported there (line 1)"),
        ("%import python.NAME\nstart: \"a\"", "imports from another grammar than 'common' (line 1)"),
        ("%import common.NOPE", "imports the unknown terminal 'common.NOPE' (line 1)"),
        ("%declare A", "has %declare; only %ignore and %import are supported (line 1)"),
        ("start: \"a\" -> \"b\"", "has no name after '->' (line 1)"),
        ("= a", "has a line that does not begin with a name; a rule is 'name: …' (line 1)"),
    ] {
        assert_eq!(arguments(&lark(grammar)).unwrap_err(), problem, "{grammar}");
    }
    let deep = format!("start: {}\"a\"{}", "(".repeat(100), ")".repeat(100));
    assert_eq!(arguments(&lark(&deep)).unwrap_err(), "has more than 12 nested parentheses (line 1)");
    let deep = format!("start: A\nA: {}\"a\"", "~".repeat(60_000));
    assert_eq!(arguments(&lark(&deep)).unwrap_err(), "has more than 12 nested parentheses (line 2)");
    let nested = format!("start: {}\"a\" \"\\n\"{}", "(".repeat(12), "+)".repeat(12));
    check(&lark(&nested), &["a\n", "a\na\n"], &["a"]);
    let large =
        format!("start: A0\n{}A30: \"a\"", (0..30).map(|at| format!("A{at}: A{0} A{0}\n", at + 1)).collect::<String>());
    assert_eq!(arguments(&lark(&large)).unwrap_err(), "is too complex. Simplify its terminals");
    let regex = |regex: &str| arguments(&InputFormat::Regex(regex.to_owned())).unwrap_err();
    assert!(regex("(").starts_with("is invalid: unclosed group"));
    assert_eq!(regex("a$b"), "has '^', '$' or '\\b' inside; the text always matches as a whole, so leave them out");
    assert!(regex(&"a".repeat(70_000)).starts_with("has 70000 bytes"));
}
