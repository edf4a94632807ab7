//! Messages between ranks: bytes by tag, sums, small collectives, an account of what they cost, and how a run ends for all.
//!
//! A [`Communicator`] is alone, one of several threads of a process (`local.rs`) or one of several processes (`mpi.rs`, the only
//! file that names the MPI crate; without the feature `stub.rs` takes its place and says so). This file alone knows of the
//! feature. What is received lies on the rank's desk (`desk.rs`) until it is taken.
//!
//! Invariants: a send never waits for its receiver; messages of one sender and tag keep their order; once a rank is lost every
//! call on every rank ends with an error that names it. Deliberately absent: what is in the messages; requests for data (all
//! needs are planned before, so owners send unasked); retries (a lost rank ends the run, which resumes from its checkpoint).

mod clock;
mod collective;
mod communicator;
mod desk;
mod health;
mod launch;
mod ledger;
mod local;
mod measure;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(not(feature = "mpi"))]
#[path = "stub.rs"]
mod mpi;
mod processes;
mod sum;
mod tag;
#[cfg(test)]
mod tests;
mod together;
mod wire;

pub use communicator::{Communicator, Received};
pub use launch::Launch;
pub use ledger::{Account, Ledger};
pub use measure::Rates;
pub use processes::leave;
pub use sum::{Pending, Summand};
pub use tag::{Purpose, Tag};
pub use together::together;

use crate::byte_size::ByteSize;
use serde::{Deserialize, Serialize};

/// The `[comm]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommConfig {
    /// Seconds without a sign of life after which a peer counts as lost.
    pub timeout_s: f64,
    /// Gradients that travel in one message; 0: all of them.
    pub bucket_bytes: ByteSize,
}

impl Default for CommConfig {
    fn default() -> Self {
        CommConfig { timeout_s: 60.0, bucket_bytes: ByteSize(1 << 20) }
    }
}
