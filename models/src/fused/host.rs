//! Tensors in host memory as slices.

use tch::{Device, Kind, Tensor};

use super::real::Real;

/// A number that tensors hold.
pub(crate) trait Element: Copy {
    /// The tensors' kind.
    const KIND: Kind;
}

impl<T: Real> Element for T {
    const KIND: Kind = T::KIND;
}

impl Element for i64 {
    const KIND: Kind = Kind::Int64;
}

impl Element for bool {
    const KIND: Kind = Kind::Bool;
}

fn check<T: Element>(x: &Tensor) {
    assert!(x.device() == Device::Cpu && x.kind() == T::KIND && x.is_contiguous(), "a contiguous tensor on the CPU");
}

/// The numbers of a contiguous CPU tensor, which nobody writes to meanwhile.
pub(crate) fn slice<T: Element>(x: &Tensor) -> &[T] {
    check::<T>(x);
    if x.numel() == 0 {
        return &[];
    }
    // SAFETY: `numel` contiguous numbers of this type in host memory, kept alive by the borrowed tensor, written by nobody.
    unsafe { std::slice::from_raw_parts(x.data_ptr().cast::<T>().cast_const(), x.numel()) }
}

/// The numbers of a contiguous CPU tensor whose storage nothing else refers to meanwhile.
pub(crate) fn slice_mut<T: Element>(x: &mut Tensor) -> &mut [T] {
    check::<T>(x);
    if x.numel() == 0 {
        return &mut [];
    }
    // SAFETY: `numel` contiguous numbers of this type in host memory, kept alive and lent out by the exclusive borrow.
    unsafe { std::slice::from_raw_parts_mut(x.data_ptr().cast::<T>(), x.numel()) }
}
