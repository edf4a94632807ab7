//! Time encoding `cos(dt * w + b)` (TGAT, arXiv:2002.07962, section 3.1; TGN, arXiv:2006.10637, section 3).
//!
//! Product and sum round separately and elementwise: at `dt = 1e6` s a fused multiply-add would give other codes. Both
//! variants start from the frequencies `w = 10^-linspace(0, 9, D_t)`, `b = 0`; `fixed` keeps them (GraphMixer,
//! arXiv:2302.11636, section 3.1) and costs no gradient, `learned` trains them.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::parameters::{Declarations, Init, ParameterId, Parameters};

/// Whether the frequencies are trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeEncoding {
    /// Constants.
    #[default]
    Fixed,
    /// Parameters `time.w`, `time.b`.
    Learned,
}

/// Encodes elapsed seconds.
pub struct TimeEncoder {
    frequencies: Frequencies,
}

enum Frequencies {
    /// `w: [D_t]`; `b` is zero and never added.
    Fixed(Tensor),
    Learned { w: ParameterId, b: ParameterId },
}

/// The frequencies `10^-linspace(0, 9, dim)`.
pub fn frequencies(dim: i64) -> Vec<f64> {
    let step = 9.0 / (dim - 1).max(1) as f64;
    (0..dim).map(|i| 10f64.powf(-step * i as f64)).collect()
}

impl TimeEncoder {
    /// Declares the parameters of a learned encoder, or makes the constants of a fixed one.
    pub fn declare(declare: &mut Declarations, encoding: TimeEncoding, dim: i64, kind: Kind, device: Device) -> TimeEncoder {
        let w = frequencies(dim);
        let frequencies = match encoding {
            TimeEncoding::Learned => Frequencies::Learned {
                w: declare.add("time.w", &[dim], Init::Values(w)),
                b: declare.add("time.b", &[dim], Init::Constant(0.0)),
            },
            TimeEncoding::Fixed => {
                let rounded: Vec<f32> = w.iter().map(|&w| w as f32).collect();
                Frequencies::Fixed(Tensor::from_slice(&rounded).to_kind(kind).to_device(device))
            }
        };
        TimeEncoder { frequencies }
    }

    /// The code of each elapsed time.
    ///
    /// * `dt`: `[..]` float, seconds.
    /// * returns `[.., D_t]` float; with graph iff the encoder is learned.
    pub fn encode(&self, p: &Parameters, dt: &Tensor) -> Tensor {
        let dt = dt.unsqueeze(-1);
        match &self.frequencies {
            Frequencies::Fixed(w) => (dt * w).cos_(),
            Frequencies::Learned { w, b } => (dt * &p[*w]).g_add_(&p[*b]).cos(),
        }
    }

    /// The code of `dt = 0`, `[D_t]`.
    pub fn zero(&self, p: &Parameters) -> Tensor {
        match &self.frequencies {
            Frequencies::Fixed(w) => w.ones_like(),
            Frequencies::Learned { b, .. } => p[*b].cos(),
        }
    }
}
