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
use tch::{Device, Tensor};

use crate::encoder::Encoder;
use crate::error::Result;
use crate::input::{Embedded, MailInput, ModelInput};
use crate::model::StateSpec;
use crate::parameters::{Declarations, Draw, Init, ParameterId};
use crate::recurrent::{RecurrentConfig, RecurrentRows, RowNorm};
use crate::tgn::{FeatureDims, TgnConfig};
use crate::time_encoder::{Tape, TimeEncoder};
use crate::trained::Trained;

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

impl Gap {
    /// Whether a node's embedding depends on its role.
    fn by_role(self) -> bool {
        matches!(self, Gap::Train | Gap::Stream)
    }
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
    rows: RecurrentRows,
    w: ParameterId,
    b: ParameterId,
    trained: Trained,
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
        let d = &mut Declarations::default();
        let time = TimeEncoder::declare(d, config.time_encoder, config.time_dim, config.dtype.kind(), device);
        let rows = RecurrentRows::declare(d, config, recurrent, jodie.row_norm, features);
        let w = d.add("proj.w", &[config.memory_dim], Init::Normal(1.0));
        let b = d.add("proj.b", &[config.memory_dim], Init::Normal(1.0));
        let trained = Trained::declare(d, time, config, config.memory_dim, draw, device).by_role(jodie.gap.by_role());
        let (config, gap) = (config.clone(), jodie.gap);
        Ok(Jodie { config, gap, features, statistics, rows, w, b, trained })
    }
}

impl Encoder for Jodie {
    fn spec(&self) -> StateSpec {
        let c = &self.config;
        StateSpec {
            embedding_dim: if self.gap.by_role() { 2 * c.memory_dim } else { c.memory_dim },
            absolute_time: self.gap == Gap::Ratio,
            ..c.rows_with_mail(self.features)
        }
    }

    fn trained(&self) -> &Trained {
        &self.trained
    }

    fn trained_mut(&mut self) -> &mut Trained {
        &mut self.trained
    }

    fn updated_rows(&self, memory: &Tensor, mail: &MailInput, tape: &mut Tape) -> Tensor {
        self.rows.updated(&self.trained, memory, mail, tape)
    }

    fn forward(&self, input: &ModelInput, tape: &mut Tape) -> Embedded {
        let (p, roots) = (&self.trained.parameters, &input.layers[0]);
        let rows = self.updated_rows(&input.memory, &input.mail, tape);
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
        Embedded::new(z, rows)
    }
}
