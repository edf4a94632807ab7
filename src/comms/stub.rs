//! The twin of `mpi.rs` in a build without MPI: the same names, each saying that MPI is not there.

use crate::error::{Error, Result};

/// Never made in this build.
pub enum Session {}

/// Says that this build has no MPI.
///
/// # Errors
/// Always.
pub fn start() -> Result<Session> {
    Err(Error::Comms {
        problem: "this tidemill was built without MPI".to_owned(),
        mend: "build it with the default features (cargo build --release) to run under mpirun".to_owned(),
    })
}

impl Session {
    /// Ranks in all.
    pub fn world_size(&self) -> usize {
        match *self {}
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        match *self {}
    }

    /// Ends every rank at once.
    pub fn abort(&self, _exit_code: u8) -> ! {
        match *self {}
    }
}
