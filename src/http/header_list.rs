//! Lists in response headers.

use actix_web::HttpResponse;
use actix_web::http::header::{HeaderName, HeaderValue};

/// The fields, options and tools of a request that were left out.
const IGNORED: HeaderName = HeaderName::from_static("x-outpost-ignored");
/// The fields of the request's schemas that are not enforced.
const UNENFORCED: HeaderName = HeaderName::from_static("x-outpost-unenforced");

/// Room for a few dozen entries; clients limit the size of all headers to 8 KiB or more.
const MAX_BYTES: usize = 2_000;

/// Adds the lists that are not empty.
pub fn with_lists(mut response: HttpResponse, ignored: &[String], unenforced: &[String]) -> HttpResponse {
    for (name, list) in [(IGNORED, ignored), (UNENFORCED, unenforced)] {
        if let Some(list) = header_list(list) {
            response.headers_mut().insert(name, list);
        }
    }
    response
}

/// Entries separated by commas, as many as a header has room for; then the number of the others. `None` if there are none.
pub fn header_list(entries: &[String]) -> Option<HeaderValue> {
    let mut list = String::new();
    for (index, entry) in entries.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        if list.len() + entry.len() > MAX_BYTES {
            let left = entries.len() - index;
            list.push_str(&format!("{separator}and {left} more"));
            break;
        }
        list.push_str(separator);
        // Names may have any characters, headers only some.
        list.extend(entry.chars().map(|ch| if (ch.is_ascii_graphic() || ch == ' ') && ch != ',' { ch } else { '?' }));
    }
    HeaderValue::try_from(list).ok().filter(|list| !list.is_empty())
}
