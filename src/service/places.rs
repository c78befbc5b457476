//! Places for requests of one kind: a bound for all, and a lower one for each project, so that the clients of one
//! project cannot keep out everyone else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Code, Error, Result};
use crate::ids::ProjectId;

/// How many requests of one kind each project has running.
pub struct Places {
    /// For messages: what too many of are running.
    what: &'static str,
    taken: Mutex<HashMap<ProjectId, usize>>,
    of_all: usize,
    of_one: usize,
}

/// A place, free again when this is dropped.
pub struct Place {
    project: ProjectId,
    places: Arc<Places>,
}

impl Places {
    /// Room for so many requests, and for so many of one project. `what` completes "Too many … at once".
    pub fn new(what: &'static str, of_all: usize, of_one: usize) -> Arc<Self> {
        Arc::new(Self { what, taken: Mutex::default(), of_all, of_one })
    }

    pub fn take(self: &Arc<Self>, project: ProjectId) -> Result<Place> {
        let Self { what, of_all, of_one, .. } = **self;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let own = taken.entry(project).or_default();
        if *own >= of_one || all >= of_all {
            let text = format!(
                "Too many {what} at once: a project may have {of_one}, all together {of_all}. Try again shortly, with backoff."
            );
            return Err(Error::new(Code::Overloaded, text));
        }
        *own += 1;
        Ok(Place { project, places: self.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.project) {
            *own -= 1;
        }
        taken.retain(|_, own| *own > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Places;
    use crate::ids::ProjectId;

    const OF_ALL: usize = 32;
    const OF_ONE: usize = 8;

    #[test]
    fn no_project_takes_every_place_and_a_place_comes_back() {
        let places = Places::new("files are being uploaded", OF_ALL, OF_ONE);
        let project = |number: u8| ProjectId::from_bytes([number; 16]);
        let mut taken: Vec<_> = (0..OF_ONE).map(|_| places.take(project(0)).unwrap()).collect();
        assert!(places.take(project(0)).is_err());
        let others = (1..).flat_map(|number| [number; OF_ONE]).take(OF_ALL - OF_ONE);
        taken.extend(others.map(|number| places.take(project(number)).unwrap()));
        assert!(places.take(project(99)).is_err());
        taken.pop();
        assert!(places.take(project(99)).is_ok());
        drop(taken);
        assert!(places.taken.lock().unwrap().is_empty());
    }
}
