//! One program on every rank, from its start to a common end.

use super::CommConfig;
use super::communicator::Communicator;
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::io;

/// Runs `work` on the ranks that the launcher started, or alone. Ranks whose program is another are refused; what one rank's
/// `work` returns as an error, all end with. The process then tells its error and calls [`leave`](super::leave) last of all.
///
/// # Errors
/// `work`'s; a rank is lost; MPI can not be started; the ranks run different programs.
pub fn together<T>(config: &CommConfig, work: impl FnOnce(&Communicator) -> Result<T>) -> Result<T> {
    let comm = Communicator::launched(config)?;
    match agree_on_program(&comm).and_then(|()| work(&comm)) {
        Ok(value) => comm.finish().map(|()| value),
        Err(error) => {
            comm.abandon(&error);
            Err(error)
        }
    }
}

/// By the bytes of the program itself: a version would not tell two builds of it apart.
fn agree_on_program(comm: &Communicator) -> Result<()> {
    if comm.world() == 1 {
        return Ok(());
    }
    let path = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let mut program = std::fs::File::open(&path).map_err(Error::io("read", &path))?;
    let mut hash = HashWriter(Sha256::new());
    io::copy(&mut program, &mut hash).map_err(Error::io("read", &path))?;
    comm.agree("program", &hash.0.finalize())
}

struct HashWriter(Sha256);

impl io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
