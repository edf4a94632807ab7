//! JODIE (Kumar, Zhang and Leskovec, KDD 2019, arXiv:1908.01207) as a memory-based link predictor: two recurrent cells made
//! one, and an embedding that drifts with the time since the node was last seen.
//!
//! * update (eq. 1): `s' = tanh(W_ih [s | s_peer | edge | code(dt)] + b_ih + W_hh s + b_hh)`, see [`crate::recurrent`];
//! * projection (eq. 2): `z = (s' + node features) * (1 + g w + b)` with the gap `g` between the root's time and its last
//!   update, pending mail included.
//!
//! Reads no neighbors. The paper scores against an embedding predicted for the next item; here, as in the public codes that
//! compare JODIE with others, a link decoder scores pairs. How the gap is normalised differs between them, see [`Gap`]: with
//! statistics by role a node has *two* embeddings, as a source and as a destination, side by side in `z`.

use serde::{Deserialize, Serialize};
use tch::{Device, Tensor, no_grad};

use crate::error::Result;
use crate::input::{Embedded, MailInput, ModelInput, PairInput, Scored};
use crate::link::Link;
use crate::message::MessageTime;
use crate::model::{MailKeeping, MailTargets, Mode, Model, Payload, StateSpec};
use crate::parameters::{Declarations, Draw, Init, ParameterId, Parameters};
use crate::recurrent::{RecurrentConfig, RecurrentRows, RowNorm};
use crate::tgn::{FeatureDims, TgnConfig};
use crate::time_encoder::{Tape, TimeEncoder};

/// Normalisation of the gap between two events of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// Less the mean and over the standard deviation of the training events' gaps, by role (DyGLib's code).
    #[default]
    Train,
    /// The same over the whole stream (TGN's code), which looks ahead.
    Stream,
    /// Over the root's time plus one second (TGL's and TGLite's code).
    Ratio,
    /// Seconds.
    None,
}

/// JODIE's own keys of the `[model]` table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JodieConfig {
    /// Normalisation of the gap.
    pub gap: Gap,
    /// Normalisation of an updated row.
    pub row_norm: RowNorm,
}

/// Mean and population standard deviation of gaps in seconds, of sources and of destinations; a node's first gap counts from
/// the time origin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GapStatistics {
    /// Of sources, of destinations.
    pub mean: [f64; 2],
    /// Likewise; a deviation of zero counts as one.
    pub deviation: [f64; 2],
}

/// The model.
pub struct Jodie {
    config: TgnConfig,
    gap: Gap,
    features: FeatureDims,
    statistics: GapStatistics,
    parameters: Parameters,
    time: TimeEncoder,
    rows: RecurrentRows,
    w: ParameterId,
    b: ParameterId,
    link: Link,
}

impl Jodie {
    /// Declares and draws all parameters.
    ///
    /// * `statistics`: of what [`Gap`] asks for; unread under [`Gap::Ratio`] and [`Gap::None`].
    ///
    /// # Errors
    /// If the configuration is impossible.
    pub fn new(
        config: &TgnConfig,
        (recurrent, jodie): (RecurrentConfig, JodieConfig),
        statistics: GapStatistics,
        features: FeatureDims,
        draw: &dyn Draw,
        device: Device,
    ) -> Result<Jodie> {
        recurrent.validate(config)?;
        let (kind, d) = (config.dtype.kind(), &mut Declarations::default());
        let time = TimeEncoder::declare(d, config.time_encoder, config.time_dim, kind, device);
        let rows = RecurrentRows::declare(d, config, recurrent, jodie.row_norm, features);
        let w = d.add("proj.w", &[config.memory_dim], Init::Normal(1.0));
        let b = d.add("proj.b", &[config.memory_dim], Init::Normal(1.0));
        let link = Link::declare(d, config.memory_dim, config.decoder_init, config.dtype, device);
        let parameters = std::mem::take(d).build(kind, device, draw);
        let (config, gap) = (config.clone(), jodie.gap);
        Ok(Jodie { config, gap, features, statistics, parameters, time, rows, w, b, link })
    }

    /// Whether a node's embedding depends on its role.
    fn by_role(&self) -> bool {
        matches!(self.gap, Gap::Train | Gap::Stream)
    }

