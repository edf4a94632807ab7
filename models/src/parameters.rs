//! Parameters and their gradients: two flat buffers of P numbers, and named views into them.
//!
//! One buffer serves the optimizer, the gradient exchange, checkpoints and hashes alike; a view is a leaf that requires
//! gradient and shares its numbers with the buffer. Order is the order of declaration, fixed by the model's configuration.
//! Initial values are drawn in `f64`, keyed by name and index, and rounded to `f32` in either kind, so an `f64` model starts
//! where its `f32` twin does. Absent on purpose: `.grad()` of the leaves, which would be a second copy of the gradients.

use std::ops::Index;

use tch::{Device, Kind, Tensor, no_grad};

use crate::error::{Error, Result};
use crate::product::Matmul;

/// Source of initial parameters: a pure function of the parameter's name and the element's row-major index.
pub trait Draw {
    /// Uniform in `[0, 1)`.
    fn uniform(&self, name: &str, index: u64) -> f64;
    /// Standard normal.
    fn normal(&self, name: &str, index: u64) -> f64;
}

/// Distribution of a parameter's initial values.
#[derive(Clone, Debug)]
pub enum Init {
    /// One value everywhere.
    Constant(f64),
    /// Uniform in `(-bound, bound)`.
    Uniform(f64),
    /// Normal with this standard deviation.
    Normal(f64),
    /// Given values, row-major.
    Values(Vec<f64>),
}

impl Init {
    /// Xavier uniform (Glorot and Bengio 2010). The fans are those of the whole matrix when it is stored in blocks.
    pub fn xavier_uniform(fan_in: i64, fan_out: i64) -> Init {
        Init::Uniform((6.0 / (fan_in + fan_out) as f64).sqrt())
    }

    /// Xavier normal.
    pub fn xavier_normal(fan_in: i64, fan_out: i64) -> Init {
        Init::Normal((2.0 / (fan_in + fan_out) as f64).sqrt())
    }

    /// Uniform within `1 / sqrt(fan)`: PyTorch's choice for biases and recurrent cells.
    pub fn inverse_root(fan: i64) -> Init {
        Init::Uniform((fan as f64).powf(-0.5))
    }

    fn value(&self, draw: &dyn Draw, name: &str, index: usize) -> f64 {
        match self {
            Init::Constant(value) => *value,
            Init::Uniform(bound) => (draw.uniform(name, index as u64) * 2.0 - 1.0) * bound,
            Init::Normal(std) => draw.normal(name, index as u64) * std,
            Init::Values(values) => values[index],
        }
    }
}

/// Handle of one parameter, given out when it is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParameterId(usize);

struct Declared {
    name: String,
    shape: Vec<i64>,
    init: Init,
}

/// Collects declarations; [`Declarations::build`] lays them out in one buffer.
#[derive(Default)]
pub struct Declarations(Vec<Declared>);

impl Declarations {
    /// Declares a parameter; the name must be new.
    pub fn add(&mut self, name: impl Into<String>, shape: &[i64], init: Init) -> ParameterId {
        let name = name.into();
        assert!(self.0.iter().all(|d| d.name != name), "parameter {name} is declared twice");
        self.0.push(Declared { name, shape: shape.to_vec(), init });
        ParameterId(self.0.len() - 1)
    }

    /// How many parameters are declared so far; with [`Declarations::since`], a range of them.
    pub fn mark(&self) -> usize {
        self.0.len()
    }

    /// Those declared since a mark.
    pub fn since(&self, mark: usize) -> Vec<ParameterId> {
        (mark..self.0.len()).map(ParameterId).collect()
    }

    /// Draws every value and makes the buffers.
    pub fn build(self, kind: Kind, device: Device, draw: &dyn Draw) -> Parameters {
        let mut flat = Vec::new();
        for Declared { name, shape, init } in &self.0 {
            let count = shape.iter().product::<i64>() as usize;
            flat.extend((0..count).map(|i| init.value(draw, name, i) as f32));
        }
        let values = Tensor::from_slice(&flat).to_kind(kind).to_device(device);
        Parameters::over(values, self.0.into_iter().map(|d| (d.name, d.shape)))
    }
}

