//! Downloads of large files over HTTP, for pulls that a user has asked for.
//!
//! A file is fetched in parts over several connections. Finished parts are recorded beside the file, so a download
//! resumes where it stopped, even after the process was killed. The whole file is hashed before it gets its name.
//!
//! Servers are not trusted. Redirects are followed one by one: never from https to http, and an `Authorization` header
//! stays with the origin that it is meant for. Addresses that are not public are refused right before the connection,
//! unless the user named the host. Every answer has a limit.

mod address_policy;
mod authorization;
mod body_reader;
mod checksum;
mod client;
mod connector;
mod downloader;
mod error;
mod location;
mod part_file;
mod rate_limit;
mod registry_login;
mod retry;
mod settings;
mod transfer;

pub use address_policy::{AddressPolicy, AllowedHost};
pub use authorization::Authorization;
pub use checksum::Checksum;
pub use client::{Head, Request, Section};
pub use downloader::{Downloader, FileSpec, Finished, Probe};
pub use error::{DownloadError, Refusal};
pub use location::{Location, Origin};
pub use registry_login::RegistryLogin;
pub use settings::Settings;
