//! The model on a CPU without autograd: kernels of our own around matrix products, and their backward passes.
//!
//! Serves a GRU updater without aggregation and attention layers, in `f32` and `f64`; everything else, and every other device,
//! takes the composition of tensor operations, which is also the reference that this path is tested against. Same equations,
//! same parameters; only rounding differs. What the backward pass reads is kept in a [`Trace`]; a pass without one keeps nothing.
//!
//! Reading order: [`real`] (floats), [`simd`] (how loops become vector code), [`gates`] and [`updater`] (GRU), [`hood`] and
//! [`readers`] (neighbors), [`layer`] and [`layer_backward`] (attention), [`decoder`].

pub(crate) mod decoder;
pub(crate) mod gates;
pub(crate) mod hood;
pub(crate) mod host;
pub(crate) mod layer;
pub(crate) mod layer_backward;
pub(crate) mod readers;
pub(crate) mod real;
pub(crate) mod simd;
pub(crate) mod tgn;
pub(crate) mod updater;

#[cfg(test)]
mod tests;

use tch::Tensor;

use layer::LayerTrace;
use updater::UpdaterTrace;

/// What a backward pass reads of its forward pass.
#[derive(Debug)]
pub(crate) struct Trace {
    /// `None`: no row had mail.
    updater: Option<(UpdaterTrace, MailTime)>,
    /// `[N, D_v]`
    node_features: Option<Tensor>,
    layers: Vec<LayerTrace>,
}

/// Elapsed times of the mails, if they were encoded in the pass.
#[derive(Debug)]
pub(crate) struct MailTime(Option<Tensor>);