struct Entry {
    name: String,
    shape: Vec<i64>,
    value: Tensor,
    grad: Tensor,
    took_part: bool,
}

/// Values and gradients of a model's parameters.
pub struct Parameters {
    values: Tensor,
    grads: Tensor,
    entries: Vec<Entry>,
    matmul: Matmul,
}

impl Parameters {
    fn over(values: Tensor, shapes: impl Iterator<Item = (String, Vec<i64>)>) -> Parameters {
        let grads = values.zeros_like();
        let mut entries = Vec::new();
        let mut offset = 0;
        for (name, shape) in shapes {
            let count: i64 = shape.iter().product();
            let view = |flat: &Tensor| flat.narrow(0, offset, count).view(shape.as_slice()).detach();
            entries.push(Entry {
                value: view(&values).set_requires_grad(true),
                grad: view(&grads),
                took_part: false,
                name,
                shape,
            });
            offset += count;
        }
        Parameters { values, grads, entries, matmul: Matmul::Full }
    }

    /// The same, their products with rows taken in another way.
    pub fn multiplied_by(self, matmul: Matmul) -> Parameters {
        Parameters { matmul, ..self }
    }

    /// How the kernels take products of rows.
    pub(crate) fn matmul(&self) -> Matmul {
        self.matmul
    }

    /// A copy with buffers of its own: the same values, no gradient.
    pub fn twin(&self) -> Parameters {
        let shapes = self.entries.iter().map(|entry| (entry.name.clone(), entry.shape.clone()));
        Parameters::over(self.values.detach().copy(), shapes).multiplied_by(self.matmul)
    }

    /// How many numbers there are: P.
    pub fn count(&self) -> i64 {
        self.values.size()[0]
    }

    /// `[P]` float: all values, in order of [`Parameters::iter`]. Shares its numbers with the views.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// `[P]` float: all gradients, same order.
    pub fn grads(&self) -> &Tensor {
        &self.grads
    }

