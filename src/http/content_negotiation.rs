//! Content negotiation by `Accept`, on endpoints with several formats (RFC 9110, section 12.5.1).

use actix_web::HttpRequest;
use actix_web::http::header::{Accept, Header, Quality};

/// The type of `offered` (lower case) that the client prefers; the first one by default.
pub fn preferred(request: &HttpRequest, offered: &[&'static str]) -> &'static str {
    let mut accept = Accept::parse(request).unwrap_or_else(|_| Accept::star());
    accept.retain(|range| range.quality > Quality::ZERO);
    let preferred = accept.ranked().into_iter().find_map(|range| {
        offered.iter().find(|name| match (range.type_().as_str(), range.subtype().as_str()) {
            ("*", "*") => true,
            (main, "*") => name.split_once('/').is_some_and(|(name, _)| name == main),
            _ => range.essence_str() == **name,
        })
    });
    preferred.or(offered.first()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::ACCEPT;
    use actix_web::test::TestRequest;

    use super::preferred;

    #[test]
    fn the_preferred_offered_type_is_selected() {
        let cases = [
            ("", "application/json"),
            ("text/html", "application/json"),
            ("text/csv", "text/csv"),
            ("TEXT/CSV; charset=utf-8", "text/csv"),
            ("text/csv;q=0.5, application/json;q=0.9", "application/json"),
            ("text/csv, */*;q=0.1", "text/csv"),
            ("*/*, text/csv", "text/csv"),
            ("text/csv, application/json", "text/csv"),
            ("text/csv;q=0", "application/json"),
            ("text/*", "text/csv"),
            ("image/*, application/*;q=0.1", "application/json"),
        ];
        for (accept, chosen) in cases {
            let request = TestRequest::default().insert_header((ACCEPT, accept)).to_http_request();
            assert_eq!(preferred(&request, &["application/json", "text/csv"]), chosen, "{accept}");
        }
    }
}
