//! MPI by way of rsmpi: start, world, abort. The only file that names the crate.

use crate::error::{Error, Result};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::topology::Communicator as _;

/// MPI between its initialisation and its finalisation, which happens on drop.
pub struct Session {
    universe: Universe,
}

/// Initialises MPI. One thread owns it (`MPI_THREAD_FUNNELED`); others reach it by queues.
///
/// # Errors
/// MPI is in use already, or its library allows no second thread in the process.
pub fn start() -> Result<Session> {
    let refused = |problem: &str| Error::Comms {
        problem: problem.to_owned(),
        mend: "start tidemill with mpirun, once per process".to_owned(),
    };
    let (universe, level) =
        mpi::initialize_with_threading(Threading::Funneled).ok_or_else(|| refused("MPI was initialised before"))?;
    if level < Threading::Funneled {
        return Err(refused("this MPI library does not allow threads beside its own"));
    }
    Ok(Session { universe })
}

impl Session {
    /// Ranks in all.
    pub fn world_size(&self) -> usize {
        usize::try_from(self.universe.world().size()).expect("a world has at least one rank")
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        usize::try_from(self.universe.world().rank()).expect("a rank is not negative")
    }

    /// Ends every rank at once, without any collective.
    pub fn abort(&self, exit_code: u8) -> ! {
        self.universe.world().abort(i32::from(exit_code))
    }
}