    /// Names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|e| e.name.as_str())
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|e| (e.name.as_str(), &e.value))
    }

    /// The value view of a name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.entries.iter().find(|e| e.name == name).map(|e| &e.value)
    }

    /// The gradient view of a name.
    pub fn grad(&self, name: &str) -> Option<&Tensor> {
        self.entries.iter().find(|e| e.name == name).map(|e| &e.grad)
    }

    /// The name of a parameter.
    pub fn name(&self, id: ParameterId) -> &str {
        &self.entries[id.0].name
    }

    /// The shape of a parameter.
    pub fn shape(&self, id: ParameterId) -> &[i64] {
        &self.entries[id.0].shape
    }

    /// Where each parameter lies in the flat buffers, and whether it has a gradient since they were zeroed.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        let mut start = 0;
        self.entries.iter().map(move |entry| {
            let count = entry.shape.iter().product();
            let span = Span { start, count, took_part: entry.took_part };
            start += count;
            span
        })
    }

    /// Index of a parameter's first number in the flat buffers.
    pub(crate) fn start_of(&self, id: ParameterId) -> i64 {
        self.spans().nth(id.0).expect("a declared parameter").start
    }

    /// Sets every gradient to zero.
    pub fn zero_grads(&mut self) {
        let _ = self.grads.zero_();
        self.entries.iter_mut().for_each(|entry| entry.took_part = false);
    }

    /// Multiplies every gradient.
    pub fn scale_grads(&mut self, factor: f64) {
        let _ = self.grads.g_mul_scalar_(factor);
    }

    /// Adds gradients to the flat buffer; an undefined one counts as zero.
    ///
    /// * `gradients`: as `autograd.grad` returns them, one for each of `ids`, shaped like the parameter.
    pub fn accumulate(&mut self, ids: &[ParameterId], gradients: &[Tensor]) {
        assert_eq!(ids.len(), gradients.len(), "one gradient a parameter");
        for (id, gradient) in ids.iter().zip(gradients) {
            if gradient.defined() {
                let _ = self.entries[id.0].grad.g_add_(gradient);
                self.entries[id.0].took_part = true;
            }
        }
    }

    /// The gradient view of a parameter, to be added to: it has a gradient from now on.
    pub(crate) fn grad_mut(&mut self, id: ParameterId) -> Tensor {
        let entry = &mut self.entries[id.0];
        entry.took_part = true;
        entry.grad.shallow_clone()
    }

    /// Differentiates a scalar by some parameters, adds the results to the flat gradient, and returns the gradients at
    /// `leaves`.
    pub fn differentiate(&mut self, scalar: &Tensor, ids: &[ParameterId], leaves: &[&Tensor]) -> Vec<Tensor> {
        let inputs: Vec<&Tensor> =
            ids.iter().map(|id| &self.entries[id.0].value).chain(leaves.iter().copied()).collect();
        let mut gradients = Tensor::run_backward(&[scalar], &inputs, false, false);
        let at_leaves = gradients.split_off(ids.len());
        self.accumulate(ids, &gradients);
        at_leaves
    }

    /// Overwrites the values of one parameter.
    ///
    /// * `value`: shaped like the parameter, of any kind and device.
    ///
    /// # Errors
    /// If there is no such parameter, or the shape is another.
    pub fn set(&mut self, name: &str, value: &Tensor) -> Result<()> {
        let Some(entry) = self.entries.iter_mut().find(|e| e.name == name) else {
            return Err(Error::UnknownParameter { name: name.into() });
        };
        if value.size() != entry.shape {
            let (expected, got) = (entry.shape.clone(), value.size());
            return Err(Error::ParameterShape { name: name.into(), expected, got });
        }
        no_grad(|| entry.value.copy_(value));
        Ok(())
    }

    /// Overwrites all values.
    ///
    /// * `values`: `[P]`, of any kind and device.
    ///
    /// # Errors
    /// If the length is not P.
    pub fn set_values(&mut self, values: &Tensor) -> Result<()> {
        check_count("values", self.count(), values)?;
        no_grad(|| self.values.copy_(values));
        Ok(())
    }

    /// Takes over the gradients of a twin: the numbers, and which parameters took part.
    ///
    /// * `grads`: `[P]`, of any kind and device. * `took_part`: one for each parameter.
    ///
    /// # Errors
    /// If a length is not that of the parameters.
    pub fn take_over_grads(&mut self, grads: &Tensor, took_part: &[bool]) -> Result<()> {
        check_len("parameters that took part", self.entries.len(), took_part.len())?;
        self.set_grads(grads)?;
        self.entries.iter_mut().zip(took_part).for_each(|(entry, &took_part)| entry.took_part = took_part);
        Ok(())
    }

    /// Overwrites all gradients, for instance with their sum over ranks.
    ///
    /// * `grads`: `[P]`, of any kind and device.
    ///
    /// # Errors
    /// If the length is not P.
    pub fn set_grads(&mut self, grads: &Tensor) -> Result<()> {
        check_count("grads", self.count(), grads)?;
        self.grads.copy_(grads);
        self.entries.iter_mut().for_each(|entry| entry.took_part = true);
        Ok(())
    }
}

impl Index<ParameterId> for Parameters {
    type Output = Tensor;

    fn index(&self, id: ParameterId) -> &Tensor {
        &self.entries[id.0].value
    }
}

/// A parameter's part of the flat buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of its first number.
    pub start: i64,
    /// How many there are.
    pub count: i64,
    /// Whether any gradient, be it zero, was added since the gradients were zeroed.
    pub took_part: bool,
}

/// Checks that a list holds one item for each of `expected`.
pub(crate) fn check_len(what: &'static str, expected: usize, got: usize) -> Result<()> {
    let (expected, got) = (expected as i64, got as i64);
    if got == expected { Ok(()) } else { Err(Error::ParameterCount { what, expected, got }) }
}

