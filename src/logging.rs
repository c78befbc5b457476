//! Logs to standard error. `OUTPOST_LOG` filters them in the syntax of tracing's `EnvFilter`; the default is
//! `warn,outpost=info`.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// The default filter. Library messages below the level `warn` are of no use to an operator.
const FILTER: &str = "warn,outpost=info";

/// The database client's messages of lower levels contain stored bytes.
const BYTES_STAY_OUT: &str = "tokio_postgres=warn";

/// Installs the process's logger. Further calls have no effect.
pub fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env("OUTPOST_LOG").unwrap_or_else(|_| EnvFilter::new(FILTER));
    let filter = match BYTES_STAY_OUT.parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    };
    let colours = stderr().is_terminal();
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_ansi(colours).with_target(false);
    let installed = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    if let Err(cause) = installed {
        tracing::debug!(%cause, "a log is installed already");
    }
}
