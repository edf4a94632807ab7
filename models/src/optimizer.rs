//! Adam (Kingma and Ba, arXiv:1412.6980) and AdamW (Loshchilov and Hutter, arXiv:1711.05101) over flat buffers.
//!
//! tch's optimizers hide their state, which checkpoints, hashes and parameter averaging need; here it is two flat tensors and a
//! count. Each elementwise operation rounds as in `torch.optim`, so results agree with it to the last few units. On the CPU a
//! step is one pass over raw slices; elsewhere it is tensor operations. Both are tested equal.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor, no_grad};

use crate::error::Result;
use crate::parameters::{Parameters, check_count, check_len};

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
#[serde(rename_all = "snake_case")]
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

/// Moments of every parameter, and how many steps each has taken.
///
/// As in PyTorch, a parameter that took no part in a batch (no gradient, rather than a zero one) is left alone by that batch's
/// step, its decay and its bias correction included: the memory updater's parameters in an epoch's first batch, for one.
pub struct Optimizer {
    config: OptimizerConfig,
    steps: u64,
    /// Steps of each parameter, in their order.
    own_steps: Vec<u64>,
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
        Optimizer { config, steps: 0, own_steps: vec![0; parameters.names().count()], m: zeros(), v: zeros() }
    }

    /// Steps taken so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Steps that each parameter took part in, in their order.
    pub fn own_steps(&self) -> &[u64] {
        &self.own_steps
    }

    /// `[P]` float: the moments, first and second.
    pub fn moments(&self) -> (&Tensor, &Tensor) {
        (&self.m, &self.v)
    }

    /// Sets the whole state, from a checkpoint or from an average over ranks.
    ///
    /// * `own_steps`: one for each parameter. * `m`, `v`: `[P]`, of any kind and device.
    ///
    /// # Errors
    /// If a length is not that of the parameters.
    pub fn restore(&mut self, steps: u64, own_steps: &[u64], m: &Tensor, v: &Tensor) -> Result<()> {
        check_count("first moments", self.m.size()[0], m)?;
        check_count("second moments", self.v.size()[0], v)?;
        check_len("steps", self.own_steps.len(), own_steps.len())?;
        self.m.copy_(m);
        self.v.copy_(v);
        self.own_steps.copy_from_slice(own_steps);
        self.steps = steps;
        Ok(())
    }

    /// Moves the parameters that took part by their gradients, which are left as they are.
    pub fn step(&mut self, parameters: &mut Parameters, lr: f64) {
        self.steps += 1;
        let (p, g) = (parameters.values(), parameters.grads());
        for (own_steps, span) in self.own_steps.iter_mut().zip(parameters.spans()) {
            if !span.took_part {
                continue;
            }
            *own_steps += 1;
            let factors = self.config.factors(lr, *own_steps);
            let part = |flat: &Tensor| flat.narrow(0, span.start, span.count);
            let (p, g, m, v) = (part(p), part(g), part(&self.m), part(&self.v));
            match (p.device(), p.kind()) {
                (Device::Cpu, Kind::Float) => on_slices::<f32>(&p, &g, &m, &v, factors),
                (Device::Cpu, Kind::Double) => on_slices::<f64>(&p, &g, &m, &v, factors),
                _ => no_grad(|| on_tensors(&p, &g, m, v, factors)),
            }
        }
    }
}

