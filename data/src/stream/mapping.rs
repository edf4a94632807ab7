//! A file as read-only memory whose pages can be given back.
//!
//! Pages of a mapping count as memory of this process while they are resident. A reader that walks through a file larger
//! than memory gives back what it has passed; the pages come again from the file if they are asked for.

use arrow::buffer::Buffer;
use memmap2::{Mmap, UncheckedAdvice};
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// A mapped file. Clones share the mapping.
#[derive(Clone, Debug)]
pub(crate) struct Mapping(Arc<Mmap>);

impl Mapping {
    /// Maps a file that nobody changes in place.
    pub(crate) fn of(file: &File) -> io::Result<Mapping> {
        // SAFETY: the mapping is private and read-only. Files are written by rename, never in place, so no writer of ours
        // changes the bytes; a foreign process that truncates a mapped file ends this one, as with any mapped file.
        Ok(Mapping(Arc::new(unsafe { Mmap::map(file) }?)))
    }

    /// All bytes as an Arrow buffer that keeps the mapping alive.
    pub(crate) fn buffer(&self) -> Buffer {
        let (pointer, len) = (self.0.as_ptr().cast_mut(), self.0.len());
        let pointer = NonNull::new(pointer).expect("a mapping has an address");
        // SAFETY: the mapping is valid for `len` bytes and lives as long as the buffer, which owns it through the Arc.
        unsafe { Buffer::from_custom_allocation(pointer, len, self.0.clone()) }
    }

    /// Gives back the pages of a part of the mapping; a slice from elsewhere is left alone.
    pub(crate) fn release(&self, part: &[u8]) {
        let (start, from) = (self.0.as_ptr().addr(), part.as_ptr().addr());
        let inside = from >= start && from + part.len() <= start + self.0.len();
        if !inside || part.is_empty() {
            return;
        }
        // SAFETY: the mapping is file-backed and read-only, so dropped pages are read again from the file with the same
        // bytes; no reference sees a change.
        let released = unsafe { self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, from - start, part.len()) };
        debug_assert!(released.is_ok(), "advice within the mapping");
    }
}
