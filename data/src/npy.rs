//! Opening arrays of NumPy's npy format, alone or in an npz, from files that may be broken.
//!
//! npyz parses the header, and multiplies the dimensions whatever they are. So their product is looked at first.

use npyz::NpyFile;
use std::io::{self, Chain, Cursor, Error, ErrorKind, Read};

/// Bytes at an array's start that are held; a longer header is that of a record, which nobody here reads.
const PREFIX: u64 = 1 << 16;

/// An array whose first bytes are held in memory.
pub(crate) type NpyArray<R> = NpyFile<Chain<Cursor<Vec<u8>>, R>>;

/// Reads an array's header.
///
/// # Errors
/// If the bytes can not be read or are no npy header, or if the shape has more numbers than 64 bits count.
pub(crate) fn open<R: Read>(mut reader: R) -> io::Result<NpyArray<R>> {
    let mut start = Vec::new();
    reader.by_ref().take(PREFIX).read_to_end(&mut start)?;
    if !dimensions_multiply(&start) {
        return Err(Error::new(ErrorKind::InvalidData, "its shape has more numbers than any file"));
    }
    NpyFile::new(Cursor::new(start).chain(reader))
}

/// Where an array's values start, in bytes, as far as it is within the bytes that are held.
pub(crate) fn values_start<R: Read>(array: NpyArray<R>) -> Option<u64> {
    let (start, _) = array.into_inner().into_inner();
    (start.position() < PREFIX).then(|| start.position())
}

/// Whether every tuple of numbers in a header, the shape among them, has a product.
fn dimensions_multiply(header: &[u8]) -> bool {
    let text = String::from_utf8_lossy(header);
    let product = |group: &str| {
        let inside = group.split(')').next().unwrap_or_default();
        let numbers = inside.split(',').map(|number| number.trim().trim_end_matches('L')).filter(|n| !n.is_empty());
        numbers.filter_map(|number| number.parse().ok()).try_fold(1u64, |product, n: u64| product.checked_mul(n))
    };
    text.split('(').skip(1).all(|group| product(group).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(shape: &str) -> Vec<u8> {
        let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes
    }

    #[test]
    fn dimensions_without_a_product_are_refused() {
        let bytes = header("(2, 3)");
        let fine = open(&bytes[..]).expect("a header");
        assert_eq!(fine.shape(), [2, 3]);
        assert_eq!(values_start(fine), Some(bytes.len() as u64));
        for shape in ["(4294967296, 4294967296)", "(18446744073709551615, 2, )", "(4294967296L, 4294967297L, 0)"] {
            let refused = open(&header(shape)[..]).err().expect("no array has so many").to_string();
            assert!(refused.contains("more numbers"), "{shape}: {refused}");
        }
        assert!(open(&b"\x93NUMPY"[..]).is_err(), "cut short");
    }
}