impl OptimizerConfig {
    fn factors(&self, lr: f64, steps: u64) -> StepFactors {
        let OptimizerConfig { kind, weight_decay, betas: (beta1, beta2), eps } = *self;
        let t = steps as f64;
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
fn on_tensors(p: &Tensor, g: &Tensor, mut m: Tensor, mut v: Tensor, f: StepFactors) {
    let mut p = p.shallow_clone();
    if f.shrink != 1.0 {
        let _ = p.g_mul_scalar_(f.shrink);
    }
    let g = if f.decay == 0.0 { g.shallow_clone() } else { g + &p * f.decay };
    let _ = m.lerp_(&g, 1.0 - f.beta1);
    let _ = v.g_mul_scalar_(f.beta2);
    let _ = v.g_add_(&(&g * &g * (1.0 - f.beta2)));
    let denominator = v.sqrt().g_div_scalar_(f.correction).g_add_scalar_(f.eps);
    let _ = p.g_sub_(&(m * f.step_size / denominator));
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
/// * `norm`: what [`grad_norm`] says of them. One that is not finite scales nothing: the caller must look at it.
pub fn clip_norm(parameters: &mut Parameters, norm: f64, max_norm: f64) {
    let factor = max_norm / (norm + 1e-6);
    if factor < 1.0 {
        parameters.scale_grads(factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::{Declarations, Draw, Init};

    struct Ramp;

    impl Draw for Ramp {
        fn uniform(&self, _: &str, index: u64) -> f64 {
            (index as f64 * 0.618_034).fract()
        }

        fn normal(&self, name: &str, index: u64) -> f64 {
            self.uniform(name, index)
        }
    }

    fn parameters(kind: Kind) -> Parameters {
        let mut declare = Declarations::default();
        declare.add("x", &[7, 11], Init::Uniform(1.0));
        let mut p = declare.build(kind, Device::Cpu, &Ramp);
        let grads: Vec<f64> = (0..77).map(|i| (f64::from(i) * 1.7).sin() * 10f64.powi(i % 9 - 6)).collect();
        p.set_grads(&Tensor::from_slice(&grads)).expect("77 numbers");
        p
    }

    /// The pass over slices and the tensor operations agree to rounding, in both kinds and under both rules.
    #[test]
    fn slices_equal_tensor_operations() {
        for (kind, tolerance) in [(Kind::Float, 2e-7), (Kind::Double, 1e-15)] {
            for rule in [OptimizerKind::Adam, OptimizerKind::AdamW] {
                let config = OptimizerConfig { kind: rule, weight_decay: 0.1, ..OptimizerConfig::default() };
                let (mut a, b) = (parameters(kind), parameters(kind));
                let (mut on_slices, mut other) = (Optimizer::new(config, &a), Optimizer::new(config, &b));
                for _ in 0..5 {
                    on_slices.step(&mut a, 1e-2);
                    other.steps += 1;
                    let factors = config.factors(1e-2, other.steps);
                    let (m, v) = (other.m.shallow_clone(), other.v.shallow_clone());
                    no_grad(|| on_tensors(b.values(), b.grads(), m, v, factors));
                }
                for (x, y) in [(a.values(), b.values()), (&on_slices.m, &other.m), (&on_slices.v, &other.v)] {
                    let difference = (x - y).abs().max().double_value(&[]) / x.abs().max().double_value(&[]);
                    assert!(difference <= tolerance, "{rule:?} {kind:?}: {difference:e}");
                }
            }
        }
    }

    /// Stopping after any step and going on from the saved state gives the same bits.
    #[test]
    fn restored_state_continues_bitwise() {
        let mut straight = parameters(Kind::Float);
        let mut optimizer = Optimizer::new(OptimizerConfig::default(), &straight);
        (0..6).for_each(|_| optimizer.step(&mut straight, 1e-3));

        let mut p = parameters(Kind::Float);
        let mut before = Optimizer::new(OptimizerConfig::default(), &p);
        (0..3).for_each(|_| before.step(&mut p, 1e-3));
        let mut after = Optimizer::new(OptimizerConfig::default(), &p);
        after.restore(before.steps(), before.own_steps(), before.moments().0, before.moments().1).expect("same length");
        (0..3).for_each(|_| after.step(&mut p, 1e-3));
        assert_eq!(p.values(), straight.values());
        assert!(after.restore(1, before.own_steps(), &Tensor::from_slice(&[0f32]), before.moments().1).is_err());
    }

    /// As in PyTorch, a parameter without a gradient is neither moved nor counted, one with a zero gradient is.
    #[test]
    fn who_took_no_part_takes_no_step() {
        let mut declare = Declarations::default();
        let ids = ["a", "b"].map(|name| declare.add(name, &[2], Init::Constant(1.0)));
        let mut p = declare.build(Kind::Double, Device::Cpu, &Ramp);
        let config = OptimizerConfig { kind: OptimizerKind::AdamW, weight_decay: 0.1, ..OptimizerConfig::default() };
        let mut optimizer = Optimizer::new(config, &p);
        let zero = Tensor::zeros([2], (Kind::Double, Device::Cpu));
        p.accumulate(&ids[..1], &[zero.shallow_clone()]);
        optimizer.step(&mut p, 0.5);
        assert_eq!(optimizer.own_steps(), [1, 0]);
        assert_eq!(*p.values(), Tensor::from_slice(&[0.95, 0.95, 1.0, 1.0]));
        p.zero_grads();
        p.accumulate(&ids[1..], &[zero + 1.0]);
        optimizer.step(&mut p, 0.5);
        assert_eq!(optimizer.own_steps(), [1, 1]);
        let first_step = 0.95 - 0.5 / (1.0 + 1e-8);
        let moved = Tensor::from_slice(&[0.95, 0.95, first_step, first_step]);
        assert!((p.values() - moved).abs().max().double_value(&[]) < 1e-12, "{:?}", p.values());
    }

    #[test]
    fn clipping_leaves_small_gradients_alone() {
        let mut p = parameters(Kind::Float);
        let norm = grad_norm(p.grads());
        let before = p.grads().copy();
        clip_norm(&mut p, norm, norm * 1.1);
        assert_eq!(*p.grads(), before);
        clip_norm(&mut p, norm, norm * 0.5);
        assert!((grad_norm(p.grads()) / norm - 0.5).abs() < 1e-5);
        assert!((before.to_kind(Kind::Double).norm().double_value(&[]) / norm - 1.0).abs() < 1e-9);
    }

    #[test]
    fn schedules() {
        let rate = |s: LrSchedule, step| s.rate(2.0, step, 100);
        assert_eq!([0, 99].map(|step| rate(LrSchedule::Constant, step)), [2.0, 2.0]);
        assert_eq!([0, 50, 100].map(|step| (rate(LrSchedule::Cosine, step) * 1e6).round() / 1e6), [2.0, 1.0, 0.0]);
        assert_eq!([0, 1, 4, 5, 99].map(|step| rate(LrSchedule::LinearWarmup, step)), [0.4, 0.8, 2.0, 2.0, 2.0]);
        assert!(LrSchedule::LinearWarmup.rate(1.0, 0, 0).is_finite());
    }
}
