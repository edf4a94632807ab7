//! The name of a configuration: its preset and every key that differs, as `tgn-2020+train.batch_size=600`.

use super::Config;
use toml::{Table, Value};

/// Keys that say where and how a run is done, not what is measured; the seed and the device stand beside the name.
const NOT_NAMED: [&str; 11] = [
    "preset",
    "seed",
    "threads",
    "data.path",
    "data.format",
    "data.columns",
    "train.log_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "device",
    "calibration",
];

impl Config {
    /// The preset's name and the keys that differ from it, in the order of their tables.
    pub fn name(&self) -> String {
        let plain = self.preset.config().table();
        let (own, preset) = (self.table(), self.preset.config_for(self.model.name).table());
        let mut name = self.preset.name().to_owned();
        for key in super::schema::all_keys() {
            if NOT_NAMED.iter().any(|free| key == *free || key.starts_with(&format!("{free}."))) {
                continue;
            }
            // the model's name is the preset's only if it is that of TGN; what it implies goes without saying
            let (value, default) =
                (find(&own, &key), if key == "model.name" { find(&plain, &key) } else { find(&preset, &key) });
            if value != default {
                name.push_str(&format!("+{key}={}", value.map_or_else(|| "none".to_owned(), short)));
            }
        }
        name
    }

    /// Every value as a TOML table.
    pub(super) fn table(&self) -> Table {
        Table::try_from(self).expect("every value has a TOML form")
    }
}

/// The value of a full key.
pub(super) fn find<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        Some((name, rest)) => find(table.get(name)?.as_table()?, rest),
        None => table.get(key),
    }
}

/// A value without spaces and quotes; a path by its last part.
fn short(value: &Value) -> String {
    match value {
        Value::String(text) => text.rsplit('/').next().unwrap_or(text).to_owned(),
        other => other.to_string().replace([' ', '\n', '"'], ""),
    }
}
