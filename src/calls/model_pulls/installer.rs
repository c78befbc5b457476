//! Plans and installs the models of pulls, on threads that may block.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ring::digest;

use super::errors::{from_catalog, from_hub};
use super::job::{Job, PullState};
use super::plan::PullPlan;
use super::progress::JobProgress;
use super::request::{PullRequest, PullSource};
use crate::catalog::{Catalog, CatalogModel, PullOptions, pull_with};
use crate::clock_rng::ClockRng;
use crate::disk_space::{DataClass, DiskReserve};
use crate::display::hex;
use crate::download::Checksum;
use crate::engine::{Engine, Settings};
use crate::error::{Code, Error, Result};
use crate::hub::{Hub, HubSettings, InstallOptions, ModelReference, Plan, PlanOptions, PlannedFile, foreign_owner};
use crate::progress::Progress;
use crate::service::access::Access;

/// Plans and installs models.
#[derive(Clone)]
pub(super) struct Installer {
    pub hub: HubSettings,
    pub engine: Engine,
    pub clock_rng: Arc<dyn ClockRng>,
    /// Of the disk with the models folder.
    pub reserve: DiskReserve,
}

impl Installer {
    /// Installs the model of a job. Returns its size.
    pub fn install(&self, job: &Job) -> Result<u64> {
        if let Some(owner) = foreign_owner(&self.models_dir()) {
            let text = format!(
                "The models folder belongs to the user with the ID {owner}, and the server runs as root. Ask the operator to run it as that user."
            );
            return Err(Error::new(Code::StorageUnavailable, text));
        }
        self.reserve.require(DataClass::Bulk, 1)?;
        job.status.send_modify(|status| status.state = PullState::Resolving);
        let mut progress = JobProgress::new(job, &*self.clock_rng, &self.reserve);
        let installed = match &job.request.source {
            PullSource::Catalog(name) => self.install_of_catalog(find(name)?, job, &mut progress),
            PullSource::Hub(model) => self.install_of_hub(model, job, &mut progress),
        };
        let bytes = installed.map_err(|error| progress.refused().unwrap_or(error))?;
        self.engine.models().rescan();
        Ok(bytes)
    }

    fn install_of_hub(&self, model: &ModelReference, job: &Job, progress: &mut JobProgress<'_>) -> Result<u64> {
        let failed = |error| from_hub(&error);
        let hub = Hub::new(self.hub.clone(), self.clock_rng.clone()).map_err(failed)?;
        let plan = hub.plan(model, &self.options(&job.request), progress).map_err(failed)?;
        job.access.require_listed(&plan.name)?;
        progress.set_total(plan.bytes());
        job.status.send_modify(|status| {
            status.name = Some(plan.name.clone());
            status.revision = Some(plan.repository.revision.clone());
            status.license.clone_from(&plan.repository.license);
            status.digest = Some(digest_of(&plan));
        });
        let options =
            InstallOptions { force: job.request.force, verify: false, max_bytes: None, now: self.clock_rng.now() };
        hub.install(&plan, &self.models_dir(), options, progress).map_err(failed)?;
        Ok(plan.bytes())
    }

    /// Installs a model of the catalog after those that it depends on.
    fn install_of_catalog(&self, model: &CatalogModel, job: &Job, progress: &mut JobProgress<'_>) -> Result<u64> {
        job.access.require_listed(&model.name)?;
        job.status.send_modify(|status| {
            status.name = Some(model.name.clone());
            status.license = Some(model.license.clone());
            status.digest = Some(digest_of_catalog(model));
        });
        let needed = model.needs.iter().filter_map(|name| Catalog::builtin().find(name));
        for model in needed.chain([model]) {
            let pulled = pull_with(model, &self.models_dir(), &PullOptions::from_env(), progress);
            pulled.map_err(|error| from_catalog(&error))?;
        }
        Ok(model.bytes())
    }

    /// The plan of a pull: the model that it would install.
    pub fn plan(&self, access: &Access, request: &PullRequest, cancel: &Arc<AtomicBool>) -> Result<PullPlan> {
        let models_dir = self.models_dir();
        match &request.source {
            PullSource::Catalog(name) => {
                access.require_listed(name)?;
                Ok(PullPlan::of_catalog(find(name)?, self.settings().memory_bytes, &models_dir))
            }
            PullSource::Hub(model) => {
                let failed = |error| from_hub(&error);
                let hub = Hub::new(self.hub.clone(), self.clock_rng.clone()).map_err(failed)?;
                let mut progress = CancellableProgress(Arc::clone(cancel));
                let plan = hub.plan(model, &self.options(request), &mut progress).map_err(failed)?;
                access.require_listed(&plan.name)?;
                Ok(PullPlan::of_hub(request.model(), &plan, &models_dir))
            }
        }
    }

    fn options(&self, request: &PullRequest) -> PlanOptions {
        PlanOptions { name: request.name.clone(), sha256: request.sha256.clone(), settings: self.settings() }
    }

    /// For the device that the model will run on, if it is not named with a device of its own.
    fn settings(&self) -> Settings {
        self.engine.models().default_device_settings()
    }

    fn models_dir(&self) -> PathBuf {
        self.engine.models().folder()
    }
}

fn find(name: &str) -> Result<&'static CatalogModel> {
    Catalog::builtin().find(name).ok_or_else(|| Error::internal("the catalog has lost a model"))
}

/// The sha256 of the only file, if it is known, or else a hash of the names and hashes of all.
fn digest_of(plan: &Plan) -> String {
    match plan.files.as_slice() {
        [PlannedFile { checksum: Checksum::Sha256(digest), .. }] => digest.clone(),
        several => hash(several.iter().map(|file| format!("{} {}\n", file.path, file.checksum.key().unwrap_or("?")))),
    }
}

fn digest_of_catalog(model: &CatalogModel) -> String {
    match model.files.as_slice() {
        [only] => only.sha256.clone(),
        several => hash(several.iter().map(|file| format!("{} {}\n", file.name, file.sha256))),
    }
}

fn hash(lines: impl Iterator<Item = String>) -> String {
    hex(digest::digest(&digest::SHA256, lines.collect::<String>().as_bytes()).as_ref())
}

/// Reports nothing, and can be cancelled.
struct CancellableProgress(Arc<AtomicBool>);

impl Progress for CancellableProgress {
    fn start(&mut self, _: &str, _: u64) {}
    fn advance(&mut self, _: u64) {}
    fn done(&mut self) {}
    fn note(&mut self, _: &str) {}

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
