//! Values of the configuration that may be left to the program: a number or a truth value beside the word `"auto"`.

use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;

/// A value, or `"auto"`: found by the program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Auto<T> {
    /// Left to the program.
    Auto,
    /// Given by the user.
    Value(T),
}

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Auto::Auto => serializer.serialize_str("auto"),
            Auto::Value(value) => value.serialize(serializer),
        }
    }
}

/// A type of TOML that can stand beside `"auto"`.
pub trait Scalar: Sized {
    /// What a user may write, for the error.
    const EXPECTED: &'static str;
    /// From a TOML integer.
    fn from_integer(value: i64) -> Option<Self>;
    /// From a TOML float.
    fn from_float(value: f64) -> Option<Self>;
    /// From a TOML boolean.
    fn from_bool(value: bool) -> Option<Self>;
}

macro_rules! scalar {
    ($type:ty, $expected:literal, $integer:expr, $float:expr, $bool:expr) => {
        impl Scalar for $type {
            const EXPECTED: &'static str = $expected;
            fn from_integer(value: i64) -> Option<Self> {
                ($integer)(value)
            }
            fn from_float(value: f64) -> Option<Self> {
                ($float)(value)
            }
            fn from_bool(value: bool) -> Option<Self> {
                ($bool)(value)
            }
        }
    };
}
scalar!(f64, "a number or \"auto\"", |v| Some(v as f64), Some, |_| None);
scalar!(u64, "a whole number, 0 or more, or \"auto\"", |v| u64::try_from(v).ok(), |_| None, |_| None);
scalar!(bool, "true, false or \"auto\"", |_| None, |_| None, Some);

impl<'de, T: Scalar> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Auto<T>, D::Error> {
        struct AutoOr<T>(PhantomData<T>);
        impl<T: Scalar> AutoOr<T> {
            fn value<E: de::Error>(self, value: Option<T>, found: de::Unexpected<'_>) -> Result<Auto<T>, E> {
                value.map(Auto::Value).ok_or_else(|| E::invalid_type(found, &self))
            }
        }
        impl<T: Scalar> Visitor<'_> for AutoOr<T> {
            type Value = Auto<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Auto<T>, E> {
                self.value(T::from_integer(value), de::Unexpected::Signed(value))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Auto<T>, E> {
                self.value(T::from_float(value), de::Unexpected::Float(value))
            }
            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Auto<T>, E> {
                self.value(T::from_bool(value), de::Unexpected::Bool(value))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Auto<T>, E> {
                if text == "auto" { Ok(Auto::Auto) } else { Err(E::invalid_value(de::Unexpected::Str(text), &self)) }
            }
        }
        deserializer.deserialize_any(AutoOr(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_stands_beside_a_value() {
        #[derive(Deserialize)]
        struct Table {
            tau: Auto<f64>,
            delegate: Auto<bool>,
            l_max: Auto<u64>,
        }
        let table: Table = toml::from_str("tau = 1\ndelegate = \"auto\"\nl_max = 7").unwrap();
        assert_eq!((table.tau, table.delegate, table.l_max), (Auto::Value(1.0), Auto::Auto, Auto::Value(7)));
        for bad in ["tau = true", "tau = \"al\"", "l_max = -1", "l_max = 0.5", "delegate = 1"] {
            assert!(toml::from_str::<Table>(&format!("{bad}\n")).is_err(), "{bad}");
        }
    }
}
