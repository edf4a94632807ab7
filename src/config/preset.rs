//! Presets: the choices of a published protocol under one name.
//!
//! A preset is the starting point; every key of the file and every `--set` overrides it. Results carry the preset's name
//! and the keys that differ from it. The published protocols stand side by side in `presets.toml`.

use super::Config;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::LazyLock;
use toml::{Table, Value};

/// A named set of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// Exact and safe defaults: strict causality, pooled metrics, fixed time encoder, negatives that avoid the positive.
    #[default]
    Tidemill,
    /// The choices of the TGN repository (Rossi et al., arXiv:2006.10637).
    Tgn2020,
    /// The choices of PyTorch Geometric's TGN example: attention with a skip, no query time, metrics averaged over batches.
    Pyg,
    /// The choices of TGL (Zhou et al., arXiv:2203.14883): batches of 600, negatives among all nodes.
    Tgl2022,
    /// The choices of DyGLib (Yu et al., arXiv:2303.13047): mean loss, 172 wide with a time code of 100.
    Dyglib2023,
    /// The choices of the Temporal Graph Benchmark (arXiv:2307.01026), version 2 of its sets: mean reciprocal rank among 999.
    TgbV2,
}

const NAMES: [(&str, Preset); 6] = [
    ("tidemill", Preset::Tidemill),
    ("tgn-2020", Preset::Tgn2020),
    ("pyg", Preset::Pyg),
    ("tgl-2022", Preset::Tgl2022),
    ("dyglib-2023", Preset::Dyglib2023),
    ("tgb-v2", Preset::TgbV2),
];

impl Preset {
    /// The name in files and results.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, preset)| *preset == self).expect("every preset has a name").0
    }

    /// The preset of a name, or why there is none.
    ///
    /// # Errors
    /// A sentence for the user: the name is unknown.
    pub fn from_name(name: &str) -> Result<Preset, String> {
        if let Some((_, preset)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Ok(*preset);
        }
        let names: Vec<&str> = NAMES.iter().map(|(known, _)| *known).collect();
        let near = super::nearest(name, names.iter().copied()).unwrap_or("tidemill");
        Err(format!("there is no preset \"{name}\"; did you mean \"{near}\"? ({})", names.join(", ")))
    }

    /// Every value of the preset.
    pub fn config(self) -> Config {
        let config = match self {
            Preset::Tidemill => Config::default(),
            _ => Config::deserialize(Value::Table(published(self.name())))
                .expect("presets.toml holds keys and values of a file"),
        };
        Config { preset: self, ..config }
    }
}

/// The published protocols' values, a column each.
static PUBLISHED: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(include_str!("presets.toml")).expect("presets.toml is TOML"));

/// The values of a published protocol, as a user would write them in a file.
fn published(name: &str) -> Table {
    let names = PUBLISHED["presets"].as_array().expect("the columns' names");
    let column = names.iter().position(|preset| preset.as_str() == Some(name)).expect("every protocol has a column");
    let of_column = |(key, row): (&String, &Value)| (key.clone(), row[column].clone());
    let table = |rows: &Table| Value::Table(rows.iter().map(of_column).collect());
    PUBLISHED.iter().filter_map(|(name, rows)| Some((name.clone(), table(rows.as_table()?)))).collect()
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Preset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Preset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Preset, D::Error> {
        Preset::from_name(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
