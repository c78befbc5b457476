//! Content negotiation by `Accept`, on endpoints with several formats (RFC 9110, section 12.5.1).

use actix_web::HttpRequest;
use actix_web::http::header::{ACCEPT, HeaderValue};

/// The type of `offered` (lower case) that the client prefers; the first one by default.
pub fn preferred(request: &HttpRequest, offered: &[&'static str]) -> &'static str {
    let values = request.headers().get_all(ACCEPT).filter_map(|value: &HeaderValue| value.to_str().ok());
    choose(values.flat_map(|value| value.split(',')), offered)
}

fn choose<'a>(asked: impl Iterator<Item = &'a str>, offered: &[&'static str]) -> &'static str {
    let mut best = (0.0, offered.first().copied().unwrap_or_default());
    for range in asked {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok()).unwrap_or(1.0);
        let found = match kind.as_str() {
            "*/*" => offered.first(),
            kind if kind.ends_with("/*") => offered.iter().find(|name| name.starts_with(kind.trim_end_matches('*'))),
            kind => offered.iter().find(|name| **name == kind),
        };
        // Ties go to the one named first.
        if let Some(found) = found.filter(|_| quality > best.0) {
            best = (quality, found);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn the_best_of_what_is_offered_is_chosen() {
        let cases = [
            ("", "application/json"),
            ("text/html", "application/json"),
            ("text/csv", "text/csv"),
            ("TEXT/CSV; charset=utf-8", "text/csv"),
            ("text/csv;q=0.5, application/json;q=0.9", "application/json"),
            ("text/csv, */*;q=0.1", "text/csv"),
            ("*/*, text/csv", "application/json"),
            ("text/csv;q=0", "application/json"),
            ("text/*", "text/csv"),
            ("image/*, application/*;q=0.1", "application/json"),
        ];
        for (accept, chosen) in cases {
            assert_eq!(choose(accept.split(','), &["application/json", "text/csv"]), chosen, "{accept}");
        }
    }
}
