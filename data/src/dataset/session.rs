//! What goes with a reading beside its configuration: who hears of notices and progress, and where faults go.

use crate::error::{Fault, Result};
use std::path::PathBuf;

/// What a reader is given beside the configuration.
pub struct Watch<'a> {
    /// Takes a sentence about anything that was decided or changed on the way.
    pub notice: &'a mut dyn FnMut(String),
    /// Takes the bytes read of the file and its size, now and then.
    pub progress: &'a mut dyn FnMut(u64, u64),
    /// Folder of the temporary file for features that do not fit memory; absent: the system's.
    pub scratch: Option<PathBuf>,
}

/// One reading of a file.
pub(crate) struct Session<'a> {
    pub(crate) notice: &'a mut dyn FnMut(String),
    pub(crate) progress: &'a mut dyn FnMut(u64, u64),
    pub(crate) scratch: PathBuf,
    pub(crate) faults: Faults,
}

impl<'a> Session<'a> {
    pub(crate) fn new(watch: Watch<'a>, faults: Faults) -> Session<'a> {
        let scratch = watch.scratch.unwrap_or_else(std::env::temp_dir);
        Session { notice: watch.notice, progress: watch.progress, scratch, faults }
    }
}

/// Where faults of rows go.
pub(crate) enum Faults {
    /// The first one ends the reading.
    EndAtFirst,
    /// All are counted, the rows left out.
    Count(Tally),
}

/// Faults by kind.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) kinds: Vec<(&'static str, u64, Vec<Fault>)>,
}

/// Faults of a kind that are kept with their places.
pub(crate) const KEPT: usize = 20;

impl Faults {
    /// Takes a fault.
    ///
    /// # Errors
    /// The fault, if it ends the reading.
    pub(crate) fn found(&mut self, fault: Fault) -> Result<()> {
        match self {
            Faults::EndAtFirst => Err(fault.into()),
            Faults::Count(tally) => {
                tally.add(fault);
                Ok(())
            }
        }
    }

    /// Forgets all: the file is read again from its start.
    pub(crate) fn restart(&mut self) {
        if let Faults::Count(tally) = self {
            *tally = Tally::default();
        }
    }

    pub(crate) fn into_tally(self) -> Tally {
        match self {
            Faults::EndAtFirst => Tally::default(),
            Faults::Count(tally) => tally,
        }
    }
}

impl Tally {
    pub(crate) fn add(&mut self, fault: Fault) {
        let name = fault.kind.name();
        let kind = match self.kinds.iter_mut().position(|(known, ..)| *known == name) {
            Some(at) => &mut self.kinds[at],
            None => {
                self.kinds.push((name, 0, Vec::new()));
                self.kinds.last_mut().expect("just pushed")
            }
        };
        kind.1 += 1;
        if kind.2.len() < KEPT {
            kind.2.push(fault);
        }
    }
}
