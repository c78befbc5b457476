//! The languages of Whisper models.

/// The code and the English name of each language, in the order of their tokens. The last one is missing in models before
/// large-v3.
#[rustfmt::skip]
pub const LANGUAGES: [(&str, &str); 100] = [
    ("en", "english"), ("zh", "chinese"), ("de", "german"), ("es", "spanish"), ("ru", "russian"), ("ko", "korean"),
    ("fr", "french"), ("ja", "japanese"), ("pt", "portuguese"), ("tr", "turkish"), ("pl", "polish"), ("ca", "catalan"),
    ("nl", "dutch"), ("ar", "arabic"), ("sv", "swedish"), ("it", "italian"), ("id", "indonesian"), ("hi", "hindi"),
    ("fi", "finnish"), ("vi", "vietnamese"), ("he", "hebrew"), ("uk", "ukrainian"), ("el", "greek"), ("ms", "malay"),
    ("cs", "czech"), ("ro", "romanian"), ("da", "danish"), ("hu", "hungarian"), ("ta", "tamil"), ("no", "norwegian"),
    ("th", "thai"), ("ur", "urdu"), ("hr", "croatian"), ("bg", "bulgarian"), ("lt", "lithuanian"), ("la", "latin"),
    ("mi", "maori"), ("ml", "malayalam"), ("cy", "welsh"), ("sk", "slovak"), ("te", "telugu"), ("fa", "persian"),
    ("lv", "latvian"), ("bn", "bengali"), ("sr", "serbian"), ("az", "azerbaijani"), ("sl", "slovenian"),
    ("kn", "kannada"), ("et", "estonian"), ("mk", "macedonian"), ("br", "breton"), ("eu", "basque"),
    ("is", "icelandic"), ("hy", "armenian"), ("ne", "nepali"), ("mn", "mongolian"), ("bs", "bosnian"),
    ("kk", "kazakh"), ("sq", "albanian"), ("sw", "swahili"), ("gl", "galician"), ("mr", "marathi"), ("pa", "punjabi"),
    ("si", "sinhala"), ("km", "khmer"), ("sn", "shona"), ("yo", "yoruba"), ("so", "somali"), ("af", "afrikaans"),
    ("oc", "occitan"), ("ka", "georgian"), ("be", "belarusian"), ("tg", "tajik"), ("sd", "sindhi"), ("gu", "gujarati"),
    ("am", "amharic"), ("yi", "yiddish"), ("lo", "lao"), ("uz", "uzbek"), ("fo", "faroese"), ("ht", "haitian creole"),
    ("ps", "pashto"), ("tk", "turkmen"), ("nn", "nynorsk"), ("mt", "maltese"), ("sa", "sanskrit"),
    ("lb", "luxembourgish"), ("my", "myanmar"), ("bo", "tibetan"), ("tl", "tagalog"), ("mg", "malagasy"),
    ("as", "assamese"), ("tt", "tatar"), ("haw", "hawaiian"), ("ln", "lingala"), ("ha", "hausa"), ("ba", "bashkir"),
    ("jw", "javanese"), ("su", "sundanese"), ("yue", "cantonese"),
];

/// The code of a language by its code or English name, in any case; also a locale such as `en-US`, and `jv`.
pub fn find_language(name: &str) -> Option<&'static str> {
    let name = name.trim().to_lowercase();
    let code = if name == "jv" { "jw" } else { name.as_str() };
    let by = |name: &str| LANGUAGES.iter().find(|(code, full)| *code == name || *full == name).map(|(code, _)| *code);
    by(code).or_else(|| by(code.split(['-', '_']).next().unwrap_or_default()))
}

/// The English name of a language, in lower case.
pub fn language_name(code: &str) -> Option<&'static str> {
    LANGUAGES.iter().find(|(known, _)| *known == code).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_found_by_code_name_and_locale() {
        for name in ["de", "DE", "german", "German", "de-AT", "de_CH"] {
            assert_eq!(find_language(name), Some("de"), "{name}");
        }
        assert_eq!(find_language("jv"), Some("jw"));
        assert_eq!(find_language("xx"), None);
        assert_eq!(find_language(""), None);
        assert_eq!(language_name("yue"), Some("cantonese"));
    }
}
