//! `outpost serve`.

use std::error::Error;
use std::io::{IsTerminal, Write, stdout};
use std::net::TcpListener;
use std::panic;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix_web::rt::SystemRunner;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::banner::{SignIn, Started};
use super::output::Outcome;
use super::reload::{ConfigReload, RunningSettings, ServeSettings};
use super::sandbox::this_program;
use super::stop_signals::StopSignals;
use crate::app::run_record::RunRecord;
use crate::app::{ADMIN_KEY_FILE, App, Reloader, Stopper, SystemClockRng};
use crate::catalog::{self, Catalog, CatalogModel, UserError, progress};
use crate::clock_rng::ClockRng;
use crate::config::{BadConfig, Config, DEFAULT_LISTEN, DataPaths, LogFormat, ServeArgs};
use crate::logging;
use crate::systemd::{self, Notifier};

/// How a server is started.
struct Start {
    config: Config,
    log_format: LogFormat,
    /// The socket from systemd, if there is one.
    listener: Option<TcpListener>,
    systemd: Notifier,
    /// The settings that SIGHUP reloads.
    running_settings: Box<dyn FnOnce(Reloader) -> RunningSettings>,
}

pub fn run(settings: ServeSettings, reload: ConfigReload, out: &mut dyn Write) -> Outcome {
    let ServeSettings { paths, args, values } = settings;
    // Must come first: there must be no threads yet.
    let listener = systemd::inherited_listener()?;
    // Then this: a signal without a handler ends the process.
    let system = actix_web::rt::System::new();
    let signals = system.block_on(async { Signals::listen() })?;
    let config = match &listener {
        Some(listener) => config_for(listener, paths, &args)?,
        None => Config::new(paths, &args)?,
    };
    let config = Config { sandbox: Some(this_program()?), ..config };
    let log = logging::start(args.log_format, args.log_level);
    if config.listen != args.listen && args.listen.to_string() != DEFAULT_LISTEN {
        tracing::warn!(ignored = %args.listen, "the socket from systemd is used, not the address of --listen");
    }
    // Before anything is pulled or created.
    App::check(listener.as_ref(), &config)?;
    let models = config.paths.models.clone();
    let is_new = !models.exists();
    let inherited = listener.is_some().then_some(config.listen);
    let running_settings = Box::new(move |reloader| reload.of(&values, reloader, log, inherited));
    let systemd = Notifier::from_env();
    let start = Start { config, log_format: args.log_format, listener, systemd, running_settings };
    let outcome = start.run(&system, signals, out);
    // Models that were pulled stay, and so do parts of one, so that the next pull continues.
    if outcome.is_err() && is_new && !has_content(&models) {
        let _removed = std::fs::remove_dir_all(models);
    }
    outcome
}

/// The configuration for a socket from systemd, whose address counts.
fn config_for(listener: &TcpListener, paths: DataPaths, args: &ServeArgs) -> Result<Config, Box<dyn Error>> {
    let args = ServeArgs { listen: listener.local_addr()?, ..args.clone() };
    let config = Config::new(paths, &args);
    config.map_err(|cause| match cause {
        BadConfig::PlainText(_) => {
            format!("{cause}. The socket is from systemd: ListenStream= sets its address").into()
        }
        other => other.into(),
    })
}

/// True if a folder has any file that is not empty. A pull that did not start leaves folders and empty lock files.
fn has_content(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => has_content(&entry.path()),
        Ok(found) => found.len() > 0,
        Err(_) => true,
    })
}

impl Start {
    fn run(self, system: &SystemRunner, signals: Signals, out: &mut dyn Write) -> Outcome {
        let models = &self.config.paths.models;
        std::fs::create_dir_all(models)
            .map_err(|cause| format!("the models folder {} cannot be created: {cause}", models.display()))?;
        if self.config.pull {
            pull_starter(models, &self.systemd, out)?;
        }
        system.block_on(self.serve(signals, out))
    }

