//! Measurements of this machine at this work: `tidemill bench`.
//!
//! [`sampler`]: distinct (node, time) roots sampled per second, lookup included, building the graph apart. [`step`]: training
//! batches of a configuration, stage by stage, with the floating-point operations and bytes they need at least. [`rates`]: how
//! fast the machine multiplies matrices and copies memory, so that both can be told as shares of what is possible.
//!
//! A figure is that of the fastest of several passes, or of all timed batches where it says so. Absent on purpose: statistics
//! over kernels; those are in `benches/`.

pub mod rates;
pub mod sampler;
pub mod step;
