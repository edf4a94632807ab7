//! The names of all keys, asked of the config structs themselves, so that there is no second list to keep in step.

use super::Config;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor, value::Error};
use serde::forward_to_deserialize_any;

/// A deserializer that reads nothing: it writes down the field names that a struct asks for.
struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error::custom("names only"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The keys of a table, in the order of its struct.
fn fields<T: Deserialize<'static>>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    let _ = T::deserialize(FieldNames(&mut names));
    names
}

/// The keys of the table at `path`; `None` if there is no such table.
pub(super) fn keys(path: &[String]) -> Option<Vec<&'static str>> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let names = match path.as_slice() {
        [] => fields::<Config>().to_vec(),
        ["data"] => fields::<tidemill_data::dataset::DataConfig>().to_vec(),
        ["data", "columns"] => fields::<tidemill_data::dataset::Columns>().to_vec(),
        ["split"] => fields::<tidemill_data::split::SplitConfig>().to_vec(),
        ["model"] => model_keys(),
        ["sampler"] => fields::<crate::sampler::SamplerConfig>().to_vec(),
        ["train"] => fields::<crate::trainer::TrainConfig>().to_vec(),
        ["eval"] => fields::<crate::eval::EvalConfig>().to_vec(),
        ["partition"] => fields::<crate::partition::PartitionConfig>().to_vec(),
        ["dependency"] => fields::<crate::dependency::DependencyConfig>().to_vec(),
        ["sync"] => fields::<crate::boundary::SyncConfig>().to_vec(),
        ["replay"] => fields::<crate::replay::ReplayConfig>().to_vec(),
        ["gradient"] => fields::<crate::gradient::GradientConfig>().to_vec(),
        ["pipeline"] => fields::<crate::pipeline::PipelineConfig>().to_vec(),
        ["comm"] => fields::<crate::comms::CommConfig>().to_vec(),
        ["device"] => fields::<crate::device::DeviceConfig>().to_vec(),
        ["calibration"] => fields::<crate::dependency::Calibration>().to_vec(),
        _ => return None,
    };
    Some(names)
}

/// `name`, then the keys of every model.
fn model_keys() -> Vec<&'static str> {
    use tidemill_models as models;
    let tables = [
        &["name"],
        fields::<models::TgnConfig>(),
        fields::<models::RecurrentConfig>(),
        fields::<models::TgatConfig>(),
        fields::<models::JodieConfig>(),
        fields::<models::DyrepConfig>(),
        fields::<models::ApanConfig>(),
        fields::<models::EdgeBankConfig>(),
    ];
    tables.concat()
}

/// Every full key, such as `train.lr`, in order.
pub(super) fn all_keys() -> Vec<String> {
    let mut found = Vec::new();
    collect(&mut Vec::new(), &mut found);
    found
}

fn collect(path: &mut Vec<String>, found: &mut Vec<String>) {
    for name in keys(path).unwrap_or_default() {
        path.push(name.to_owned());
        if keys(path).is_some() {
            collect(path, found);
        } else {
            found.push(path.join("."));
        }
        path.pop();
    }
}
