//! The twin of `mpi.rs` in a build without MPI: the same names; starting says that MPI is not there.

use crate::error::{Error, Result};

/// See `mpi.rs`.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) peer: Option<usize>,
    pub(super) problem: String,
}

/// Never made in this build: `start`, its only source, fails. (An empty enum would say so to the compiler, which then warns of
/// all that its users do after a start.)
pub(super) struct World(());

const NEVER: &str = "no World is made in a build without MPI";

impl World {
    /// # Errors
    /// Always: this build has no MPI.
    pub(super) fn start() -> Result<World> {
        Err(Error::Comms {
            problem: "this tidemill was built without MPI".to_owned(),
            mend: "build it with the default features (cargo build --release) to run under mpirun".to_owned(),
        })
    }

    pub(super) fn rank(&self) -> usize {
        unreachable!("{NEVER}")
    }

    pub(super) fn size(&self) -> usize {
        unreachable!("{NEVER}")
    }

    pub(super) fn send(&mut self, _to: usize, _frame: Vec<u8>) -> std::result::Result<(), Fault> {
        unreachable!("{NEVER}")
    }

    pub(super) fn advance(&mut self, _frames: &mut Vec<(usize, u64, Vec<u8>)>) -> std::result::Result<bool, Fault> {
        unreachable!("{NEVER}")
    }

    pub(super) fn is_busy(&self) -> bool {
        unreachable!("{NEVER}")
    }

    pub(super) fn has_sent_all(&self) -> bool {
        unreachable!("{NEVER}")
    }

    pub(super) fn finalize(self) {
        unreachable!("{NEVER}")
    }

    pub(super) fn abort(&self, _exit_code: u8) -> ! {
        unreachable!("{NEVER}")
    }
}

#[cfg(test)]
mod tests {
    use crate::comms::{CommConfig, Communicator};

    #[test]
    fn a_build_without_mpi_says_so() {
        let error = Communicator::mpi(&CommConfig::default()).expect_err("no MPI in this build");
        assert!(error.sentence().contains("built without MPI") && error.sentence().contains("cargo build"));
    }
}
