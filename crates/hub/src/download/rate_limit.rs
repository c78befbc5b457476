//! How long a server asks a client to wait.

use std::time::Duration;

use http1::HeaderMap;

/// The wait of a `Retry-After` header in seconds, or of a `RateLimit` header, such as `"resolvers";r=0;t=52`
/// (draft-ietf-httpapi-ratelimit-headers): `t` seconds until the window ends.
pub(super) fn requested_wait(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(seconds) = text("retry-after").and_then(|value| value.trim().parse().ok()) {
        return Some(Duration::from_secs(seconds));
    }
    let (mut used_up, mut wait) = (false, None);
    for parameter in text("ratelimit")?.split([';', ',']) {
        match parameter.trim().split_once('=') {
            Some(("r", "0")) => used_up = true,
            Some(("t", seconds)) => wait = wait.max(seconds.parse().ok()),
            _ => {}
        }
    }
    wait.filter(|_| used_up).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_from_both_headers() {
        for (name, value, expected) in [
            ("retry-after", "7", Some(7)),
            ("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT", None),
            ("ratelimit", r#""resolvers";r=0;t=52"#, Some(52)),
            ("ratelimit", r#""resolvers";r=10;t=52"#, None),
            ("ratelimit", r#""api";r=0;t=x"#, None),
            ("x", "1", None),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            assert_eq!(requested_wait(&headers), expected.map(Duration::from_secs), "{name}: {value}");
        }
        let wait = |name: http1::HeaderName| requested_wait(&HeaderMap::from_iter([(name, "5".parse().unwrap())]));
        assert_eq!(wait(http1::header::RETRY_AFTER), Some(Duration::from_secs(5)));
    }
}
