//! Named arrays and a JSON document, as one safetensors file: what a rank puts into a checkpoint.
//!
//! Invariants: values come back with the same bits, NaN payloads included; equal archives make equal files. The JSON
//! document rides in the file's `__metadata__` under the key `meta`, so other safetensors readers see the arrays as usual.
//!
//! Absent: tensors. Arrays are plain vectors in host memory; whoever owns a tensor copies it in and out.

use bytemuck::Pod;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo, TensorView};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use thiserror::Error;

#[cfg(target_endian = "big")]
compile_error!("archives are little-endian files of raw values");

/// An archive that can not be read, or lacks what was asked for.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// The file is not a safetensors file.
    #[error("not a safetensors file")]
    Format(#[from] SafeTensorError),
    /// The file carries no JSON document, or a broken one.
    #[error("the archive's `meta` document is absent or no JSON")]
    Meta(#[source] Option<serde_json::Error>),
    /// An element type that archives do not use.
    #[error("array `{name}` has the element type {dtype:?}, which archives do not use")]
    UnknownDtype {
        /// The array's name.
        name: String,
        /// Its element type.
        dtype: Dtype,
    },
    /// An array that was expected.
    #[error("the archive has no array `{name}`")]
    Missing {
        /// The array's name.
        name: String,
    },
    /// An array with other elements than expected.
    #[error("array `{name}` holds {found:?}, expected {expected:?}")]
    WrongDtype {
        /// The array's name.
        name: String,
        /// The element type asked for.
        expected: Dtype,
        /// The element type in the archive.
        found: Dtype,
    },
    /// An array of another shape than expected.
    #[error("array `{name}` has shape {found:?}, expected {expected:?}")]
    WrongShape {
        /// The array's name.
        name: String,
        /// The shape asked for.
        expected: Vec<usize>,
        /// The shape in the archive.
        found: Vec<usize>,
    },
}

macro_rules! elements {
    ($($variant:ident($type:ty)),*) => {
        /// The values of an array, row-major.
        #[derive(Clone, Debug)]
        pub enum ArrayData {
            $(#[doc = concat!("`", stringify!($type), "` values.")] $variant(Vec<$type>)),*
        }

        $(impl Element for $type {
            const DTYPE: Dtype = Dtype::$variant;

            fn wrap(values: Vec<Self>) -> ArrayData {
                ArrayData::$variant(values)
            }

            fn unwrap(data: ArrayData) -> Option<Vec<Self>> {
                if let ArrayData::$variant(values) = data { Some(values) } else { None }
            }

            fn view(data: &ArrayData) -> Option<&[Self]> {
                if let ArrayData::$variant(values) = data { Some(values) } else { None }
            }
        })*

        impl ArrayData {
            /// The element type.
            pub fn dtype(&self) -> Dtype {
                match self { $(ArrayData::$variant(_) => Dtype::$variant),* }
            }

            /// The values' bits, little-endian.
            pub fn bytes(&self) -> &[u8] {
                match self { $(ArrayData::$variant(values) => bytemuck::cast_slice(values)),* }
            }

            fn len(&self) -> usize {
                match self { $(ArrayData::$variant(values) => values.len()),* }
            }

            fn from_bytes(dtype: Dtype, bytes: &[u8]) -> Option<ArrayData> {
                match dtype {
                    $(Dtype::$variant => Some(ArrayData::$variant(copy_values(bytes))),)*
                    _ => None,
                }
            }
        }
    };
}

elements!(F32(f32), F64(f64), I32(i32), I64(i64), U8(u8), U32(u32), U64(u64));

/// An element type of arrays.
pub trait Element: Pod {
    /// Its name in the file.
    const DTYPE: Dtype;
    /// Values as array data.
    fn wrap(values: Vec<Self>) -> ArrayData;
    /// The values, if they are of this type.
    fn unwrap(data: ArrayData) -> Option<Vec<Self>>;
    /// The values, if they are of this type.
    fn view(data: &ArrayData) -> Option<&[Self]>;
}

/// An array: a shape and as many values as it says.
#[derive(Clone, Debug)]
pub struct Array {
    shape: Vec<usize>,
    data: ArrayData,
}

impl Array {
    /// An array of `values`, row-major.
    ///
    /// # Panics
    /// If the shape's product is not the number of values.
    pub fn new<T: Element>(shape: &[usize], values: Vec<T>) -> Array {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "an array of shape {shape:?}");
        Array { shape: shape.to_vec(), data: T::wrap(values) }
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values, with their type.
    pub fn data(&self) -> &ArrayData {
        &self.data
    }

    /// The values, if they are of type `T`.
    pub fn values<T: Element>(&self) -> Option<&[T]> {
        T::view(&self.data)
    }

    /// The values, if they are of type `T`, without a copy.
    pub fn into_values<T: Element>(self) -> Option<Vec<T>> {
        T::unwrap(self.data)
    }
}

impl PartialEq for Array {
    /// Same shape, type and bits; a NaN equals itself.
    fn eq(&self, other: &Array) -> bool {
        self.shape == other.shape && self.data.dtype() == other.data.dtype() && self.data.bytes() == other.data.bytes()
    }
}

/// Named arrays and a JSON document.
///
/// The document holds what is no array: counters, names, controllers' settings. JSON has no NaN and no infinity; a figure
/// that may be either belongs into an array.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Archive {
    /// Arrays by name.
    pub tensors: BTreeMap<String, Array>,
    /// Everything else.
    pub meta: serde_json::Value,
}

impl Archive {
    /// An empty archive with a document.
    pub fn new(meta: serde_json::Value) -> Archive {
        Archive { tensors: BTreeMap::new(), meta }
    }

    /// Adds an array.
    ///
    /// # Panics
    /// If the name is taken, or the shape's product is not the number of values.
    pub fn insert<T: Element>(&mut self, name: impl Into<String>, shape: &[usize], values: Vec<T>) {
        let name = name.into();
        let taken = self.tensors.insert(name.clone(), Array::new(shape, values)).is_some();
        assert!(!taken, "two arrays named `{name}`");
    }

    /// An array.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn get(&self, name: &str) -> Result<&Array, ArchiveError> {
        self.tensors.get(name).ok_or_else(|| ArchiveError::Missing { name: name.to_string() })
    }

    /// Takes an array out, whatever its shape.
    ///
    /// # Errors
    /// If there is none of that name, or its elements are not `T`.
    pub fn take<T: Element>(&mut self, name: &str) -> Result<(Vec<usize>, Vec<T>), ArchiveError> {
        let found = self.get(name)?.data.dtype();
        if found != T::DTYPE {
            return Err(ArchiveError::WrongDtype { name: name.to_string(), expected: T::DTYPE, found });
        }
        let array = self.tensors.remove(name).expect("the array was just found");
        Ok((array.shape, T::unwrap(array.data).expect("the type was just checked")))
    }

    /// Takes an array of a known shape out.
    ///
    /// # Errors
    /// If there is none of that name, or its elements or shape differ.
    pub fn take_shaped<T: Element>(&mut self, name: &str, shape: &[usize]) -> Result<Vec<T>, ArchiveError> {
        let found = self.get(name)?.shape();
        if found != shape {
            let (expected, found) = (shape.to_vec(), found.to_vec());
            return Err(ArchiveError::WrongShape { name: name.to_string(), expected, found });
        }
        Ok(self.take(name)?.1)
    }

    /// Writes the archive as a safetensors file, without a copy of the arrays.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_to(&self, file: &mut dyn Write) -> io::Result<()> {
        // Wider elements first keeps every array aligned in the file; the sort is stable, so names stay in order.
        let mut arrays: Vec<_> = self.tensors.iter().collect();
        arrays.sort_by_key(|(_, array)| std::cmp::Reverse(array.data.dtype()));
        let mut offset = 0;
        let mut infos = Vec::with_capacity(arrays.len());
        for (name, array) in &arrays {
            let end = offset + array.data.bytes().len();
            let (dtype, shape) = (array.data.dtype(), array.shape.clone());
            infos.push(((*name).clone(), TensorInfo { dtype, shape, data_offsets: (offset, end) }));
            offset = end;
        }
        let meta = HashMap::from([(META.to_string(), self.meta.to_string())]);
        let metadata = Metadata::new(Some(meta), infos).map_err(io::Error::other)?;
        let mut header = serde_json::to_vec(&metadata)?;
        header.resize(header.len().next_multiple_of(8), b' ');
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        arrays.iter().try_for_each(|(_, array)| file.write_all(array.data.bytes()))
    }

    /// Reads a safetensors file written by [`Archive::write_to`].
    ///
    /// # Errors
    /// If it is none, or has an element type that archives do not use.
    pub fn from_bytes(bytes: &[u8]) -> Result<Archive, ArchiveError> {
        let (_, metadata) = SafeTensors::read_metadata(bytes)?;
        let meta = metadata.metadata().as_ref().and_then(|m| m.get(META)).ok_or(ArchiveError::Meta(None))?;
        let meta = serde_json::from_str(meta).map_err(|e| ArchiveError::Meta(Some(e)))?;
        let tensors = SafeTensors::deserialize(bytes)?
            .iter()
            .map(|(name, view)| Ok((name.to_string(), read_array(name, &view)?)))
            .collect::<Result<_, ArchiveError>>()?;
        Ok(Archive { tensors, meta })
    }
}

