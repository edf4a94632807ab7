//! TOML text and `--set KEY=VALUE` to a [`Config`], keeping where each value was set.

use super::{Config, Invalid, ModelName, Preset, schema};
use crate::error::{ConfigError, Error, Fault, Origin, Result};
use serde::Deserialize;
use std::path::Path;
use toml::{Table, Value};

/// One key set by the user.
struct Assignment {
    path: Vec<String>,
    value: Value,
    /// The text behind `=` of a `--set`: a bare string, should the value as TOML not fit.
    bare: Option<String>,
    origin: Origin,
}

/// All keys set by the user, the last of a name winning.
pub(super) struct Source {
    assignments: Vec<Assignment>,
}

impl Source {
    /// Parses a file.
    pub(super) fn new(text: &str, path: &Path) -> Result<Source> {
        let syntax = |error: toml_edit::TomlError| {
            let offset = error.span().map_or(0, |span| span.start);
            let message = error.message().trim().replace('\n', ", ");
            Error::Toml { path: path.to_path_buf(), line: line_of(text, offset), message }
        };
        let document = toml_edit::Document::parse(text).map_err(syntax)?;
        let values: Table = toml::from_str(text).map_err(|error: toml::de::Error| Error::Toml {
            path: path.to_path_buf(),
            line: line_of(text, error.span().map_or(0, |span| span.start)),
            message: error.message().trim().replace('\n', ", "),
        })?;
        let mut reader = FileReader { text, file: path, assignments: Vec::new() };
        reader.table(document.as_table(), &values, &mut Vec::new());
        Ok(Source { assignments: reader.assignments })
    }

    /// Adds one `KEY=VALUE`: TOML, or a bare string.
    pub(super) fn set(&mut self, text: &str) -> Result<()> {
        let (key, raw) = split_set(text)?;
        let path: Vec<String> = key.split('.').map(|part| part.trim().to_owned()).collect();
        let value = match toml::from_str::<Table>(&format!("value = {raw}")) {
            Ok(mut table) if table.len() == 1 => table.remove("value").expect("the only key"),
            _ if raw.starts_with(['[', '{', '"', '\'']) => {
                let message = format!("`{raw}` is no TOML value");
                let error = ConfigError { origin: Origin::Set, key: key.to_owned(), fault: Fault::Type { message } };
                return Err(error.into());
            }
            _ => Value::String(raw.to_owned()),
        };
        self.assignments.push(Assignment { path, value, bare: Some(raw.to_owned()), origin: Origin::Set });
        Ok(())
    }

    /// The preset with every assignment applied, in order.
    pub(super) fn config(&self) -> Result<Config> {
        let mut config = self.preset()?.config_for(self.model()?);
        let mut table = Table::try_from(&config).expect("every value has a TOML form");
        for assignment in &self.assignments {
            config = assignment.apply(&mut table)?;
        }
        Ok(config)
    }

    fn preset(&self) -> Result<Preset> {
        let Some(assignment) = self.assignments.iter().rfind(|a| a.path == ["preset"]) else {
            return Ok(Preset::default());
        };
        let message = match assignment.value.as_str().map(Preset::from_name) {
            Some(Ok(preset)) => return Ok(preset),
            Some(Err(message)) => message,
            None => format!("expected the name of a preset, found {}", assignment.value),
        };
        Err(assignment.error(&assignment.path, Fault::Type { message }))
    }

    /// The model that the user named: it says what the others of its keys are where nobody set them.
    fn model(&self) -> Result<ModelName> {
        let Some(assignment) = self.assignments.iter().rfind(|a| a.path == ["model", "name"]) else {
            return Ok(ModelName::default());
        };
        let named = ModelName::deserialize(assignment.value.clone());
        named.map_err(|error: toml::de::Error| {
            assignment.error(&assignment.path, Fault::Type { message: plain_words(error.message()) })
        })
    }

    /// Where the user set the key, or else one of those it collides with.
    pub(super) fn origin(&self, invalid: &Invalid) -> Origin {
        let beside = invalid.beside.iter().copied();
        let keys = std::iter::once(invalid.key.as_str()).chain(beside);
        keys.filter_map(|key| self.assignments.iter().rfind(|a| a.sets(key)))
            .map(|assignment| match &assignment.origin {
                Origin::Set if assignment.path.join(".") != invalid.key => Origin::Preset,
                origin => origin.clone(),
            })
            .next()
            .unwrap_or(Origin::Preset)
    }
}

impl Assignment {
    fn sets(&self, key: &str) -> bool {
        let path = self.path.join(".");
        path == key || path.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
    }

    fn error(&self, path: &[String], fault: Fault) -> Error {
        ConfigError { origin: self.origin.clone(), key: path.join("."), fault }.into()
    }

