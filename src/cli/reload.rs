//! SIGHUP: reads the settings of `serve` again, applies what can change, and logs what changed and what needs a restart.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::app::Reloader;
use crate::config::{Applies, Config, DataPaths, Effective, Key, LogLevel, ServeArgs};
use crate::logging::{self, LogFilter};

/// The settings of `serve` as the command line, the environment and the configuration file have them.
pub(super) struct ServeSettings {
    pub paths: DataPaths,
    pub args: ServeArgs,
    pub values: Vec<Effective>,
}

type Read = dyn Fn() -> Result<ServeSettings, String> + Send + Sync;

/// Reads the settings again.
pub(super) struct ConfigReload {
    read: Arc<Read>,
}

/// Values by the name of their key; keys without a value are absent.
type Values = BTreeMap<&'static str, String>;

/// The settings of a server that runs.
pub(super) struct RunningSettings {
    read: Arc<Read>,
    reloader: Reloader,
    log: LogFilter,
    /// The address of the socket from systemd, which is used instead of the one in the settings.
    inherited: Option<SocketAddr>,
    /// Those at the start, which still apply where a change needs a restart.
    started: Values,
    /// Those that were read last.
    applied: Values,
}

impl ConfigReload {
    pub(super) fn new(read: impl Fn() -> Result<ServeSettings, String> + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read) }
    }

    /// `values`: those with which the server was started.
    pub(super) fn of(
        self,
        values: &[Effective],
        reloader: Reloader,
        log: LogFilter,
        inherited: Option<SocketAddr>,
    ) -> RunningSettings {
        let values = by_name(values);
        RunningSettings { read: self.read, reloader, log, inherited, started: values.clone(), applied: values }
    }
}

impl RunningSettings {
    /// Reads the settings and applies them. If they have an error, nothing changes.
    pub(super) async fn reload(&mut self) {
        match self.try_reload().await {
            Ok((report, level)) => {
                // The more detailed of the two levels decides whether the line is logged.
                let is_shown = tracing::enabled!(tracing::Level::INFO);
                if is_shown {
                    tracing::info!("configuration reloaded: {report}");
                }
                self.log.set(level);
                if !is_shown {
                    tracing::info!("configuration reloaded: {report}");
                }
            }
            Err(error) => tracing::error!("the configuration is not reloaded, and nothing has changed: {error}"),
        }
    }

    /// Applies everything but the level of the log.
    async fn try_reload(&mut self) -> Result<(Report, LogLevel), String> {
        let read = self.read.clone();
        let settings = tokio::task::spawn_blocking(move || read()).await.map_err(|error| error.to_string())?;
        let ServeSettings { paths, args, values } = settings.map_err(|errors| errors.replace('\n', "; "))?;
        let args = ServeArgs { listen: self.inherited.unwrap_or(args.listen), ..args };
        let config = Config::new(paths, &args).map_err(|error| error.to_string())?;
        self.reloader.apply(&config).await.map_err(|error| error.to_string())?;
        let values = by_name(&values);
        let mut report = Report::new(&self.started, &self.applied, &values);
        if logging::is_overridden() {
            report.changed.iter_mut().filter(|text| text.starts_with("log.level ")).for_each(|text| {
                text.push_str(&format!(" (without effect: {} is set)", logging::VARIABLE));
            });
        }
        self.applied = values;
        Ok((report, args.log_level))
    }
}

/// The differences between settings.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    /// The changes, such as `log.level "info" → "debug"`.
    changed: Vec<String>,
    /// Names of keys whose values differ from those with which the server was started.
    needs_restart: Vec<&'static str>,
}

impl Report {
    fn new(started: &Values, applied: &Values, now: &Values) -> Self {
        let mut report = Self { changed: Vec::new(), needs_restart: Vec::new() };
        for key in crate::config::KEYS {
            let value = |of: &Values| of.get(key.name).cloned();
            if is_applied(key, started, now) {
                let (before, after) = (value(applied), value(now));
                if before != after {
                    let shown = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
                    report.changed.push(format!("{} {} → {}", key.name, shown(before), shown(after)));
                }
            } else if value(started) != value(now) {
                report.needs_restart.push(key.name);
            }
        }
        report
    }
}

/// True if a new value of the key applies without a restart.
fn is_applied(key: &Key, started: &Values, now: &Values) -> bool {
    match key.applies {
        Applies::AtReload => true,
        Applies::AtReloadUnlessSwitched => started.contains_key(key.name) == now.contains_key(key.name),
        Applies::AfterRestart => false,
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.changed.is_empty() {
            true => f.write_str("no setting has changed")?,
            false => f.write_str(&self.changed.join(", "))?,
        }
        match self.needs_restart.is_empty() {
            true => Ok(()),
            false => write!(f, "; needs a restart: {}", self.needs_restart.join(", ")),
        }
    }
}

fn by_name(values: &[Effective]) -> Values {
    let value = |one: &Effective| one.value.as_ref().map(|value| (one.key.name, value.to_string()));
    values.iter().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::{Report, Values};

    fn values(list: &[(&'static str, &str)]) -> Values {
        list.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
    }

    #[test]
    fn changes_are_named_once_and_restarts_until_they_happen() {
        let started = values(&[("log.level", "\"info\""), ("compute.memory", "1"), ("server.listen", "80")]);
        let first = values(&[("log.level", "\"debug\""), ("compute.memory", "2"), ("server.listen", "80")]);
        let text = |applied: &Values, now: &Values| Report::new(&started, applied, now).to_string();
        let restart = "needs a restart: compute.memory";
        assert_eq!(text(&started, &first), format!("log.level \"info\" → \"debug\"; {restart}"));
        assert_eq!(text(&first, &first), format!("no setting has changed; {restart}"));
        assert_eq!(text(&first, &started), "log.level \"debug\" → \"info\"");
        assert_eq!(text(&started, &started), "no setting has changed");
    }

    #[test]
    fn tls_is_replaced_but_not_switched() {
        let off = Values::new();
        let first = values(&[("tls.cert", "a"), ("tls.key", "b")]);
        let second = values(&[("tls.cert", "c"), ("tls.key", "b")]);
        assert_eq!(Report::new(&first, &first, &second).to_string(), "tls.cert a → c");
        assert_eq!(Report::new(&first, &first, &off).needs_restart, ["tls.cert", "tls.key"]);
        assert_eq!(Report::new(&off, &off, &first).needs_restart, ["tls.cert", "tls.key"]);
    }
}
