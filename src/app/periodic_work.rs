//! Periodic work of a running server: it drops what has expired, and exchanges rate limits with other nodes.

use std::sync::Arc;
use std::time::Duration;

use actix_web::web::Data;
use arc_swap::ArcSwap;

use super::run_record::RunRecord;
use crate::engine::Engine;
use crate::http::Api;
use crate::ids::ProjectId;
use crate::service::Services;
use crate::service::limits::Limits;
use crate::service::usage::Retention;

/// Drops old usage details now and every hour.
pub(super) async fn prune(api: Data<Api>, retention: Arc<ArcSwap<Retention>>) {
    let Services { maintenance, usage, .. } = &api.services;
    loop {
        if maintenance.is_due_here().await {
            match usage.prune(**retention.load()).await {
                Ok(0) => {}
                Ok(rows) => tracing::info!(rows, "usage details older than their retention are dropped"),
                Err(error) => tracing::warn!(%error, "old usage details could not be dropped"),
            }
        }
        actix_web::rt::time::sleep(Duration::from_secs(3600)).await;
    }
}

/// Records every minute that the server is still running.
pub(super) async fn record_run(record: Arc<RunRecord>) {
    loop {
        actix_web::rt::time::sleep(Duration::from_secs(60)).await;
        let record = record.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || record.refresh()).await {
            tracing::warn!(%error, "the record of this run is out of date");
        }
    }
}

/// Removes expired images, responses and the like, and what the engine keeps of archived projects, now and every minute.
pub(super) async fn sweep(api: Data<Api>, engine: Engine) {
    let store = api.store.clone();
    loop {
        let keeping = store.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || keeping.keep_space_back()).await {
            tracing::warn!(%error, "no space could be kept back for a full disk");
        }
        if api.services.maintenance.is_due_here().await {
            sweep_once(&api.services).await;
        }
        forget_archived(&api.services, &engine).await;
        actix_web::rt::time::sleep(Duration::from_secs(60)).await;
    }
}

async fn sweep_once(services: &Services) {
    log_sweep("images", services.stored_images.sweep().await);
    log_sweep("responses", services.responses.sweep().await);
    log_sweep("chat completions", services.chat_completions.sweep().await);
    if let Err(error) = services.maintenance.sweep().await {
        tracing::warn!(%error, "expired idempotency keys could not be removed");
    }
}

/// Deletes the texts of archived projects from the prefix cache on disk, which each node has for itself.
async fn forget_archived(services: &Services, engine: &Engine) {
    for tenant in engine.tenants_on_disk() {
        match services.projects.is_active(ProjectId::from_bytes(tenant.to_be_bytes())).await {
            Ok(true) => {}
            Ok(false) => engine.forget_on_disk(tenant),
            Err(error) => {
                tracing::warn!(%error, "texts of archived projects may still be in the prefix cache on disk");
                return;
            }
        }
    }
}

/// `what` was to be removed, and how many were.
fn log_sweep(what: &str, swept: crate::error::Result<usize>) {
    match swept {
        Ok(0) => {}
        Ok(count) => tracing::debug!(count, "expired {what} are removed"),
        Err(error) => tracing::warn!(%error, "expired {what} could not be removed"),
    }
}

/// Exchanges debts and unused leases of rate limits with other nodes twice a second.
pub(super) async fn exchange_leases(limits: Limits) {
    loop {
        actix_web::rt::time::sleep(Duration::from_millis(500)).await;
        limits.exchange_leases();
    }
}