    /// Writes the value into `table` and reads the whole anew, so that an error is this key's.
    fn apply(&self, table: &mut Table) -> Result<Config> {
        self.check_path()?;
        insert(table, &self.path, self.value.clone());
        let error = match Config::deserialize(Value::Table(table.clone())) {
            Ok(config) => return Ok(config),
            Err(error) => error,
        };
        if let (Some(bare), false) = (&self.bare, self.value.is_str()) {
            insert(table, &self.path, Value::String(bare.clone()));
            if let Ok(config) = Config::deserialize(Value::Table(table.clone())) {
                return Ok(config);
            }
        }
        Err(self.error(&self.path, Fault::Type { message: plain_words(error.message()) }))
    }

    /// Refuses a path that names no key, or a table given as a value.
    fn check_path(&self) -> Result<()> {
        for depth in 0..self.path.len() {
            let known = schema::keys(&self.path[..depth]);
            if !known.is_some_and(|keys| keys.contains(&self.path[depth].as_str())) {
                let nearest = nearest_key(&self.path);
                return Err(self.error(&self.path, Fault::Unknown { nearest }));
            }
        }
        match (schema::keys(&self.path), &self.value) {
            (Some(_), value) if !value.is_table() => {
                let message = "this is a table of keys, not a value".to_owned();
                Err(self.error(&self.path, Fault::Type { message }))
            }
            _ => Ok(()),
        }
    }
}

/// Writes a value at a path; a table is merged into what is there.
fn insert(table: &mut Table, path: &[String], value: Value) {
    let [key, rest @ ..] = path else { return };
    match (rest, value) {
        ([], Value::Table(values)) => {
            let inner = table.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                inner.extend(values);
            }
        }
        ([], value) => {
            table.insert(key.clone(), value);
        }
        (rest, value) => {
            let inner = table.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

/// `KEY=VALUE` in two.
///
/// # Errors
/// Usage, if there is no `=` or nothing before it.
pub(super) fn split_set(text: &str) -> Result<(&str, &str)> {
    match text.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key, value)),
        _ => Err(Error::Usage {
            problem: format!("--set {text} is no KEY=VALUE"),
            mend: "write it as in --set train.batch_size=600".to_owned(),
        }),
    }
}

/// Walks the spans of a parsed file beside its values.
struct FileReader<'a> {
    text: &'a str,
    file: &'a Path,
    assignments: Vec<Assignment>,
}

impl FileReader<'_> {
    fn table(&mut self, table: &dyn toml_edit::TableLike, values: &Table, path: &mut Vec<String>) {
        for (key, value) in values {
            path.push(key.clone());
            let inner = table.get(key).and_then(toml_edit::Item::as_table_like);
            match (inner, value) {
                (Some(inner), Value::Table(values)) if !values.is_empty() => self.table(inner, values, path),
                _ => {
                    let span = table.get_key_value(key).and_then(|(key, item)| key.span().or_else(|| item.span()));
                    let line = line_of(self.text, span.map_or(0, |span| span.start));
                    let origin = Origin::Line(self.file.to_path_buf(), line);
                    self.assignments.push(Assignment { path: path.clone(), value: value.clone(), bare: None, origin });
                }
            }
            path.pop();
        }
    }
}

/// The line, from 1, of a byte offset.
fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// The valid key most like the path: by its whole, or by its last part where the table is right or missing.
fn nearest_key(path: &[String]) -> Option<String> {
    let (full, last) = (path.join("."), path.last()?);
    let parent = &full[..full.len() - last.len()]; // "train." of "train.epoch"
    let likeness = |key: &String| {
        let (table, name) = key.split_at(key.rfind('.').map_or(0, |dot| dot + 1));
        let alike = match name.strip_prefix(last.as_str()) {
            Some(rest) if last.len() >= 3 && rest.starts_with('_') => 0.95, // `tau` of `tau_cache`
            _ => strsim::normalized_damerau_levenshtein(last, name),
        };
        let by_name = alike * if table == parent { 1.0 } else { 0.9 };
        let whole = if parent.is_empty() { 0.0 } else { strsim::normalized_damerau_levenshtein(&full, key) };
        by_name.max(whole)
    };
    let scored = schema::all_keys().into_iter().map(|key| (likeness(&key), key));
    let near: Vec<(f64, String)> = scored.filter(|(likeness, _)| *likeness >= 0.45).collect();
    near.into_iter().rev().max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, key)| key)
}

/// A deserializer's message without Rust's type names, and with the nearest word of an enumeration.
fn plain_words(message: &str) -> String {
    let mut words = message.trim().replace('\n', " ");
    for (rust, plain) in [
        ("expected usize", "expected a whole number, 0 or more"),
        ("expected u16", "expected a whole number, 0 or more"),
        ("expected u32", "expected a whole number, 0 or more"),
        ("expected u64", "expected a whole number, 0 or more"),
        ("expected i64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected a list in [brackets]"),
        ("unknown variant", "unknown value"),
    ] {
        words = words.replace(rust, plain);
    }
    let quoted: Vec<&str> = words.split('`').skip(1).step_by(2).collect();
    if let (true, [found, known @ ..]) = (words.starts_with("unknown value"), quoted.as_slice())
        && let Some(near) = super::nearest(found, known.iter().copied())
    {
        words = format!("{words}; did you mean \"{near}\"?");
    }
    words
}
