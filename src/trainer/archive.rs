//! Named arrays and a JSON document, as one safetensors file: what a rank puts into a checkpoint.
//!
//! Invariants: values come back with the same bits, NaN payloads included; equal archives make equal files. The JSON
//! document rides in the file's `__metadata__` under the key `meta`, so other safetensors readers see the arrays as usual.
//!
//! An array's values are on the heap or in a mapped file, and nobody can tell which: a state too large to be held twice goes
//! to a checkpoint and comes back from one without a copy on the heap.
//!
//! Absent: tensors. Whoever owns a tensor copies it in and out.

use bytemuck::Pod;
use memmap2::Mmap;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo, TensorView};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::Arc;
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

/// Values on the heap, or in a mapped file that stays as it is.
#[derive(Clone, Debug)]
pub struct Values<T>(Place<T>);

#[derive(Clone, Debug)]
enum Place<T> {
    Heap(Vec<T>),
    /// Aligned and of a whole number of values.
    File(Arc<Mmap>, Range<usize>, PhantomData<T>),
}

impl<T: Pod> Values<T> {
    /// The values in a part of a mapped file; copied if they do not lie as `T` must.
    fn mapped(map: &Arc<Mmap>, bytes: Range<usize>) -> Values<T> {
        match bytemuck::try_cast_slice::<u8, T>(&map[bytes.clone()]) {
            Ok(_) => Values(Place::File(map.clone(), bytes, PhantomData)),
            Err(_) => Values(Place::Heap(copy_values(&map[bytes]))),
        }
    }

    fn into_vec(self) -> Vec<T> {
        match self.0 {
            Place::Heap(values) => values,
            Place::File(..) => self.to_vec(),
        }
    }
}

impl<T: Pod> Deref for Values<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Place::Heap(values) => values,
            Place::File(map, bytes, _) => bytemuck::cast_slice(&map[bytes.clone()]),
        }
    }
}

macro_rules! elements {
    ($($variant:ident($type:ty)),*) => {
        /// The values of an array, row-major.
        #[derive(Clone, Debug)]
        pub enum ArrayData {
            $(#[doc = concat!("`", stringify!($type), "` values.")] $variant(Values<$type>)),*
        }

        $(impl Element for $type {
            const DTYPE: Dtype = Dtype::$variant;

            fn wrap(values: Vec<Self>) -> ArrayData {
                ArrayData::$variant(Values(Place::Heap(values)))
            }

            fn unwrap(data: ArrayData) -> Option<Vec<Self>> {
                if let ArrayData::$variant(values) = data { Some(values.into_vec()) } else { None }
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
                    $(Dtype::$variant => Some(ArrayData::$variant(Values(Place::Heap(copy_values(bytes))))),)*
                    _ => None,
                }
            }

            fn mapped(dtype: Dtype, map: &Arc<Mmap>, bytes: Range<usize>) -> Option<ArrayData> {
                match dtype {
                    $(Dtype::$variant => Some(ArrayData::$variant(Values::mapped(map, bytes))),)*
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

    /// An array whose values are all there is in a mapped file.
    ///
    /// # Panics
    /// If the shape's product is not the number of values, or archives do not use the element type.
    pub fn in_file(shape: &[usize], dtype: Dtype, map: Mmap) -> Array {
        let length = map.len();
        let data = ArrayData::mapped(dtype, &Arc::new(map), 0..length).expect("an element type of archives");
        assert_eq!(shape.iter().product::<usize>(), data.len(), "an array of shape {shape:?}");
        Array { shape: shape.to_vec(), data }
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

    /// The values, if they are of type `T`, without a copy if they are on the heap.
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
        self.insert_array(name, Array::new(shape, values));
    }

    /// Adds an array that there is.
    ///
    /// # Panics
    /// If the name is taken.
    pub fn insert_array(&mut self, name: impl Into<String>, array: Array) {
        let name = name.into();
        let taken = self.tensors.insert(name.clone(), array).is_some();
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
        read(bytes, |view| ArrayData::from_bytes(view.dtype(), view.data()))
    }

    /// As [`Archive::from_bytes`], of a mapped file; the arrays stay there.
    ///
    /// # Errors
    /// As [`Archive::from_bytes`].
    pub fn from_map(map: Mmap) -> Result<Archive, ArchiveError> {
        let map = Arc::new(map);
        read(&map, |view| {
            let start = view.data().as_ptr().addr() - map.as_ptr().addr();
            ArrayData::mapped(view.dtype(), &map, start..start + view.data().len())
        })
    }
}

fn read(bytes: &[u8], data: impl Fn(&TensorView<'_>) -> Option<ArrayData>) -> Result<Archive, ArchiveError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes)?;
    let meta = metadata.metadata().as_ref().and_then(|m| m.get(META)).ok_or(ArchiveError::Meta(None))?;
    let meta = serde_json::from_str(meta).map_err(|e| ArchiveError::Meta(Some(e)))?;
    let array = |(name, view): (&str, TensorView<'_>)| {
        let unknown = || ArchiveError::UnknownDtype { name: name.to_string(), dtype: view.dtype() };
        let data = data(&view).ok_or_else(unknown)?;
        debug_assert_eq!(data.len(), view.shape().iter().product::<usize>());
        Ok((name.to_string(), Array { shape: view.shape().to_vec(), data }))
    };
    let tensors = SafeTensors::deserialize(bytes)?.iter().map(array).collect::<Result<_, ArchiveError>>()?;
    Ok(Archive { tensors, meta })
}

/// Bytes of any alignment as values.
fn copy_values<T: Pod>(bytes: &[u8]) -> Vec<T> {
    let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes);
    values
}

/// The document's key in the file's `__metadata__`.
const META: &str = "meta";

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
    fn a_mapped_file_holds_the_same() {
        let archive = sample();
        let mut whole = tempfile::tempfile().expect("a file");
        archive.write_to(&mut whole).expect("written");
        // SAFETY: nobody else knows the file.
        let back = Archive::from_map(unsafe { Mmap::map(&whole) }.expect("mapped")).expect("read");
        drop(whole);
        assert_eq!(back, archive);
        assert_eq!(file(&back), file(&archive));
        let memory = &back.tensors["memory"].data;
        assert!(matches!(memory, ArrayData::F32(Values(Place::File(..)))), "{memory:?}");
        let mut part = tempfile::tempfile().expect("a file");
        part.write_all(&[1, 0, 0, 0, 2, 0, 0, 0]).expect("written");
        // SAFETY: as above.
        let map = unsafe { Mmap::map(&part) }.expect("mapped");
        assert_eq!(Array::in_file(&[2], Dtype::U32, map), Array::new(&[2], vec![1u32, 2]));
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
