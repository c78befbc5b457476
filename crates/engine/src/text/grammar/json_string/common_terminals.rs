//! The terminals of Lark's grammar `common`, which other grammars import.

/// The regular expression of a terminal.
pub fn regex(name: &str) -> Option<&'static str> {
    Some(match name {
        "DIGIT" => "[0-9]",
        "HEXDIGIT" => "[0-9a-fA-F]",
        "INT" => "[0-9]+",
        "SIGNED_INT" => "[+-]?[0-9]+",
        "DECIMAL" => r"[0-9]+\.[0-9]*|\.[0-9]+",
        "FLOAT" => r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
        "SIGNED_FLOAT" => r"[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
        "NUMBER" => r"[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
        "SIGNED_NUMBER" => r"[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
        "ESCAPED_STRING" => r#""([^"\\\n]|\\.)*""#,
        "LCASE_LETTER" => "[a-z]",
        "UCASE_LETTER" => "[A-Z]",
        "LETTER" => "[A-Za-z]",
        "WORD" => "[A-Za-z]+",
        "CNAME" => "[_A-Za-z][_A-Za-z0-9]*",
        "WS_INLINE" => r"[ \t]+",
        "WS" => r"[ \t\f\r\n]+",
        "CR" => r"\r",
        "LF" => r"\n",
        "NEWLINE" => r"(\r?\n)+",
        "SH_COMMENT" => r"#[^\n]*",
        "CPP_COMMENT" => r"//[^\n]*",
        "SQL_COMMENT" => r"--[^\n]*",
        "C_COMMENT" => r"/\*[^*]*\*+([^*/][^*]*\*+)*/",
        _ => return None,
    })
}
