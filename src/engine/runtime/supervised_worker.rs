//! The compute thread. It runs the workloads in turn, round after round, and recovers a workload that panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::workload::Workload;
use super::{DeviceCheck, Runtime, ShutdownPhase};
use crate::engine::error::Failure;

pub struct Worker {
    runtime: Arc<Runtime>,
    workloads: Vec<Supervised>,
    device_check: DeviceCheck,
}

/// A workload and its health.
struct Supervised {
    workload: Box<dyn Workload>,
    /// It panicked, and its recovery panicked too.
    is_down: bool,
}

impl Worker {
    /// Each round runs the workloads in this order.
    pub fn new(runtime: Arc<Runtime>, workloads: Vec<Box<dyn Workload>>, device_check: DeviceCheck) -> Self {
        let supervised = |workload| Supervised { workload, is_down: false };
        Self { runtime, workloads: workloads.into_iter().map(supervised).collect(), device_check }
    }

    /// Runs until the engine is closed.
    pub fn run(mut self) {
        let mut idle = true;
        loop {
            let poll = self.workloads.iter().any(|one| one.is_down || one.workload.needs_polling());
            let phase = self.runtime.wait(idle, poll);
            idle = !self.round(phase);
            if phase == ShutdownPhase::Closed {
                return;
            }
        }
    }

    /// Runs each workload once. `false`: none had anything to do.
    fn round(&mut self, phase: ShutdownPhase) -> bool {
        let mut busy = false;
        for one in &mut self.workloads {
            busy |= one.turn(&self.runtime, phase, busy);
        }
        let down = self.workloads.iter().filter(|one| one.is_down).count();
        self.runtime.set_down(down);
        self.runtime.check_device(&self.device_check);
        busy
    }
}

impl Supervised {
    fn turn(&mut self, runtime: &Runtime, phase: ShutdownPhase, busy: bool) -> bool {
        if self.is_down && !self.recover(runtime) {
            return false;
        }
        let workload = &mut self.workload;
        let turn = || {
            if phase > ShutdownPhase::Running {
                workload.fail(&Failure::ShuttingDown, phase >= ShutdownPhase::Aborting);
            }
            workload.sweep();
            phase < ShutdownPhase::Closed && workload.step(busy)
        };
        catch_unwind(AssertUnwindSafe(turn)).unwrap_or_else(|_| {
            let name = self.workload.name();
            tracing::error!(workload = name, "a workload panicked; its requests fail and it restarts");
            runtime.metrics.panic(name);
            runtime.set_down(1);
            self.recover(runtime);
            true
        })
    }

    /// `false`: it panicked again, and the next round retries.
    fn recover(&mut self, runtime: &Runtime) -> bool {
        let workload = &mut self.workload;
        let recovered = catch_unwind(AssertUnwindSafe(|| workload.recover(&Failure::panicked()))).is_ok();
        if !recovered {
            runtime.metrics.panic(self.workload.name());
        }
        self.is_down = !recovered;
        recovered
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::clock_rng::StoppedClock;
    use crate::engine::runtime::DeviceInfo;
    use crate::engine::runtime::metrics::Metrics;
    use crate::engine::settings::Settings;
    use crate::models::ModelError;

    #[test]
    fn a_device_that_fails_its_check_is_lost_until_a_check_succeeds() {
        let settings = Settings::new(std::path::Path::new("."), 1 << 20);
        let device = DeviceInfo { index: 0, name: "cuda:0".to_owned() };
        let runtime =
            Arc::new(Runtime::new(settings, device, Arc::new(Metrics::new(Vec::new())), Arc::new(StoppedClock)));
        let works = Arc::new(AtomicBool::new(true));
        let own = Arc::clone(&works);
        let check = move || if own.load(Ordering::SeqCst) { Ok(()) } else { Err("it fell off the bus".to_owned()) };
        let mut worker = Worker::new(Arc::clone(&runtime), Vec::new(), Box::new(check));
        let mut lost_after = |error: ModelError, device_works: bool| {
            works.store(device_works, Ordering::SeqCst);
            let failure = runtime.model_failure("model", &error);
            assert_eq!(matches!(failure, Failure::Device { .. }), matches!(error, ModelError::Device(_)));
            worker.round(ShutdownPhase::Running);
            runtime.is_device_lost()
        };
        let out_of_memory = || ModelError::Device("out of memory".to_owned());
        assert!(!lost_after(ModelError::Compute("a bug".to_owned()), false), "only errors of the device are checked");
        assert!(!lost_after(out_of_memory(), true), "the device works again");
        assert!(lost_after(out_of_memory(), false));
        assert!(lost_after(ModelError::Compute("a bug".to_owned()), true), "it is not checked again without an error");
        assert!(!lost_after(out_of_memory(), true));
    }
}