/// Bytes of any alignment as values.
fn copy_values<T: Pod>(bytes: &[u8]) -> Vec<T> {
    let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes);
    values
}

/// The document's key in the file's `__metadata__`.
const META: &str = "meta";

fn read_array(name: &str, view: &TensorView<'_>) -> Result<Array, ArchiveError> {
    let data = ArrayData::from_bytes(view.dtype(), view.data())
        .ok_or_else(|| ArchiveError::UnknownDtype { name: name.to_string(), dtype: view.dtype() })?;
    debug_assert_eq!(data.len(), view.shape().iter().product::<usize>());
    Ok(Array { shape: view.shape().to_vec(), data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn file(archive: &Archive) -> Vec<u8> {
        let mut bytes = Vec::new();
        archive.write_to(&mut bytes).expect("a vector takes all");
        bytes
    }

    fn sample() -> Archive {
        let mut archive = Archive::new(json!({"position": [3, 120], "large": u64::MAX, "loss": 0.1, "name": "ä\n"}));
        archive.insert("flags", &[3], vec![0u8, 255, 7]);
        archive.insert("memory", &[2, 2], vec![1.0f32, -0.0, f32::from_bits(0x7fc0_1234), f32::MIN_POSITIVE]);
        archive.insert("moment", &[2], vec![f64::NEG_INFINITY, 5e-324]);
        archive.insert("last_update", &[1, 1], vec![i64::MIN]);
        archive.insert("count", &[], vec![u64::MAX]);
        archive.insert("node", &[0, 7], Vec::<u32>::new());
        archive.insert("label", &[2], vec![-1i32, 1]);
        archive
    }

    #[test]
    fn comes_back_bit_for_bit() {
        let archive = sample();
        let back = Archive::from_bytes(&file(&archive)).expect("read");
        assert_eq!(back, archive);
        assert_eq!(back.get("memory").expect("there").values::<f32>().expect("f32")[2].to_bits(), 0x7fc0_1234);
        assert_eq!(file(&back), file(&archive));
    }

    #[test]
    fn is_a_plain_safetensors_file() {
        let bytes = file(&sample());
        let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
        let view = tensors.tensor("label").expect("there");
        assert_eq!((view.dtype(), view.shape()), (Dtype::I32, &[2][..]));
        assert_eq!(view.data(), bytemuck::cast_slice::<i32, u8>(&[-1, 1]));
    }

    #[test]
    fn says_what_differs() {
        let mut archive = sample();
        assert!(matches!(archive.take::<f32>("mail"), Err(ArchiveError::Missing { .. })));
        let error = archive.take::<f64>("memory").expect_err("f32");
        assert_eq!(error.to_string(), "array `memory` holds F32, expected F64");
        let error = archive.take_shaped::<f32>("memory", &[4]).expect_err("shape");
        assert_eq!(error.to_string(), "array `memory` has shape [2, 2], expected [4]");
        assert_eq!(archive.take_shaped::<u8>("flags", &[3]).expect("there"), [0, 255, 7]);
        assert!(archive.get("flags").is_err(), "taken");
    }

    #[test]
    fn refuses_broken_files() {
        let bytes = file(&sample());
        assert!(matches!(Archive::from_bytes(&bytes[..bytes.len() - 1]), Err(ArchiveError::Format(_))));
        assert!(matches!(Archive::from_bytes(b"{}"), Err(ArchiveError::Format(_))));
        let bare = safetensors::serialize::<&str, TensorView<'_>, _>([], None).expect("empty file");
        assert!(matches!(Archive::from_bytes(&bare), Err(ArchiveError::Meta(None))));
    }

    #[test]
    #[should_panic(expected = "two arrays named `flags`")]
    fn a_name_is_used_once() {
        sample().insert("flags", &[1], vec![1u8]);
    }

    proptest! {
        #[test]
        fn any_bits_come_back(
            singles in prop::collection::vec(any::<u32>(), 0..40),
            doubles in prop::collection::vec(any::<u64>(), 0..40),
            number in any::<f64>(),
        ) {
            let mut archive = Archive::new(json!({ "number": number }));
            archive.insert("a", &[singles.len()], singles.iter().map(|&b| f32::from_bits(b)).collect::<Vec<_>>());
            archive.insert("b", &[1, doubles.len()], doubles.iter().map(|&b| f64::from_bits(b)).collect::<Vec<_>>());
            archive.insert("c", &[doubles.len()], doubles);
            prop_assert_eq!(Archive::from_bytes(&file(&archive)).expect("read"), archive);
        }
    }
}
