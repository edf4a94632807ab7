//! Adam (Kingma and Ba, arXiv:1412.6980) and AdamW (Loshchilov and Hutter, arXiv:1711.05101) over flat buffers.
//!
//! tch's optimizers hide their state, which checkpoints, hashes and parameter averaging need; here it is two flat tensors and a
//! count. Each elementwise operation rounds as in `torch.optim`, so results agree with it to the last few units. On the CPU a
//! step is one pass over raw slices; elsewhere it is tensor operations. Both are tested equal.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor, no_grad};

use crate::error::Result;
use crate::parameters::{Parameters, check_count};

/// Which rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Weight decay is added to the gradient.
    #[default]
    Adam,
    /// Weight decay shrinks the parameter.
    AdamW,
}

/// Constants of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OptimizerConfig {
    /// Which rule.
    pub kind: OptimizerKind,
    /// Weight decay, 0 for none.
    pub weight_decay: f64,
    /// Decay rates of the two moments.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
}

impl Default for OptimizerConfig {
    fn default() -> OptimizerConfig {
        OptimizerConfig { kind: OptimizerKind::Adam, weight_decay: 0.0, betas: (0.9, 0.999), eps: 1e-8 }
    }
}

/// How the learning rate changes over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LrSchedule {
    /// Not at all.
    #[default]
    Constant,
    /// Half a cosine from the base rate down to zero at the last step.
    Cosine,
    /// A straight line from zero to the base rate over the first twentieth of the steps, constant after it.
    LinearWarmup,
}

impl LrSchedule {
    /// The rate of step `step` (counted from 0) of `total`.
    pub fn rate(self, base: f64, step: u64, total: u64) -> f64 {
        let total = total.max(1);
        match self {
            LrSchedule::Constant => base,
            LrSchedule::Cosine => {
                let done = step.min(total) as f64 / total as f64;
                base * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
            }
            LrSchedule::LinearWarmup => base * ((step + 1) as f64 / total.div_ceil(20) as f64).min(1.0),
        }
    }
}

/// Moments of every parameter and the number of steps taken.
pub struct Optimizer {
    config: OptimizerConfig,
    steps: u64,
    m: Tensor,
    v: Tensor,
}

/// The scalars of one step.
#[derive(Clone, Copy)]
struct StepFactors {
    /// Factor of the parameter before the step (AdamW's decay), 1 for none.
    shrink: f64,
    /// Weight of the parameter in the gradient (Adam's decay), 0 for none.
    decay: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    /// `lr / (1 - beta1^t)`
    step_size: f64,
    /// `sqrt(1 - beta2^t)`
    correction: f64,
}

impl Optimizer {
    /// With zero moments.
    pub fn new(config: OptimizerConfig, parameters: &Parameters) -> Optimizer {
        let zeros = || parameters.values().zeros_like();
        Optimizer { config, steps: 0, m: zeros(), v: zeros() }
    }

    /// Steps taken so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// `[P]` float: the moments, first and second.
    pub fn moments(&self) -> (&Tensor, &Tensor) {
        (&self.m, &self.v)
    }

    /// Sets the whole state, from a checkpoint or from an average over ranks.
    ///
    /// * `m`, `v`: `[P]`, of any kind and device.
    ///
    /// # Errors
    /// If a length is not P.
    pub fn restore(&mut self, steps: u64, m: &Tensor, v: &Tensor) -> Result<()> {
        check_count("first moments", self.m.size()[0], m)?;
        check_count("second moments", self.v.size()[0], v)?;
        self.m.copy_(m);
        self.v.copy_(v);
        self.steps = steps;
        Ok(())
    }

    /// Moves the parameters by their gradients, which are left as they are.
    pub fn step(&mut self, parameters: &mut Parameters, lr: f64) {
        self.steps += 1;
        let factors = self.factors(lr);
        let (p, g) = (parameters.values(), parameters.grads());
        match (p.device(), p.kind()) {
            (Device::Cpu, Kind::Float) => on_slices::<f32>(p, g, &self.m, &self.v, factors),
            (Device::Cpu, Kind::Double) => on_slices::<f64>(p, g, &self.m, &self.v, factors),
            _ => no_grad(|| on_tensors(p, g, &mut self.m, &mut self.v, factors)),
        }
    }

    fn factors(&self, lr: f64) -> StepFactors {
        let OptimizerConfig { kind, weight_decay, betas: (beta1, beta2), eps } = self.config;
        let t = self.steps as f64;
        let (shrink, decay) = match kind {
            OptimizerKind::Adam => (1.0, weight_decay),
            OptimizerKind::AdamW => (1.0 - lr * weight_decay, 0.0),
        };
        let step_size = lr / (1.0 - beta1.powf(t));
        StepFactors { shrink, decay, beta1, beta2, eps, step_size, correction: (1.0 - beta2.powf(t)).sqrt() }
    }
}

/// The arithmetic that both kinds of float share.
trait Float: Copy {
    fn of(x: f64) -> Self;
    /// One element's step: new `(p, m, v)`.
    fn adam(p: Self, g: Self, m: Self, v: Self, f: &Factors<Self>) -> (Self, Self, Self);
}

