//! Time encoding `cos(dt * w + b)` (TGAT, arXiv:2002.07962, section 3.1; TGN, arXiv:2006.10637, section 3).
//!
//! Product and sum round separately and elementwise: at `dt = 1e6` s a fused multiply-add would give other codes.
//! `fixed` and `learned` start from the frequencies `w = 10^-linspace(0, 9, D_t)`, `b = 0`; `fixed` keeps them (GraphMixer,
//! arXiv:2302.11636, section 3.1) and costs no gradient, `learned` trains them. `linear` trains what is drawn as a linear map
//! of one number usually is, `w` and `b` uniform in (-1, 1): its periods start below a few minutes.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::cosine;
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
    /// The same parameters, drawn uniformly in (-1, 1).
    Linear,
}

/// Encodes elapsed seconds.
pub struct TimeEncoder {
    frequencies: Frequencies,
}

enum Frequencies {
    /// `[D_t]` each; `b` is zero.
    Fixed {
        w: Tensor,
        b: Tensor,
    },
    Learned {
        w: ParameterId,
        b: ParameterId,
    },
}

/// The frequencies `10^-linspace(0, 9, dim)`.
pub fn frequencies(dim: i64) -> Vec<f64> {
    let step = 9.0 / (dim - 1).max(1) as f64;
    (0..dim).map(|i| 10f64.powf(-step * i as f64)).collect()
}

/// Time codes made in one pass that autograd sees as leaves: their gradient is continued by [`TimeEncoder::differentiate`].
#[derive(Debug, Default)]
pub struct Tape {
    recording: bool,
    /// `(dt: [E], code: [.., D_t])`
    codes: Vec<(Tensor, Tensor)>,
}

impl Tape {
    /// A tape that keeps codes for a backward pass.
    pub fn recording() -> Tape {
        Tape { recording: true, codes: Vec::new() }
    }

    /// The leaves whose gradients [`TimeEncoder::differentiate`] wants.
    pub fn leaves(&self) -> impl Iterator<Item = &Tensor> {
        self.codes.iter().map(|(_, code)| code)
    }
}

impl TimeEncoder {
    /// Declares the parameters of a learned encoder, or makes the constants of a fixed one.
    pub fn declare(
        declare: &mut Declarations,
        encoding: TimeEncoding,
        dim: i64,
        kind: Kind,
        device: Device,
    ) -> TimeEncoder {
        let w = frequencies(dim);
        let frequencies = match encoding {
            TimeEncoding::Learned => Frequencies::Learned {
                w: declare.add("time.w", &[dim], Init::Values(w)),
                b: declare.add("time.b", &[dim], Init::Constant(0.0)),
            },
            TimeEncoding::Linear => Frequencies::Learned {
                w: declare.add("time.w", &[dim], Init::inverse_root(1)),
                b: declare.add("time.b", &[dim], Init::inverse_root(1)),
            },
            TimeEncoding::Fixed => {
                let rounded: Vec<f32> = w.iter().map(|&w| w as f32).collect();
                let w = Tensor::from_slice(&rounded).to_kind(kind).to_device(device);
                Frequencies::Fixed { b: w.zeros_like(), w }
            }
        };
        TimeEncoder { frequencies }
    }

    /// The code of each elapsed time. On the CPU in `f32` it is one pass of a kernel of our own, elsewhere tensor
    /// operations.
    ///
    /// * `dt`: `[..]` float, seconds.
    /// * returns `[.., D_t]` float. If the encoder is learned and the tape records, it carries gradient: a graph, or as a leaf
    ///   of the tape.
    pub fn encode(&self, p: &Parameters, dt: &Tensor, tape: &mut Tape) -> Tensor {
        let (w, b, learned) = self.frequencies(p);
        if dt.device() != Device::Cpu || dt.kind() != Kind::Float {
            return (dt.unsqueeze(-1) * w).g_add_(b).cos();
        }
        let dt = dt.contiguous();
        let code = Tensor::empty([dt.size(), w.size()].concat(), (Kind::Float, Device::Cpu));
        cosine::encode(floats(&dt), floats(w), floats(b), floats_mut(&code));
        if !(learned && tape.recording) {
            return code;
        }
        let code = code.set_requires_grad(true);
        tape.codes.push((dt, code.shallow_clone()));
        code
    }

    /// The code of `dt = 0`, `[D_t]`.
    pub fn zero(&self, p: &Parameters) -> Tensor {
        self.frequencies(p).1.cos()
    }

    /// Adds the gradients of the encoder's parameters to the flat buffer.
    ///
    /// * `gradients`: one for each of the tape's leaves, undefined where the loss does not depend on it.
    pub fn differentiate(&self, p: &mut Parameters, tape: &Tape, gradients: &[Tensor]) {
        let Frequencies::Learned { w, b } = self.frequencies else {
            return;
        };
        let width = p[w].numel();
        let (mut dw, mut db) = (vec![0.0; width], vec![0.0; width]);
        for ((dt, _), gradient) in tape.codes.iter().zip(gradients).filter(|(_, gradient)| gradient.defined()) {
            let gradient = gradient.contiguous();
            cosine::differentiate(floats(dt), floats(&p[w]), floats(&p[b]), floats(&gradient), &mut dw, &mut db);
        }
        if gradients.iter().any(Tensor::defined) {
            let gradients = [dw, db].map(|sum| Tensor::from_slice(&sum).to_kind(Kind::Float));
            p.accumulate(&[w, b], &gradients);
        }
    }

    /// The parameters `w`, `b` of a learned encoder.
    pub(crate) fn learned(&self) -> Option<[ParameterId; 2]> {
        match self.frequencies {
            Frequencies::Fixed { .. } => None,
            Frequencies::Learned { w, b } => Some([w, b]),
        }
    }

    /// `w`, `b`: `[D_t]` each.
    pub(crate) fn values<'a>(&'a self, p: &'a Parameters) -> (&'a Tensor, &'a Tensor) {
        let (w, b, _) = self.frequencies(p);
        (w, b)
    }

    fn frequencies<'a>(&'a self, p: &'a Parameters) -> (&'a Tensor, &'a Tensor, bool) {
        match &self.frequencies {
            Frequencies::Fixed { w, b } => (w, b, false),
            Frequencies::Learned { w, b } => (&p[*w], &p[*b], true),
        }
    }
}

/// The numbers of a contiguous CPU tensor.
fn floats(x: &Tensor) -> &[f32] {
    assert!(
        x.device() == Device::Cpu && x.kind() == Kind::Float && x.is_contiguous(),
        "a contiguous f32 tensor on the CPU"
    );
    // SAFETY: `numel` contiguous f32 in host memory, which the borrowed tensor keeps alive; nobody writes them meanwhile.
    unsafe { std::slice::from_raw_parts(x.data_ptr().cast::<f32>().cast_const(), x.numel()) }
}

/// The numbers of a fresh contiguous CPU tensor that nothing else refers to.
#[allow(clippy::mut_from_ref)]
fn floats_mut(x: &Tensor) -> &mut [f32] {
    assert!(
        x.device() == Device::Cpu && x.kind() == Kind::Float && x.is_contiguous(),
        "a contiguous f32 tensor on the CPU"
    );
    // SAFETY: `numel` contiguous f32 in host memory, which the borrowed tensor keeps alive; the caller just allocated it.
    unsafe { std::slice::from_raw_parts_mut(x.data_ptr().cast::<f32>(), x.numel()) }
}
