//! Logs to standard error. The level applies to the messages of this program; those of libraries are logged if they are
//! warnings or errors. `OUTPOST_LOG` replaces the level by a filter in the syntax of tracing's `EnvFilter`.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::{EnvFilter, reload};

use crate::config::{LogFormat, LogLevel};

/// The variable with a filter, which takes precedence over the level.
pub const VARIABLE: &str = "OUTPOST_LOG";

/// The database client's messages of lower levels contain stored bytes.
const BYTES_STAY_OUT: &str = "tokio_postgres=warn";

/// Changes the level of the log.
pub struct LogFilter {
    replace: Box<Replace>,
}

type Replace = dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync;

impl LogFilter {
    /// Sets the level. It has no effect if [`is_overridden`].
    pub fn set(&self, level: LogLevel) {
        if let Err(cause) = (self.replace)(filter(level)) {
            tracing::warn!(%cause, "the level of the log is not changed");
        }
    }
}

/// Installs the process's logger. Further calls have no effect.
pub fn start(format: LogFormat, level: LogLevel) -> LogFilter {
    let colours = stderr().is_terminal();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter(level))
        .with_writer(stderr)
        .with_ansi(colours)
        .with_target(false);
    let (installed, replace): (_, Box<Replace>) = match format {
        LogFormat::Text => {
            let log = log.with_filter_reloading();
            let handle = log.reload_handle();
            (log.try_init(), Box::new(move |filter| handle.reload(filter)))
        }
        LogFormat::Json => {
            let log = log.json().flatten_event(true).with_filter_reloading();
            let handle = log.reload_handle();
            (log.try_init(), Box::new(move |filter| handle.reload(filter)))
        }
    };
    if let Err(cause) = installed {
        tracing::debug!(%cause, "a log is installed already");
    }
    LogFilter { replace }
}

/// True if the variable [`VARIABLE`] is set, so that the level has no effect.
pub fn is_overridden() -> bool {
    variable().is_some()
}

/// The filter of the variable; `None` if it is not set or invalid.
fn variable() -> Option<EnvFilter> {
    EnvFilter::try_from_env(VARIABLE).ok()
}

fn filter(level: LogLevel) -> EnvFilter {
    let filter = variable().unwrap_or_else(|| {
        // Library messages below the level `warn` are of no use to an operator.
        let libraries = if level == LogLevel::Error { LogLevel::Error } else { LogLevel::Warn };
        EnvFilter::new(format!("{},outpost={}", libraries.as_str(), level.as_str()))
    });
    match BYTES_STAY_OUT.parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    }
}
