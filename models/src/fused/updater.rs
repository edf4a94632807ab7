//! A GRU step over all rows with mail, forward and backward, without autograd.
//!
//! All gates lie in one buffer (see [`super::gates`]), which the products of the message's blocks are added into. Rows, mails and
//! edge features are constants; the one input with a gradient is a time code of a learned encoder.

use tch::Tensor;

use super::gates;
use super::host::{slice, slice_mut};
use super::real::Real;
use crate::memory_updater::MemoryUpdater;
use crate::message::Message;
use crate::parameters::{ParameterId, Parameters};

/// What the backward pass reads.
#[derive(Debug)]
pub(crate) struct UpdaterTrace {
    /// `[M, 4 D_m]`: gates, see [`super::gates`].
    gates: Tensor,
    /// `[M, D_m]`
    own: Tensor,
    message: Message,
    /// `[M]`: the rows updated.
    pub(crate) row: Tensor,
}

impl MemoryUpdater {
    /// The message's blocks and which of the updater's weight blocks each belongs to.
    fn blocks<'a>(&self, message: &'a Message) -> Vec<(usize, &'a Tensor)> {
        let edge = message.edge_features.as_ref().filter(|_| self.edge).map(|x| (2, x));
        let code = (if self.edge { 3 } else { 2 }, &message.code);
        [Some((1, &message.payload)), edge, Some(code)].into_iter().flatten().collect()
    }

    /// New rows `[M, D_m]` of rows `own`, and what the backward pass needs.
    pub(crate) fn forward_gru<T: Real>(
        &self,
        p: &Parameters,
        own: Tensor,
        message: Message,
        row: &Tensor,
    ) -> (Tensor, UpdaterTrace) {
        let d = self.memory_dim;
        let mut gates = self.own_part(p, &own); // [M, 4 D_m]
        let mut sums = gates.narrow(1, 0, 3 * d);
        for (i, x) in self.blocks(&message) {
            p.matmul().add(&mut sums, x, &self.input.weight(p, i).tr());
        }
        let mut rows = own.empty_like();
        gates::forward::<T>(slice_mut(&mut gates), slice(&own), slice_mut(&mut rows), d as usize);
        (rows, UpdaterTrace { gates, own, message, row: row.shallow_clone() })
    }

    /// Adds the gradients of the weights; returns that of the time codes, `[M, D_t]`, if it is wanted.
    ///
    /// * `grad`: `[M, D_m]`, gradient at the new rows.
    pub(crate) fn backward_gru<T: Real>(
        &self,
        p: &mut Parameters,
        trace: UpdaterTrace,
        grad: &Tensor,
        code_wanted: bool,
    ) -> Option<Tensor> {
        let UpdaterTrace { mut gates, own, message, .. } = trace;
        let d = self.memory_dim;
        gates::backward::<T>(slice_mut(&mut gates), slice(&own), slice(grad), d as usize);
        let (sums, transposed) = (gates.narrow(1, 0, 3 * d), gates.tr());
        for (i, x) in self.blocks(&message) {
            p.matmul().add(&mut p.grad_mut(self.input.block(i)), &sums.tr(), x);
        }
        self.add_shared(p, &p.matmul().product(&transposed, &own), self.input.block(0), self.hidden.block(0));
        self.add_shared(p, &gates.sum_dim_intlist(0, false, T::KIND), self.input.bias_id(), self.hidden.bias_id());
        code_wanted.then(|| p.matmul().product(&sums, self.input.weight(p, if self.edge { 3 } else { 2 })))
    }

    /// Adds gradients of gates `r, z, n, h_n` to those of the message's (r, z, n) and of the hidden state's (r, z, h_n) parameters.
    fn add_shared(&self, p: &mut Parameters, grad: &Tensor, input: ParameterId, hidden: ParameterId) {
        let d = self.memory_dim;
        let (mut input, hidden) = (p.grad_mut(input), p.grad_mut(hidden));
        let _ = input.g_add_(&grad.narrow(0, 0, 3 * d));
        let _ = hidden.narrow(0, 0, 2 * d).g_add_(&grad.narrow(0, 0, 2 * d));
        let _ = hidden.narrow(0, 2 * d, d).g_add_(&grad.narrow(0, 3 * d, d));
    }
}
