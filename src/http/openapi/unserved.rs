//! Paths of OpenAI's API that this server does not serve, and what to use instead.

use crate::http::response::Mount;

/// The first segment of the path below a mount, what it is, and what to use instead.
const PATHS: &[(&str, &str, &str)] = &[
    ("assistants", "The Assistants API", "Use agents ('/v1/agents') or the Responses API ('/v1/responses')."),
    ("threads", "The Assistants API", "Use conversations ('/v1/conversations')."),
    ("vector_stores", "The Vector Stores API", "Embed texts with '/v1/embeddings' and store the vectors elsewhere."),
    ("uploads", "The Uploads API", "Upload a whole file of any size with 'POST /v1/files'."),
    ("realtime", "The Realtime API", "Use '/v1/audio/transcriptions', a chat, and '/v1/audio/speech'."),
    ("evals", "The Evals API", "Send the requests as a batch ('/v1/batches') and compare the outputs."),
    ("containers", "The Containers API", "Give the model function tools, and run them in your program."),
    ("videos", "The Videos API", "This server generates text, images and audio."),
    ("organization", "The Administration API", "Use '/v1/projects', '/v1/api-keys' and '/v1/audit-events'."),
    ("edits", "The Edits API", "Use '/v1/chat/completions'."),
    ("fine-tunes", "The older fine-tuning API", "Use '/v1/fine_tuning/jobs'."),
    ("answers", "The Answers API", "Use '/v1/chat/completions'."),
    (
        "classifications",
        "The Classifications API",
        "Use '/v1/chat/completions' with a response_format that lists the classes.",
    ),
];

/// Why there is nothing at the path, if OpenAI's API has it.
pub fn explain(path: &str) -> Option<String> {
    let (_, rest) = Mount::of(path)?;
    let first = rest.split('/').nth(1)?;
    let (_, what, instead) = PATHS.iter().find(|(segment, ..)| *segment == first)?;
    Some(format!("{what} is not served by this server. {instead}"))
}
