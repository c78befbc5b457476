//! Opens connections: tries the hosts in order, and sets up the session.

use std::sync::Arc;

use tokio::time::timeout;
use tokio_postgres::NoTls;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::classify::connect_error;
use super::connection::{Connection, Request};
use super::error::PostgresError;
use super::settings::{DatabaseHost, PostgresSettings, Timeouts};
use super::{statements, tls};

/// Opens connections to one database.
#[derive(Clone)]
pub struct Connector {
    settings: Arc<PostgresSettings>,
    /// `None` if no host is reached over TLS.
    tls: Option<MakeRustlsConnect>,
}

impl Connector {
    /// # Errors
    /// If the root certificates cannot be read.
    pub fn new(settings: PostgresSettings) -> Result<Self, PostgresError> {
        let tls = settings.uses_tls().then(|| tls::connector(&settings.root_certificates)).transpose()?;
        Ok(Self { settings: Arc::new(settings), tls })
    }

    pub fn timeouts(&self) -> &Timeouts {
        &self.settings.timeouts
    }

    /// A session on the first host that accepts writes.
    ///
    /// # Errors
    /// [`PostgresError::Refused`] if any host answered that the operator must change something, otherwise
    /// [`PostgresError::Lost`].
    pub async fn connect(&self) -> Result<Connection, PostgresError> {
        let mut failures: Vec<PostgresError> = Vec::new();
        for host in &self.settings.hosts {
            let limit = self.settings.timeouts.session;
            match timeout(limit, self.connect_to(host)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => failures.push(error),
                Err(_) => failures.push(PostgresError::lost(format!("{host}: no session after {limit:?}"))),
            }
        }
        Err(worst(failures))
    }

    /// As [`Self::connect`], for a session whose commits do not wait for the disk: they may be lost if the database crashes.
    pub async fn connect_without_sync(&self) -> Result<Connection, PostgresError> {
        let mut connection = self.connect().await?;
        // A database that does not know the setting is used without it.
        let _ = connection.run_one(Request::command(statements::NO_WAIT_FOR_DISK)).await;
        Ok(connection)
    }

    async fn connect_to(&self, host: &DatabaseHost) -> Result<Connection, PostgresError> {
        let config = self.settings.config(host);
        let user = self.settings.user().unwrap_or("of this process");
        let failed =
            |error: tokio_postgres::Error| connect_error(&error, &host.to_string(), user, self.settings.database());
        let timeouts = self.settings.timeouts;
        let mut connection = match (&self.tls, host.tls) {
            (Some(tls), true) => {
                let (client, driver) = config.connect(tls.clone()).await.map_err(failed)?;
                Connection::new(client, driver, timeouts)
            }
            (None, true) => return Err(PostgresError::Bug("TLS is not set up".to_owned())),
            (_, false) => {
                let (client, driver) = config.connect(NoTls).await.map_err(failed)?;
                Connection::new(client, driver, timeouts)
            }
        };
        set_up(&mut connection, &timeouts).await?;
        Ok(connection)
    }
}

/// Applies the session's settings. One that the database does not know is left out.
async fn set_up(connection: &mut Connection, timeouts: &Timeouts) -> Result<(), PostgresError> {
    let requests = statements::session(timeouts).into_iter().map(Request::command).collect();
    for outcome in connection.run(requests).await? {
        match outcome {
            Err(PostgresError::Bug(reason)) => {
                tracing::debug!(reason, "the database does not know a setting of the session");
            }
            outcome => drop(outcome?),
        }
    }
    Ok(())
}

/// The error of all hosts together: one that names a remedy, if there is one.
fn worst(failures: Vec<PostgresError>) -> PostgresError {
    if let Some(refused) = failures.iter().find(|failure| !failure.is_lost()) {
        return refused.clone();
    }
    let reasons: Vec<String> = failures.iter().map(ToString::to_string).collect();
    match <[PostgresError; 1]>::try_from(failures) {
        Ok([only]) => only,
        Err(_) => PostgresError::lost(reasons.join("; ")),
    }
}
