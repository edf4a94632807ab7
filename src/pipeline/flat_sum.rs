//! Sums of flat tensors over the ranks, through the hosts' memory.

use super::wire::bytes_of;
use crate::comms::{Communicator, Pending, Summand};
use crate::error::Result;
use tch::{Device, Kind, Tensor};

/// A sum under way: `[N]` of f32 or f64, the same bits on every rank once it is complete.
pub struct FlatSum {
    pending: Numbers,
    device: Device,
}

enum Numbers {
    Single(Pending<f32>),
    Double(Pending<f64>),
}

impl FlatSum {
    /// Starts to sum a tensor over the ranks; all give as many numbers, under one `sequence`.
    ///
    /// # Errors
    /// A lost peer.
    pub fn start(comm: &Communicator, sequence: u64, tensor: &Tensor) -> Result<FlatSum> {
        let pending = match tensor.kind() {
            Kind::Double => Numbers::Double(comm.start_sum(sequence, numbers(tensor))?),
            _ => Numbers::Single(comm.start_sum(sequence, numbers(tensor))?),
        };
        Ok(FlatSum { pending, device: tensor.device() })
    }

    /// Adds up what has arrived, without waiting; whether the sum is complete.
    ///
    /// # Errors
    /// A lost peer.
    pub fn progress(&mut self) -> Result<bool> {
        match &mut self.pending {
            Numbers::Single(pending) => pending.progress(),
            Numbers::Double(pending) => pending.progress(),
        }
    }

    /// The sum, once it is complete.
    ///
    /// # Errors
    /// A lost peer.
    pub fn wait(self) -> Result<Tensor> {
        let sum = match self.pending {
            Numbers::Single(pending) => Tensor::from_slice(&pending.wait()?),
            Numbers::Double(pending) => Tensor::from_slice(&pending.wait()?),
        };
        Ok(sum.to_device(self.device))
    }
}

fn numbers<T: Summand>(tensor: &Tensor) -> Vec<T> {
    bytemuck::allocation::pod_collect_to_vec(&bytes_of(tensor))
}