    fn forward(&self, input: &ModelInput, mut tape: Tape) -> Embedded {
        let (p, roots) = (&self.parameters, &input.layers[0]);
        let rows = self.rows.updated(p, &self.time, &input.memory, &input.mail, &mut tape);
        let x = self.rows.with_node_features(p, &rows, input.node_features.as_ref());
        let x = x.index_select(0, &roots.root); // [R, D_m]
        let project = |gap: Tensor| &x * ((gap.unsqueeze(1) * &p[self.w]).g_add(&p[self.b]) + 1.0);
        let z = match self.gap {
            Gap::Train | Gap::Stream => {
                let GapStatistics { mean, deviation } = self.statistics;
                let of = |role: usize| {
                    let deviation = if deviation[role] > 0.0 { deviation[role] } else { 1.0 };
                    project((&roots.root_dt - mean[role]) / deviation)
                };
                Tensor::cat(&[of(0), of(1)], 1) // [R, 2 D_m]
            }
            Gap::Ratio => project(&roots.root_dt / (roots.since_origin.as_ref().expect("absolute times") + 1.0)),
            Gap::None => project(roots.root_dt.shallow_clone()),
        };
        Embedded { tape, ..Embedded::new(z, rows) }
    }

    /// The two embeddings below each other, and pairs that point to the right one.
    fn stacked(&self, z: &Tensor, pairs: &PairInput) -> (Tensor, PairInput) {
        let (roots, width) = (z.size()[0], self.config.memory_dim);
        let stacked = Tensor::cat(&[z.narrow(1, 0, width), z.narrow(1, width, width)], 0);
        let pairs = PairInput {
            source: pairs.source.shallow_clone(),
            destination: &pairs.destination + roots,
            negative: &pairs.negative + roots,
            events: pairs.events,
            loss: pairs.loss,
            seen: None,
        };
        (stacked, pairs)
    }
}

impl Model for Jodie {
    fn spec(&self) -> StateSpec {
        let c = &self.config;
        StateSpec {
            kind: c.dtype.kind(),
            memory_dim: c.memory_dim,
            payload: Payload::MemoryRow,
            payload_dim: c.memory_dim,
            mail_targets: MailTargets::Endpoints,
            mail_keeping: MailKeeping::UntilApplied,
            mail_order: c.mail_order,
            aggregator: c.aggregator,
            stored_time_code: (c.message_time == MessageTime::Stored).then_some(c.time_dim),
            edge_dim: self.features.edge,
            node_dim: self.features.node,
            embedding_dim: if self.by_role() { 2 * c.memory_dim } else { c.memory_dim },
            absolute_time: self.gap == Gap::Ratio,
            ..StateSpec::default()
        }
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    fn embed(&self, input: &ModelInput, mode: Mode) -> Embedded {
        match mode {
            Mode::Train => self.forward(input, Tape::recording()),
            Mode::Eval => no_grad(|| self.forward(input, Tape::default())),
        }
    }

    fn apply_mail(&self, memory: &Tensor, mail: &MailInput) -> Tensor {
        no_grad(|| self.rows.updated(&self.parameters, &self.time, memory, mail, &mut Tape::default()))
    }

    fn score(&mut self, z: &Tensor, pairs: &PairInput) -> Scored {
        if !self.by_role() {
            return self.link.score(&mut self.parameters, z, pairs);
        }
        let (stacked, pairs) = self.stacked(z, pairs);
        let scored = self.link.score(&mut self.parameters, &stacked, &pairs);
        let halves = scored.grad_z.chunk(2, 0);
        Scored { grad_z: Tensor::cat(&halves, 1), ..scored }
    }

    fn complete_once_scored(&self) -> i64 {
        self.link.first(&self.parameters)
    }

    fn logits(&self, z: &Tensor, pairs: &PairInput) -> (Tensor, Tensor) {
        if !self.by_role() {
            return self.link.logits(&self.parameters, z, pairs);
        }
        let (stacked, pairs) = self.stacked(z, pairs);
        self.link.logits(&self.parameters, &stacked, &pairs)
    }

    fn backward(&mut self, embedded: Embedded, grad_z: &Tensor) {
        self.link.backward(&mut self.parameters, &self.time, embedded, grad_z);
    }

    fn encode_mail_time(&self, dt: &Tensor) -> Tensor {
        no_grad(|| self.time.encode(&self.parameters, dt, &mut Tape::default()))
    }
}
