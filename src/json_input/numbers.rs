//! Numbers that JSON can write and this server cannot keep: it has integers of 64 bits and floats of double precision.
//!
//! A rounded ID would be worse than none. serde_json's `arbitrary_precision` is off: it makes every number a text, and
//! breaks untagged and flattened types.

/// The numbers of a JSON text that are read as another number, each as that number and as it was written. Reads a text
/// that is not valid JSON without complaint.
pub fn changed(text: &str) -> Vec<(f64, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| matches!(c, '"' | '-') || c.is_ascii_digit()) {
        rest = rest.get(at..).unwrap_or_default();
        if rest.starts_with('"') {
            rest = after_string(rest);
            continue;
        }
        let end = rest.find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E')).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        found.extend(read_as(number).map(|read| (read, number)));
        rest = after;
    }
    found
}

/// The text after the string at the beginning of `text`.
fn after_string(text: &str) -> &str {
    let mut rest = text.get(1..).unwrap_or_default();
    while let Some(at) = rest.find(['"', '\\']) {
        let is_escape = rest.get(at..).is_some_and(|rest| rest.starts_with('\\'));
        let mut after = rest.get(at + 1..).unwrap_or_default().chars();
        if !is_escape {
            return after.as_str();
        }
        after.next();
        rest = after.as_str();
    }
    ""
}

/// The value as which a number is read, if it differs.
fn read_as(number: &str) -> Option<f64> {
    if number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok() {
        return None;
    }
    let read: f64 = number.parse().ok()?;
    (digits(number)? != digits(&format!("{read:e}"))?).then_some(read)
}

/// The digits of a decimal number without zeros at both ends, and the exponent of the first one.
fn digits(number: &str) -> Option<(String, i64)> {
    let number = number.strip_prefix('-').unwrap_or(number);
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let exponent: i64 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let significant = all.trim_start_matches('0');
    if significant.is_empty() {
        return Some((String::new(), 0));
    }
    let leading = i64::try_from(all.len() - significant.len()).ok()?;
    let first = exponent.checked_add(i64::try_from(whole.len()).ok()?)? - leading;
    Some((significant.trim_end_matches('0').to_owned(), first))
}

#[cfg(test)]
mod tests {
    use super::changed;

    #[test]
    fn only_numbers_with_too_many_digits_change() {
        let kept = [
            "0",
            "-0",
            "-0.0",
            "0.1",
            "1.0",
            "1e5",
            "1E+5",
            "100000000000000000000",
            "1e300",
            "0.30000001192092896",
            "18446744073709551615",
            "-9223372036854775808",
            "9007199254740993",
            "0.10",
            "123456.789e-3",
            "5e-324",
        ];
        for number in kept {
            assert!(changed(number).is_empty(), "{number}");
        }
        for number in [
            "18446744073709551616",
            "-9223372036854775809",
            "100000000000000000001",
            "0.12345678901234567890",
            "1e-400",
            "9007199254740993.0",
            "1.00000000000000000001",
            "0.1000000000000000055511151231257827",
        ] {
            assert_eq!(changed(number), [(number.parse::<f64>().unwrap(), number)]);
        }
    }

    #[test]
    fn numbers_in_strings_do_not_count() {
        let number = "18446744073709551617";
        let text = format!(r#"{{"a\"{number}": "\\", "b": [{number}, "{number}\u0022"], "c": "{number}"#);
        assert_eq!(changed(&text), [(number.parse::<f64>().unwrap(), number)]);
    }
}
