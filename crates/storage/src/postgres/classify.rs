//! The meaning of tokio-postgres's errors for the transaction.

use std::error::Error as _;
use std::io;

use tokio_postgres::Error;
use tokio_postgres::error::DbError;

use super::error::PostgresError;

/// Sorts an error of a statement. Lost connections are taken for losses before COMMIT.
pub(super) fn statement_error(error: &Error) -> PostgresError {
    let text = describe(error);
    match error.as_db_error() {
        Some(database) => sort(database.code().code(), text),
        None if error.is_closed() || is_io(error) => PostgresError::lost(text),
        None => PostgresError::Bug(text),
    }
}

/// By SQLSTATE, see appendix A of PostgreSQL's manual.
fn sort(code: &str, text: String) -> PostgresError {
    match code {
        // Serialization failure, deadlock, duplicate key, a lock that was not free in time; and what follows in the
        // same transaction.
        "40001" | "40P01" | "23505" | "55P03" | "25P02" => PostgresError::Conflict(text),
        // Completion unknown.
        "40003" => PostgresError::Lost { commit_sent: true, reason: text },
        // Wrong user or password, unknown database or schema, missing privilege.
        "28000" | "28P01" | "3D000" | "3F000" | "42501" => PostgresError::Refused(text),
        // Ended by a timeout of the server, or moved to a server that only reads.
        "57014" | "25P03" | "25006" => PostgresError::lost(text),
        // Connection, resources, operator, system.
        code if ["08", "53", "57", "58"].iter().any(|class| code.starts_with(class)) => PostgresError::lost(text),
        _ => PostgresError::Bug(text),
    }
}

/// Sorts an error of opening a session on `host`.
pub(super) fn connect_error(error: &Error, host: &str, user: &str, database: &str) -> PostgresError {
    let text = describe(error);
    let refused = |remedy: String| PostgresError::Refused(format!("{host}: {text}. {remedy}"));
    match error.as_db_error().map(|database| database.code().code()) {
        Some("28000" | "28P01") => refused(format!(
            "Check that the user '{user}' may connect from this machine, and that its password is the one in the \
             password file or in PGPASSWORD."
        )),
        Some("3D000") => refused(format!("Create it with: CREATE DATABASE \"{database}\" OWNER \"{user}\".")),
        Some("42501") => refused(format!("Grant it with: GRANT CONNECT ON DATABASE \"{database}\" TO \"{user}\".")),
        Some(_) => match statement_error(error) {
            PostgresError::Lost { reason, .. } => PostgresError::lost(format!("{host}: {reason}")),
            other => other,
        },
        None if is_rejected_by_tls(error) => refused(
            "The server must support TLS with a certificate for this name. If it is signed by your own authority, \
             name the authority's PEM file with sslrootcert."
                .to_owned(),
        ),
        None if error.is_closed() || is_io(error) => PostgresError::lost(format!("{host}: {text}")),
        None => refused(
            "If the server asks for a password, put it in the password file or in PGPASSWORD. The methods \
             scram-sha-256, md5 and password are supported."
                .to_owned(),
        ),
    }
}

/// Message and SQLSTATE. The detail is left out, because it may contain stored keys.
pub(super) fn describe(error: &Error) -> String {
    match error.as_db_error() {
        Some(database) => describe_database(database),
        None => {
            let (mut text, mut source) = (error.to_string(), error.source());
            while let Some(cause) = source {
                text = join(text, &cause.to_string());
                source = cause.source();
            }
            text
        }
    }
}

fn describe_database(error: &DbError) -> String {
    format!("{} (SQLSTATE {})", error.message(), error.code().code())
}

/// Appends a cause, unless the text has it already.
fn join(text: String, cause: &str) -> String {
    if text.contains(cause) { text } else { format!("{text}: {cause}") }
}

fn is_io(error: &Error) -> bool {
    error.source().is_some_and(|source| source.is::<io::Error>())
}

/// True if the server has no TLS, or its certificate was rejected.
fn is_rejected_by_tls(error: &Error) -> bool {
    let Some(source) = error.source() else { return false };
    match source.downcast_ref::<io::Error>() {
        Some(io) => io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
        None => source.to_string().contains("TLS"),
    }
}

#[cfg(test)]
mod tests {
    use super::{PostgresError, sort};

    #[test]
    fn states_of_the_database_are_sorted_by_what_they_mean() {
        let sorted = |code: &str| sort(code, String::new());
        for code in ["40001", "40P01", "23505", "55P03", "25P02"] {
            assert!(matches!(sorted(code), PostgresError::Conflict(_)), "{code}");
        }
        for code in ["08006", "53300", "57P01", "57014", "58030", "25006", "25P03"] {
            assert!(matches!(sorted(code), PostgresError::Lost { commit_sent: false, .. }), "{code}");
        }
        assert!(matches!(sorted("40003"), PostgresError::Lost { commit_sent: true, .. }));
        for code in ["28000", "28P01", "3D000", "3F000", "42501"] {
            assert!(matches!(sorted(code), PostgresError::Refused(_)), "{code}");
        }
        for code in ["42601", "22003", "XX000", "0A000"] {
            assert!(matches!(sorted(code), PostgresError::Bug(_)), "{code}");
        }
    }
}
