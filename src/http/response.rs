//! The two formats of successful responses: the spec's envelope on `/v1`, OpenAI's body on `/openai/v1` and for OpenAI's
//! SDKs.
//!
//! OpenAI's fields have OpenAI's types on both mounts, because clients convert a file's `created_at` with the same code
//! whatever the base URL is. Times in other fields are RFC 3339 on `/v1`.
//!
//! OpenAI's SDKs are recognised by `x-stainless-lang`, which every SDK that Stainless generates sends and nothing else
//! does. Programs built on them append `/v1` to an address and then require `object: "chat.completion"`, so the
//! envelope would shut them out. A setting of the key would not help, because users of such programs do not know of it,
//! and the `User-Agent` is set by the programs. A proxy that removes the header turns success into an error that names
//! `object`, never into wrong data.

use std::fmt::Display;

use actix_web::HttpResponse;
use actix_web::http::header::{HeaderMap, HeaderName};
use serde::Serialize;

use crate::clock_rng::Timestamp;
use crate::error::Result;

/// The result of a handler.
pub type ApiResult = Result<HttpResponse>;

/// Sent by the SDKs that Stainless generates, of OpenAI and of others, for all languages.
const GENERATED_SDK: HeaderName = HeaderName::from_static("x-stainless-lang");

/// The mount of a request, which decides the response format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mount {
    /// `/v1`: `id`, `object: "service.resource"`, `status: "succeeded"`, then OpenAI's fields.
    Spec,
    /// `/openai/v1`: exactly OpenAI's bodies.
    OpenAi,
}

impl Mount {
    pub const ALL: [Mount; 2] = [Mount::Spec, Mount::OpenAi];

    pub fn prefix(self) -> &'static str {
        match self {
            Mount::Spec => "/v1",
            Mount::OpenAi => "/openai/v1",
        }
    }

    /// The mount of a path, and the rest of the path from its slash on.
    pub fn of(path: &str) -> Option<(Mount, &str)> {
        Mount::ALL.into_iter().find_map(|mount| {
            let rest = path.strip_prefix(mount.prefix())?;
            rest.starts_with('/').then_some((mount, rest))
        })
    }

    /// The mount whose format a client of this one gets. OpenAI's SDKs, and programs that are built on them, often append
    /// `/v1` to a server's address themselves and check `object` and `status` of what they read; the envelope has other
    /// values there. So they get OpenAI's bodies on `/v1` too, unless the envelope is `strict`.
    pub fn for_client(self, headers: &HeaderMap, strict: bool) -> Mount {
        match self {
            Mount::Spec if !strict && headers.contains_key(GENERATED_SDK) => Mount::OpenAi,
            mount => mount,
        }
    }

    /// A time in the mount's format: RFC 3339, or Unix seconds as in OpenAI's API.
    pub fn time(self, at: Timestamp) -> Time {
        match self {
            Mount::Spec => Time::Text(at),
            Mount::OpenAi => Time::Seconds(at.as_seconds()),
        }
    }
}

/// A time in a response body, in a field that OpenAI's API does not have. OpenAI's own are Unix seconds on both mounts.
#[derive(Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum Time {
    #[schema(value_type = String, format = DateTime)]
    Text(Timestamp),
    Seconds(i64),
}

/// A resource inside `data`, with OpenAI's own constants on both mounts. The state of the resource is in `status`, and
/// on `/v1` also in `state`.
#[derive(Serialize)]
pub struct Item<T> {
    id: String,
    object: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    #[serde(flatten)]
    body: T,
}

/// One page of a listing.
#[derive(Serialize)]
pub struct List<T> {
    pub data: Vec<Item<T>>,
    pub has_more: bool,
    pub next_cursor: Option<String>,
    pub first_id: Option<String>,
    pub last_id: Option<String>,
}

/// Confirmation of a deletion, in OpenAI's format.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Deleted {
    /// Always true.
    pub deleted: bool,
}

#[derive(Serialize)]
struct Envelope<T> {
    id: String,
    object: &'static str,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
struct Nameless<T> {
    object: &'static str,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
struct Identified<T> {
    id: String,
    #[serde(flatten)]
    body: T,
}

/// Id and type of a resource.
pub struct Head<I> {
    pub id: I,
    /// OpenAI's type name.
    pub object: &'static str,
    /// Its state, if it has one.
    pub state: Option<&'static str>,
}

impl Mount {
    /// A single resource or result, as the whole body.
    pub fn reply<T: Serialize>(self, head: Head<impl Display>, body: T) -> HttpResponse {
        match self {
            Mount::Spec => HttpResponse::Ok().json(Envelope {
                id: head.id.to_string(),
                object: "service.resource",
                status: "succeeded",
                state: head.state,
                body,
            }),
            Mount::OpenAi => HttpResponse::Ok().json(Item {
                id: head.id.to_string(),
                object: head.object,
                state: None,
                status: head.state,
                body,
            }),
        }
    }

    /// A result that is not a resource (a list, vectors). It has an ID in the spec, but not in OpenAI's API.
    pub fn result<T: Serialize>(self, id: impl Display, object: &'static str, body: T) -> HttpResponse {
        match self {
            Mount::Spec => self.reply(Head { id, object, state: None }, body),
            Mount::OpenAi => HttpResponse::Ok().json(Nameless { object, body }),
        }
    }

    /// A result to which OpenAI gives an id, but no `object`.
    pub fn identified<T: Serialize>(self, id: impl Display, body: T) -> HttpResponse {
        match self {
            Mount::Spec => self.reply(Head { id, object: "", state: None }, body),
            Mount::OpenAi => HttpResponse::Ok().json(Identified { id: id.to_string(), body }),
        }
    }

    /// A result to which OpenAI gives neither an id nor an `object`.
    pub fn bare<T: Serialize>(self, id: impl Display, body: T) -> HttpResponse {
        match self {
            Mount::Spec => self.reply(Head { id, object: "", state: None }, body),
            Mount::OpenAi => HttpResponse::Ok().json(body),
        }
    }

    /// A resource as an entry of a list.
    pub fn item<T>(self, head: Head<impl Display>, body: T) -> Item<T> {
        let (state, status) = match self {
            Mount::Spec => (head.state, head.state),
            Mount::OpenAi => (None, head.state),
        };
        Item { id: head.id.to_string(), object: head.object, state, status, body }
    }
}

impl<T> List<T> {
    /// A page of a listing.
    pub fn new(data: Vec<Item<T>>, next_cursor: Option<String>) -> Self {
        let first_id = data.first().map(|item| item.id.clone());
        let last_id = data.last().map(|item| item.id.clone());
        Self { has_more: next_cursor.is_some(), data, next_cursor, first_id, last_id }
    }
}
