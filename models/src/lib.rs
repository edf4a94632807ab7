//! Memory-based temporal graph neural networks on libtorch.
//!
//! ```text
//!            pipeline                      this crate                                       pipeline
//!   rows, mail, neighbors, masks ─► ModelInput ─► Model::embed ─► Embedded { z, rows } ─► commit rows, store mails
//!                                                                    │ z may travel
//!                                        PairInput ─► Model::score ◄─┘ ─► Scored { loss, grad_z }
//!                                                                    ┌─ grad_z may travel
//!                                                 Model::backward ◄──┘ ─► Parameters::grads ─► Optimizer::step
//! ```
//! Reading order: [`model`] (the seam), [`input`], [`tgn`], then its parts [`message`], [`memory_updater`], [`time_encoder`],
//! [`embedding`], [`attention`], [`decoder`], [`loss`]; [`parameters`] and [`optimizer`] hold what is trained. The other models, one
//! file each: [`tgat`], [`jodie`], [`dyrep`], [`apan`], [`edgebank`]. What is alike in all that are trained: [`encoder`], [`trained`].
//!
//! These compose tensor operations under autograd. On a CPU the usual model takes a path without it, `fused`: kernels of our own
//! and their backward passes, tested against the composition.
//!
//! A model sees tensors and row numbers: never a node id, a graph, a rank, a file or a clock. Letters for shapes: B events in a
//! batch, N rows read, M rows with mail, Q mails, R roots, K fanout, H heads, n negatives an event, P parameters, D_m memory,
//! D_p payload, D_e edge feature, D_v node feature, D_t time, D_emb embedding.

pub mod apan;
pub mod attention;
mod cosine;
pub mod decoder;
pub mod dyrep;
pub mod edgebank;
pub mod embedding;
pub mod encoder;
pub mod error;
mod fused;
pub mod input;
pub mod jodie;
pub mod linear;
pub mod loss;
pub mod memory_updater;
pub mod message;
pub mod model;
pub mod neighborhood;
pub mod node_classifier;
pub mod optimizer;
pub mod parameters;
pub mod product;
pub mod recurrent;
pub mod tgat;
pub mod tgn;
pub mod time_encoder;
pub mod trained;
pub mod transformer;

pub use apan::{Apan, ApanConfig};
pub use decoder::DecoderInit;
pub use dyrep::{Dyrep, DyrepConfig};
pub use edgebank::{EdgeBank, EdgeBankConfig};
pub use embedding::Embedding;
pub use encoder::Encoder;
pub use error::{Error, Result};
pub use input::{Embedded, LayerInput, LossReduction, MailInput, ModelInput, PairInput, Scored, SlotInput};
pub use jodie::{GapStatistics, Jodie, JodieConfig};
pub use memory_updater::Updater;
pub use message::{Aggregator, MessageTime};
pub use model::{MailKeeping, MailOrder, MailTargets, Mode, Model, Payload, StateSpec};
pub use optimizer::{LrSchedule, Optimizer, OptimizerConfig, OptimizerKind, clip_norm, grad_norm};
pub use parameters::{Draw, Parameters};
pub use recurrent::RecurrentConfig;
pub use tgat::{Tgat, TgatConfig};
pub use tgn::{Dtype, FeatureDims, Tgn, TgnConfig};
pub use time_encoder::TimeEncoding;
pub use trained::Trained;