struct Factors<T> {
    shrink: T,
    decay: T,
    one_less_beta1: T,
    beta2: T,
    one_less_beta2: T,
    eps: T,
    step_size: T,
    correction: T,
}

macro_rules! float {
    ($t:ty) => {
        impl Float for $t {
            fn of(x: f64) -> $t {
                x as $t
            }

            #[inline(always)]
            fn adam(p: $t, g: $t, m: $t, v: $t, f: &Factors<$t>) -> ($t, $t, $t) {
                let p = p * f.shrink;
                let g = g + f.decay * p;
                let m = m + f.one_less_beta1 * (g - m);
                let v = v * f.beta2 + f.one_less_beta2 * g * g;
                let denominator = v.sqrt() / f.correction + f.eps;
                (p - f.step_size * m / denominator, m, v)
            }
        }
    };
}
float!(f32);
float!(f64);

/// One pass over the four buffers.
fn on_slices<T: Float>(p: &Tensor, g: &Tensor, m: &Tensor, v: &Tensor, f: StepFactors) {
    let factors = Factors {
        shrink: T::of(f.shrink),
        decay: T::of(f.decay),
        one_less_beta1: T::of(1.0 - f.beta1),
        beta2: T::of(f.beta2),
        one_less_beta2: T::of(1.0 - f.beta2),
        eps: T::of(f.eps),
        step_size: T::of(f.step_size),
        correction: T::of(f.correction),
    };
    let count = p.numel();
    assert!([p, g, m, v].iter().all(|x| x.numel() == count && x.is_contiguous()), "four flat buffers of one length");
    // SAFETY: the four are distinct contiguous CPU buffers of `count` elements of T (kind and device were matched by the
    // caller, values, gradients and moments are allocated apart), and `&mut Parameters`, `&mut Optimizer` are held meanwhile.
    let (p, g, m, v) = unsafe {
        (
            std::slice::from_raw_parts_mut(p.data_ptr().cast::<T>(), count),
            std::slice::from_raw_parts(g.data_ptr().cast::<T>().cast_const(), count),
            std::slice::from_raw_parts_mut(m.data_ptr().cast::<T>(), count),
            std::slice::from_raw_parts_mut(v.data_ptr().cast::<T>(), count),
        )
    };
    for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
        (*p, *m, *v) = T::adam(*p, *g, *m, *v, &factors);
    }
}

/// The same step by tensor operations, on any device.
fn on_tensors(p: &Tensor, g: &Tensor, m: &mut Tensor, v: &mut Tensor, f: StepFactors) {
    let mut p = p.shallow_clone();
    if f.shrink != 1.0 {
        let _ = p.g_mul_scalar_(f.shrink);
    }
    let g = if f.decay == 0.0 { g.shallow_clone() } else { g + &p * f.decay };
    let _ = m.lerp_(&g, 1.0 - f.beta1);
    let _ = v.g_mul_scalar_(f.beta2);
    let _ = v.g_add_(&(&g * &g * (1.0 - f.beta2)));
    let denominator = v.sqrt().g_div_scalar_(f.correction).g_add_scalar_(f.eps);
    let _ = p.g_sub_(&(&*m * f.step_size / denominator));
}

/// The Euclidean norm of a flat gradient, in `f64`, summed in one order whatever the number of threads.
///
/// * `grads`: `[P]` float.
pub fn grad_norm(grads: &Tensor) -> f64 {
    let square = |x: f64| x * x;
    if grads.device() != Device::Cpu || !grads.is_contiguous() {
        return grads.to_kind(Kind::Double).norm().double_value(&[]);
    }
    // SAFETY: a contiguous CPU buffer of `numel` elements of its kind, only read while borrowed.
    let sum = unsafe {
        match grads.kind() {
            Kind::Float => {
                let x = std::slice::from_raw_parts(grads.data_ptr().cast::<f32>().cast_const(), grads.numel());
                lane_sum(x, |&x| square(f64::from(x)))
            }
            _ => {
                let x = std::slice::from_raw_parts(grads.data_ptr().cast::<f64>().cast_const(), grads.numel());
                lane_sum(x, |&x| square(x))
            }
        }
    };
    sum.sqrt()
}

/// A sum in eight interleaved lanes, which the compiler can keep in registers.
fn lane_sum<T>(values: &[T], term: impl Fn(&T) -> f64) -> f64 {
    let mut lanes = [0.0; 8];
    let chunks = values.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().map(&term).sum();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += term(value);
        }
    }
    lanes.iter().sum::<f64>() + rest
}

/// Scales the gradients down so that their norm is at most `max_norm`, as `torch.nn.utils.clip_grad_norm_` does.
///
/// Returns the norm before scaling. A norm that is not finite scales nothing: the caller must look at it.
pub fn clip_norm(parameters: &mut Parameters, max_norm: f64) -> f64 {
    let norm = grad_norm(parameters.grads());
    let factor = max_norm / (norm + 1e-6);
    if factor < 1.0 {
        parameters.scale_grads(factor);
    }
    norm
}