/// Checks that a flat buffer holds `expected` numbers.
pub(crate) fn check_count(what: &'static str, expected: i64, flat: &Tensor) -> Result<()> {
    let got = flat.numel() as i64;
    if got == expected && flat.dim() == 1 { Ok(()) } else { Err(Error::ParameterCount { what, expected, got }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct ByName;

    impl Draw for ByName {
        fn uniform(&self, name: &str, index: u64) -> f64 {
            (name.len() as f64 * 0.37 + index as f64 * 0.618_034).fract()
        }

        fn normal(&self, name: &str, index: u64) -> f64 {
            self.uniform(name, index) - 0.5
        }
    }

    fn two(kind: Kind) -> (Parameters, ParameterId, ParameterId) {
        let mut declare = Declarations::default();
        let a = declare.add("a", &[2, 3], Init::Uniform(0.5));
        let b = declare.add("bb", &[4], Init::Normal(2.0));
        (declare.build(kind, Device::Cpu, &ByName), a, b)
    }

    #[test]
    fn views_share_the_flat_buffer() {
        let (mut p, a, b) = two(Kind::Float);
        assert_eq!((p.count(), p.names().collect::<Vec<_>>()), (10, vec!["a", "bb"]));
        assert!(p[a].requires_grad() && p[a].is_leaf());
        assert_eq!(Tensor::cat(&[p[a].view(-1), p[b].view(-1)], 0), *p.values());
        p.set_values(&Tensor::arange(10, (Kind::Float, Device::Cpu))).expect("10 numbers");
        assert_eq!(p[b].double_value(&[3]), 9.0);
        p.set("bb", &Tensor::from_slice(&[1f64, 2.0, 3.0, 4.0])).expect("four numbers");
        assert_eq!(p.values().double_value(&[9]), 4.0);
        assert!(p.set("c", &Tensor::from_slice(&[1f64])).is_err());
        assert!(p.set("bb", &Tensor::from_slice(&[1f64])).is_err());
        assert!(p.set_values(&Tensor::from_slice(&[1f64])).is_err());
    }

    /// d(a.sum() * 3)/da = 3; `bb` is not reached and stays zero; a second pass adds.
    #[test]
    fn gradients_add_up_in_the_flat_buffer() {
        let (mut p, a, b) = two(Kind::Float);
        for pass in 1..=2 {
            let leaf = Tensor::from_slice(&[5f32]).set_requires_grad(true);
            let scalar = p[a].sum(Kind::Float) * 3.0 + leaf.sum(Kind::Float);
            let at_leaf = p.differentiate(&scalar, &[a, b], &[&leaf]);
            assert_eq!(at_leaf[0].double_value(&[0]), 1.0);
            assert_eq!(p.grad("a").expect("declared").double_value(&[1, 2]), 3.0 * f64::from(pass));
            assert_eq!(p.grads().abs().sum(Kind::Float).double_value(&[]), 18.0 * f64::from(pass));
        }
        p.scale_grads(0.5);
        assert_eq!(p.grads().double_value(&[0]), 3.0);
        p.zero_grads();
        assert_eq!(p.grads().abs().max().double_value(&[]), 0.0);
    }

    #[test]
    fn a_twin_shares_nothing() {
        let (mut p, a, _) = two(Kind::Float);
        let mut twin = p.twin();
        assert!(twin.values() == p.values() && twin.names().eq(p.names()));
        p.accumulate(&[a], &[Tensor::ones([2, 3], (Kind::Float, Device::Cpu))]);
        let took_part: Vec<bool> = p.spans().map(|span| span.took_part).collect();
        assert_eq!((took_part.as_slice(), twin.grads().abs().max().double_value(&[])), ([true, false].as_slice(), 0.0));
        twin.take_over_grads(p.grads(), &took_part).expect("a twin's");
        assert!(twin.grads() == p.grads() && twin.spans().eq(p.spans()));
        twin.set("bb", &Tensor::from_slice(&[1f64, 2.0, 3.0, 4.0])).expect("four numbers");
        assert!(twin.values() != p.values());
        assert!(twin.take_over_grads(p.grads(), &[true]).is_err());
    }

    #[test]
    fn both_kinds_start_alike() {
        let ((single, ..), (double, ..)) = (two(Kind::Float), two(Kind::Double));
        assert_eq!(single.values().to_kind(Kind::Double), *double.values());
        assert!(double.values().abs().max().double_value(&[]) > 0.1);
    }
}
