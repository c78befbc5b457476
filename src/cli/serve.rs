//! `outpost serve`.

use std::io::{IsTerminal, Write, stdout};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix_web::rt::SystemRunner;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::banner::{SignIn, Started};
use super::output::Outcome;
use super::sandbox::this_program;
use crate::app::{ADMIN_KEY_FILE, App, Reloader, Stopper, SystemClockRng};
use crate::catalog::{self, Catalog, CatalogModel, progress};
use crate::clock_rng::ClockRng;
use crate::config::{Config, DataPaths, LogFormat, ServeArgs};
use crate::logging;

pub fn run(paths: DataPaths, args: &ServeArgs, out: &mut dyn Write) -> Outcome {
    // Must come first: a signal without a handler ends the process.
    let system = actix_web::rt::System::new();
    let signals = system.block_on(async { Signals::listen() })?;
    let config = Config { sandbox: Some(this_program()?), ..Config::new(paths, args)? };
    logging::start(args.log_format);
    // Before anything is pulled or created.
    App::check(&config)?;
    let models = &config.paths.models;
    let is_new = !models.exists();
    let outcome = start(&config, args.log_format, &system, signals, out);
    // Models that were pulled stay, and so do parts of one, so that the next pull continues.
    if outcome.is_err() && is_new && !has_content(models) {
        let _removed = std::fs::remove_dir_all(models);
    }
    outcome
}

/// Whether a folder has any file that is not empty. A pull that has not begun leaves folders and empty lock files.
fn has_content(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => has_content(&entry.path()),
        Ok(found) => found.len() > 0,
        Err(_) => true,
    })
}

fn start(config: &Config, format: LogFormat, system: &SystemRunner, signals: Signals, out: &mut dyn Write) -> Outcome {
    let models = &config.paths.models;
    std::fs::create_dir_all(models)
        .map_err(|cause| format!("the models folder {} cannot be created: {cause}", models.display()))?;
    if config.pull {
        pull_starter(models, out)?;
    }
    system.block_on(serve(config, format, signals, out))
}

/// Pulls the starter models if the models folder is empty, except for the models of a checkout.
fn pull_starter(models: &Path, out: &mut dyn Write) -> Outcome {
    let catalog = Catalog::builtin();
    let is_embedded = |name: &str| catalog.find(name).is_some_and(CatalogModel::is_embedded);
    if catalog::model_folders(models).iter().any(|found| !is_embedded(&found.name)) {
        return Ok(());
    }
    let starter: Vec<_> = catalog.starter().iter().filter_map(|name| catalog.find(name)).collect();
    writeln!(out, "No model is installed: pulling the starter set ({}).", catalog.starter().join(", "))?;
    for model in starter {
        catalog::pull(model, models, progress::for_stderr().as_mut())
            .map_err(|cause| format!("{}: {cause}\n\nTo start without models: outpost serve --no-pull", model.name))?;
    }
    Ok(())
}

async fn serve(config: &Config, format: LogFormat, signals: Signals, out: &mut dyn Write) -> Outcome {
    let clock_rng = Arc::new(SystemClockRng::new());
    let app = App::start(config, clock_rng.clone()).await?;
    print_banner(&app, config, &*clock_rng, format, out)?;
    let (stopper, reloader) = (app.stopper(), app.reloader());
    let background = actix_web::rt::spawn(signals.handle(reloader));
    let stop = actix_web::rt::spawn(stop_at_signal(stopper, config.stop_delay));
    app.run().await?;
    stop.abort();
    background.abort();
    tracing::info!("stopped");
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

    /// SIGHUP loads the TLS certificate again; SIGUSR1 and SIGUSR2 do nothing.
    async fn handle(mut self, reloader: Reloader) {
        loop {
            tokio::select! {
                _ = self.hangup.recv() => {
                    tracing::info!("SIGHUP received");
                    reloader.reload().await;
                }
                _ = self.user1.recv() => tracing::info!("SIGUSR1 received; it has no effect"),
                _ = self.user2.recv() => tracing::info!("SIGUSR2 received; it has no effect"),
            }
        }
    }
}

/// Stops the server at SIGINT or SIGTERM, after `delay` or at the next of these signals.
async fn stop_at_signal(stopper: Stopper, delay: Duration) {
    if let Err(cause) = shutdown_signal().await {
        tracing::error!(%cause, "cannot receive signals");
        return;
    }
    if !delay.is_zero() {
        stopper.announce();
        tracing::info!(?delay, "/readyz is 503 now; requests are refused after the delay or at the next signal");
        tokio::select! {
            () = actix_web::rt::time::sleep(delay) => {}
            _ = shutdown_signal() => {}
        }
    }
    tracing::info!("stopping: running requests may finish, new ones are refused");
    stopper.stop().await;
}

/// Resolves at SIGINT or SIGTERM.
async fn shutdown_signal() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
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
