//! The path that was probably meant by one that does not exist.

use crate::spelling;

/// Endpoints of other servers, below their prefixes, and the endpoint here that does the same.
const EQUIVALENTS: [(&str, &str); 12] = [
    ("chat", "chat/completions"),
    ("completion", "chat/completions"),
    ("completions", "chat/completions"),
    ("generate", "chat/completions"),
    ("messages", "chat/completions"),
    ("embed", "embeddings"),
    ("engines", "models"),
    ("tags", "models"),
    ("images", "images/generations"),
    ("sdapi/v1/txt2img", "images/generations"),
    ("sdapi/v1/img2img", "images/edits"),
    ("keys", "api-keys"),
];

/// The path of a route that is spelled like `path`, without regard to prefixes such as `/api` or `/v1`. `routes`: the
/// segments of every route below a mount, with parameters as `{name}`.
pub fn suggest<'r>(routes: impl Iterator<Item = &'r [String]>, path: &str) -> Option<String> {
    let given: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let mount = if given.first() == Some(&"openai") { "/openai/v1" } else { "/v1" };
    let rest: Vec<&str> = given.into_iter().skip_while(|segment| is_prefix(segment)).collect();
    let joined = rest.join("/").to_lowercase();
    if let Some((_, here)) = EQUIVALENTS.iter().find(|(there, _)| *there == joined) {
        return Some(format!("{mount}/{here}"));
    }
    let nearest =
        routes.filter_map(|route| Some((distance(route, &rest)?, route))).min_by_key(|(distance, _)| *distance);
    let (_, route) = nearest?;
    let filled =
        route.iter().zip(&rest).map(|(segment, given)| if is_parameter(segment) { given } else { segment.as_str() });
    let meant = format!("{mount}/{}", filled.collect::<Vec<_>>().join("/"));
    (meant != path).then_some(meant)
}

/// True for segments that only name an API or a version.
fn is_prefix(segment: &str) -> bool {
    let is_version = segment.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    is_version || matches!(segment, "api" | "openai")
}

fn is_parameter(segment: &str) -> bool {
    segment.starts_with('{')
}

/// How much the fixed segments of a route differ; `None` if it is another path. Fewer parameters are better.
fn distance(route: &[String], given: &[&str]) -> Option<(usize, usize)> {
    if route.len() != given.len() || given.is_empty() {
        return None;
    }
    let (mut edits, mut parameters) = (0, 0);
    for (segment, given) in route.iter().zip(given) {
        if is_parameter(segment) {
            parameters += 1;
        } else {
            edits += spelling::distance(given, segment)?;
        }
    }
    Some((edits, parameters))
}

#[cfg(test)]
mod tests {
    use super::suggest;

    #[test]
    fn the_likely_path_is_named() {
        let routes: Vec<Vec<String>> =
            ["chat/completions", "models", "models/{id}", "models/{id}/load", "projects/{id}/usage", "api-keys"]
                .iter()
                .map(|route| route.split('/').map(str::to_owned).collect())
                .collect();
        for (path, meant) in [
            ("/models", Some("/v1/models")),
            ("/v1/model", Some("/v1/models")),
            ("/v1/Models", Some("/v1/models")),
            ("/api/v1/models", Some("/v1/models")),
            ("/openai/models", Some("/openai/v1/models")),
            ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1/chat/completion", Some("/v1/chat/completions")),
            ("/v1/completions", Some("/v1/chat/completions")),
            ("/api/generate", Some("/v1/chat/completions")),
            ("/api/tags", Some("/v1/models")),
            ("/v1/modles/a.b/load", Some("/v1/models/a.b/load")),
            ("/v1/project/p/usage", Some("/v1/projects/p/usage")),
            ("/v1/apikeys", Some("/v1/api-keys")),
            ("/v1/models", None),
            ("/v1/audio/speech", None),
            ("/v1", None),
            ("/", None),
        ] {
            assert_eq!(suggest(routes.iter().map(Vec::as_slice), path).as_deref(), meant, "{path}");
        }
    }
}