    async fn serve(self, signals: Signals, out: &mut dyn Write) -> Outcome {
        let Self { config, log_format, listener, systemd, running_settings } = self;
        let clock_rng = Arc::new(SystemClockRng::new());
        let app = App::start_on(listener, &config, clock_rng.clone()).await?;
        // A script may stop the server as soon as it reads that it has started.
        let stop_signals = StopSignals::listen()?;
        print_banner(&app, &config, &*clock_rng, log_format, out)?;
        let (stopper, reloader) = (app.stopper(), app.reloader());
        let background = actix_web::rt::spawn(signals.handle(running_settings(reloader)));
        let stop = actix_web::rt::spawn(stop_at_signal(stop_signals, stopper, config.stop_delay, systemd.clone()));
        systemd.ready(&format!("Listening on {}", app.url()));
        record_panics(app.run_record());
        app.run().await?;
        stop.abort();
        background.abort();
        tracing::info!("stopped");
        Ok(())
    }
}

/// Keeps panics in the record of this run, besides printing them.
fn record_panics(record: Arc<RunRecord>) {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        record.panicked(info);
        print(info);
    }));
}

/// Pulls the starter models if the models folder is empty, except for the models of a checkout.
fn pull_starter(models: &Path, systemd: &Notifier, out: &mut dyn Write) -> Outcome {
    let catalog = Catalog::builtin();
    let is_embedded = |name: &str| catalog.find(name).is_some_and(CatalogModel::is_embedded);
    if catalog::models_on_disk(models).iter().any(|found| !is_embedded(&found.name)) {
        return Ok(());
    }
    let starter: Vec<_> = catalog.starter().iter().filter_map(|name| catalog.find(name)).collect();
    systemd.status("Pulling the starter models");
    let names = catalog.starter().join(", ");
    match stdout().is_terminal() {
        true => writeln!(out, "No model is installed: pulling the starter set ({names}).")?,
        false => tracing::info!("no model is installed: pulling the starter set ({names})"),
    }
    for model in starter {
        catalog::pull(model, models, progress::for_stderr().as_mut()).map_err(|cause| {
            let cause = cause.for_command();
            format!("{}: {cause}\n\nTo start without models: outpost serve --no-pull", model.name)
        })?;
    }
    Ok(())
}

/// The signals that never end the server. Their handlers stay installed as long as the process runs.
struct Signals {
    hangup: Signal,
    user1: Signal,
    user2: Signal,
}

impl Signals {
    /// Must be called inside a runtime.
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// SIGHUP reads the configuration again; SIGUSR1 and SIGUSR2 do nothing.
    async fn handle(mut self, mut settings: RunningSettings) {
        loop {
            tokio::select! {
                _ = self.hangup.recv() => {
                    tracing::info!("SIGHUP received");
                    settings.reload().await;
                }
                _ = self.user1.recv() => tracing::info!("SIGUSR1 received; it has no effect"),
                _ = self.user2.recv() => tracing::info!("SIGUSR2 received; it has no effect"),
            }
        }
    }
}

/// Stops the server at SIGINT or SIGTERM, after `delay` or at the next of these signals.
async fn stop_at_signal(mut signals: StopSignals, stopper: Stopper, delay: Duration, systemd: Notifier) {
    signals.next().await;
    systemd.stopping("Running requests may finish");
    if !delay.is_zero() {
        stopper.announce();
        tracing::info!(?delay, "/readyz is 503 now; requests are refused after the delay or at the next signal");
        tokio::select! {
            () = actix_web::rt::time::sleep(delay) => {}
            () = signals.next() => {}
        }
    }
    tracing::info!("stopping: running requests may finish, new ones are refused");
    stopper.stop().await;
}

/// On a terminal, stdout gets a page for its user. Elsewhere it may be kept or sent on, and gets one line.
fn print_banner(
    app: &App,
    config: &Config,
    clock_rng: &dyn ClockRng,
    format: LogFormat,
    out: &mut dyn Write,
) -> Outcome {
    let started = Started {
        url: app.url(),
        local_url: app.local_url(),
        paths: &config.paths,
        models: app.count_models(),
        device: app.device(),
        took: clock_rng.uptime(),
    };
    if !stdout().is_terminal() {
        return Ok(started.print_line(format, clock_rng.now(), out)?);
    }
    let admin_key = config.paths.data.join(ADMIN_KEY_FILE);
    let admin_key = Some(&*admin_key).filter(|file| file.exists());
    Ok(started.print_page(&SignIn { link: app.sign_in_link(), admin_key }, out)?)
}
