//! Sums over the ranks' GPUs by NCCL: gradients need not pass through host memory.
//!
//! Invariants: all ranks sum on their GPUs or none does, since they agree on it at the start; every rank ends with the same bits.
//! Those are not the bits of [`Communicator::sum`], which adds in the order of the ranks.

use super::cuda::Ring;
use crate::comms::{Communicator, Purpose};
use crate::error::Result;

/// The ranks' GPUs, connected.
pub struct GpuSum {
    comm: Communicator,
    ring: Ring,
}

impl GpuSum {
    /// Connects this rank's GPU with the others'; `None` where one of the ranks has no GPU of its own or no NCCL, and sums go
    /// through host memory. Uses the sequences from `sequence` to `sequence + 2` of the collectives.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn connect(comm: &Communicator, device: tch::Device, sequence: u64) -> Result<Option<GpuSum>> {
        let gpu = match device {
            tch::Device::Cuda(index) if comm.world() > 1 => Ring::is_possible().then_some(index),
            _ => None,
        };
        if !all(comm, sequence, gpu.is_some())? {
            return Ok(None);
        }
        let gpu = gpu.expect("this rank is one of all");
        let mut id = if comm.rank() == 0 { Ring::new_id().unwrap_or_default() } else { Vec::new() };
        comm.broadcast(0, sequence + 1, &mut id)?;
        let ring = Ring::connect(&id, comm.rank(), comm.world(), gpu);
        if let Err(problem) = &ring {
            tracing::warn!("gradients go through host memory: NCCL can not connect the ranks' GPUs ({problem})");
        }
        let connected = all(comm, sequence + 2, ring.is_ok())?;
        let comm = comm.clone();
        Ok(ring.ok().filter(|_| connected).map(|ring| GpuSum { comm, ring }))
    }

    /// Replaces a tensor by its sum over the ranks, after what was asked of the GPU before and ahead of what is asked next.
    ///
    /// * `values`: contiguous, f32 or f64, on this rank's GPU, as long on every rank.
    ///
    /// # Errors
    /// NCCL failed, or a rank is lost.
    ///
    /// # Panics
    /// If the tensor is not of that kind.
    pub fn sum(&self, values: &mut tch::Tensor) -> Result<()> {
        self.comm.check()?;
        self.ring.sum(values)?;
        let (bytes, world) = (values.numel() * values.kind().elt_size_in_bytes(), self.comm.world());
        self.comm.count_elsewhere(Purpose::Gradient, 2 * bytes * (world - 1) / world);
        Ok(())
    }
}

/// Whether something is so on all ranks.
fn all(comm: &Communicator, sequence: u64, here: bool) -> Result<bool> {
    Ok(comm.all_gather(sequence, vec![u8::from(here)])?.iter().all(|there| there == &[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comms::CommConfig;

    #[test]
    fn without_gpus_all_ranks_agree_to_use_the_host() {
        let comms = Communicator::local(3, &CommConfig::default());
        std::thread::scope(|scope| {
            for comm in comms {
                scope.spawn(move || {
                    assert!(GpuSum::connect(&comm, tch::Device::Cpu, 0).expect("no rank is lost").is_none());
                    comm.finish().expect("no rank is lost");
                });
            }
        });
    }
}
