//! Reads `.npz` files into f64 and i64 vectors.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use tch::Tensor;

pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

impl Array {
    pub fn integers(&self) -> Vec<i64> {
        self.values.iter().map(|&x| x as i64).collect()
    }

    pub fn tensor(&self) -> Tensor {
        let shape: Vec<i64> = self.shape.iter().map(|&n| n as i64).collect();
        Tensor::from_slice(&self.values).view(shape.as_slice())
    }

    pub fn slice(&self, span: Range<usize>) -> Vec<f64> {
        self.values[span].to_vec()
    }

    /// Rows of a matrix.
    pub fn rows(&self, span: Range<usize>) -> &[f64] {
        &self.values[span.start * self.shape[1]..span.end * self.shape[1]]
    }
}

pub struct Npz(BTreeMap<String, Array>);

impl Npz {
    pub fn open(path: &Path) -> Npz {
        let mut archive =
            npyz::npz::NpzArchive::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
        let read = |name: String| {
            let array = archive.by_name(&name).expect("readable").expect("listed");
            let shape = array.shape().iter().map(|&n| n as usize).collect();
            assert_eq!(array.order(), npyz::Order::C, "{name}");
            let values = match array.dtype().descr().trim_matches(['\'', '"']) {
                "<f4" => array.into_vec::<f32>().expect("f4").into_iter().map(f64::from).collect(),
                "<f8" => array.into_vec::<f64>().expect("f8"),
                "<i8" => array.into_vec::<i64>().expect("i8").into_iter().map(|x| x as f64).collect(),
                other => panic!("{name}: {other}"),
            };
            (name, Array { shape, values })
        };
        Npz(names.into_iter().map(read).collect())
    }

    pub fn get(&self, name: &str) -> Option<&Array> {
        self.0.get(name)
    }

    pub fn need(&self, name: &str) -> &Array {
        self.get(name).unwrap_or_else(|| panic!("no array {name}"))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}
