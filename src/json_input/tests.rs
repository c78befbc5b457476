use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{InputError, decode, from_object, from_str};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Color {
    Red,
    Green,
    Blue,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inner {
    number: i64,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "must be a string or an array of strings")]
#[expect(dead_code, reason = "only whether it can be read matters")]
enum Texts {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Outer {
    text: Option<String>,
    flag: Option<bool>,
    byte: Option<u8>,
    big: Option<u64>,
    real: Option<f32>,
    inner: Option<Inner>,
    list: Vec<Inner>,
    color: Option<Color>,
    texts: Option<Texts>,
    raw: Option<Box<RawValue>>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

fn message(text: &str) -> String {
    match from_str::<Outer>(text) {
        Ok(value) => format!("{value:?}"),
        Err(InputError::Value { path, problem }) => format!("{path} {problem}"),
        Err(InputError::Syntax { problem, line, column }) => format!("{problem} at {line}:{column}"),
    }
}

#[test]
fn values_that_do_not_fit_are_described_in_the_words_of_json() {
    for (text, expected) in [
        (r#"{"text": 5}"#, "text must be a string, not 5."),
        (r#"{"text": [1]}"#, "text must be a string, not an array."),
        (r#"{"flag": "yes"}"#, "flag must be true or false, not \"yes\"."),
        (r#"{"flag": {}}"#, "flag must be true or false, not an object."),
        (r#"{"byte": 300}"#, "byte is 300; it must be at most 255."),
        (r#"{"byte": -1}"#, "byte is -1; it must not be negative."),
        (r#"{"byte": 1.5}"#, "byte must be a whole number, not 1.5."),
        (r#"{"byte": 4.0}"#, "byte must be a whole number, not 4.0."),
        (r#"{"big": 1e300}"#, "big is 1e300; it must be at most 18446744073709551615."),
        (r#"{"real": "warm"}"#, "real must be a number, not \"warm\"."),
        (r#"{"real": -1e39}"#, "real is -1e39, which is too large."),
        (r#"{"real": true}"#, "real must be a number, not true."),
        (r#"{"inner": []}"#, "inner must be an object, not an array."),
        (r#"{"inner": {}}"#, "inner.number is missing."),
        (r#"{"inner": {"number": null}}"#, "inner.number must be a whole number, not null."),
        (r#"{"inner": {"numbr": 1}}"#, "inner.numbr is unknown. Did you mean 'number'?"),
        (r#"{"inner": {"colour": 1}}"#, "inner.colour is unknown. The fields are number."),
        (r#"{"inner": {"number": 1, "number": 2}}"#, "inner.number is given more than once. Give it once."),
        (r#"{"list": {}}"#, "list must be an array, not an object."),
        (r#"{"list": [{"number": 1}, [1]]}"#, "list[1] must be an object, not an array."),
        (r#"{"color": "pink"}"#, "color is 'pink'; it must be red, green or blue."),
        (r#"{"color": 5}"#, "color must be red, green or blue, not 5."),
        (r#"{"texts": [5]}"#, "texts must be a string or an array of strings."),
        ("[]", " must be an object, not an array."),
        ("5", " must be an object, not 5."),
    ] {
        assert_eq!(message(text), expected, "{text}");
    }
    assert_eq!(message(&format!(r#"{{"flag": "{}"}}"#, "x".repeat(50))), "flag must be true or false, not a string.");
}

#[test]
fn broken_json_is_described_by_its_place() {
    for (text, expected) in [
        ("", "it ends too early at 1:0"),
        ("{\"text\":", "it ends too early at 1:8"),
        ("{\"text\": \"a\"\n \"flag\": true}", "expected ',' or '}' at 2:2"),
        ("{'text': 1}", "expected a name in double quotes at 1:2"),
        (r#"{"text": "a",}"#, "nothing follows a comma at 1:14"),
        (r#"{"text": "a"} {}"#, "something follows the JSON value at 1:15"),
        (r#"{"text": undefined}"#, "expected a value at 1:10"),
        (r#"{"real": 1e999}"#, "a number is too large at 1:14"),
        (r#"{"text": "\ud800"}"#, "an escape \\u is not a character at 1:17"),
        ("{\"text\": \"a\nb\"}", "a string has a control character, such as a line break at 2:0"),
        (r#"{"flag": maybe}"#, "expected a value at 1:10"),
        (r#"{"flag": trve}"#, "expected true, false or null at 1:12"),
    ] {
        assert_eq!(message(text), expected, "{text}");
    }
    assert_eq!(message(&format!(r#"{{"x": {}"#, "[".repeat(1000))), "it is nested too deeply at 1:133");
}

#[test]
fn a_number_that_is_kept_does_not_change() {
    for text in [
        r#"{"more": {"a": [1, 18446744073709551616]}}"#,
        r#"{"more": {"a": [1, 0.123456789012345678901]}}"#,
        r#"{"inner": null, "more": {"a": [0.5, -1e-400]}}"#,
    ] {
        let error = from_str::<Value>(text).unwrap_err();
        let InputError::Value { path, problem } = &error else { panic!("{error:?}") };
        assert_eq!(path, "more.a[1]");
        assert!(problem.contains("more digits than a number can keep"), "{problem}");
        assert!(message(text).contains("more digits than a number can keep"), "{text}");
    }
    let kept: Value = from_str(r#"[18446744073709551615, -9223372036854775808, 0.1, 1.0, 1e300]"#).unwrap();
    assert_eq!(kept.to_string(), "[18446744073709551615,-9223372036854775808,0.1,1.0,1e+300]");
    // The nearest float is meant.
    assert_eq!(from_str::<Outer>(r#"{"real": 0.300000000000000000001}"#).unwrap().real, Some(0.3));
}

#[test]
fn bytes_are_utf_8_with_or_without_a_mark() {
    assert_eq!(decode(b"\xef\xbb\xbf{}"), Ok("{}"));
    for utf16 in [&b"\xff\xfe{\0}\0"[..], b"\xfe\xff\0{\0}", b"{\0}\0", b"\0{\0}"] {
        assert_eq!(decode(utf16), Err("is UTF-16 or UTF-32, not UTF-8".to_owned()));
    }
    assert_eq!(decode(b"{\xff"), Err("is not valid UTF-8 from byte 1 on".to_owned()));
}

#[test]
fn what_fits_is_read_as_it_was_written() {
    let text =
        r#"{"text": null, "byte": 255, "real": 1, "color": "blue", "texts": ["a"], "raw": {"x": 1.50}, "more": [1]}"#;
    let read: Outer = from_str(text).unwrap();
    assert!(read.text.is_none() && matches!(read.color, Some(Color::Blue)) && read.rest["more"][0] == 1);
    assert_eq!((read.byte, read.real, read.raw.unwrap().get()), (Some(255), Some(1.0), r#"{"x": 1.50}"#));
    let fields: Map<String, Value> = serde_json::from_str(r#"{"number": 7}"#).unwrap();
    assert_eq!(from_object::<Inner>(fields).unwrap().number, 7);
}
