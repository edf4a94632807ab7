//! Separated values with a header: comma, tab or semicolon, quoted or not, plain or gzip.
//!
//! Rows are read as bytes into one reused record; no field becomes a `String`. Ids are taken as integers until one is
//! none; then the file is read again with that column as text.

use super::builder::{About, EventBuilder, TextIds};
use super::config::{DataConfig, Format};
use super::intern::{Refused, is_absent};
use super::jodie;
use super::layout::{FeatureFields, Layout};
use super::source::{Content, Source, open, separator};
use crate::error::{Error, Fault, FaultKind, Result};
use crate::stream::EventStream;
use csv::{ByteRecord, ReaderBuilder};
use std::path::Path;

/// Reads a table into a stream.
pub(crate) fn load(
    source: Source,
    config: &DataConfig,
    about: About,
    notice: &mut dyn FnMut(String),
) -> Result<EventStream> {
    let mut text = TextIds::default();
    let mut source = Some(source);
    loop {
        let bytes = match source.take() {
            Some(source) => source,
            None => match open(&config.path)? {
                Content::Text(source) => source,
                Content::Arrow => return Err(Error::damaged(&config.path, "the file changed while it was read")),
            },
        };
        match Table::start(bytes, config)?.read(config, text)? {
            Pass::Done(builder, layout) => return finish(builder, &layout, about, notice),
            Pass::Again(wanted) => text = together(text, wanted, config.bipartite == Some(false)),
        }
    }
}

/// The text columns of the next pass: one shared space has one kind of ids.
fn together(known: TextIds, wanted: TextIds, shared: bool) -> TextIds {
    let any = wanted.source || wanted.destination;
    TextIds {
        source: known.source || wanted.source || shared && any,
        destination: known.destination || wanted.destination || shared && any,
    }
}

enum Pass {
    Done(Box<EventBuilder>, Layout),
    /// An id is no integer: read again with these columns as text.
    Again(TextIds),
}

/// A fault of the row at hand.
enum RowFault {
    Field(usize, FaultKind),
    Row(FaultKind),
    Again(TextIds),
}

struct Table<'a> {
    path: &'a Path,
    reader: csv::Reader<Box<dyn std::io::Read>>,
    compressed: bool,
    header: ByteRecord,
    record: ByteRecord,
    row: u64,
}

impl<'a> Table<'a> {
    fn start(source: Source, config: &'a DataConfig) -> Result<Table<'a>> {
        let compressed = source.is_compressed();
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(separator(&source.head))
            .buffer_capacity(256 * 1024)
            .from_reader(source.reader);
        let (header, record) = (ByteRecord::new(), ByteRecord::new());
        let mut table = Table { path: &config.path, reader, compressed, header, record, row: 0 };
        if !table.advance()? {
            return Err(Fault::of_file(table.path, FaultKind::Empty).into());
        }
        table.row = 0;
        std::mem::swap(&mut table.header, &mut table.record);
        Ok(table)
    }

    /// Reads the next record; false at the end.
    fn advance(&mut self) -> Result<bool> {
        self.row += 1;
        self.reader.read_byte_record(&mut self.record).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(error) => Source::read_fault(self.compressed, self.path, error),
            other => Fault::of_file(self.path, FaultKind::Damaged { what: format!("{other:?}") }).into(),
        })
    }

    fn read(mut self, config: &DataConfig, text: TextIds) -> Result<Pass> {
        let names = self.names()?;
        let more = self.advance()?;
        let layout = self.layout(names, config)?;
        if !more {
            return Err(Fault::of_file(self.path, FaultKind::NoRows).into());
        }
        let mut rows =
            Rows::new(&layout, self.record.len(), EventBuilder::new(config.unit()?, text, layout.label.is_some()));
        loop {
            match rows.push(&self.record) {
                Ok(()) => {}
                Err(_) if self.is_header() => return Err(self.fault(&layout, RowFault::Row(FaultKind::HeaderInside))),
                Err(RowFault::Again(text)) => return Ok(Pass::Again(text)),
                Err(fault) => return Err(self.fault(&layout, fault)),
            }
            if !self.advance()? {
                break;
            }
        }
        let builder = Box::new(rows.builder);
        if config.bipartite.is_none() && !two_spaces(&layout) && builder.is_mixed() {
            return Ok(Pass::Again(TextIds { source: true, destination: true }));
        }
        Ok(Pass::Done(builder, layout))
    }

    fn names(&self) -> Result<Vec<String>> {
        let fields = || self.header.iter().map(<[u8]>::trim_ascii);
        let number = |f: &[u8]| std::str::from_utf8(f).is_ok_and(|t| t.parse::<f64>().is_ok());
        if fields().all(number) {
            return Err(Fault::of_file(self.path, FaultKind::NoHeader).into());
        }
        Ok(fields().map(|f| String::from_utf8_lossy(f).into_owned()).collect())
    }

    fn layout(&self, names: Vec<String>, config: &DataConfig) -> Result<Layout> {
        let jodie = match config.format {
            Format::Jodie => names.len() >= 4,
            Format::Auto => jodie::is_header(&names, self.record.len()),
            Format::Csv | Format::Arrow => false,
        };
        if jodie {
            return Ok(jodie::layout(names));
        }
        Layout::find(names, &config.columns).map_err(|kind| Fault::of_file(self.path, kind).into())
    }

    fn is_header(&self) -> bool {
        self.record.iter().map(<[u8]>::trim_ascii).eq(self.header.iter().map(<[u8]>::trim_ascii))
    }

    fn fault(&self, layout: &Layout, fault: RowFault) -> Error {
        match fault {
            RowFault::Field(at, kind) => {
                let value = self.record.get(at).unwrap_or_default();
                Fault::of_file(self.path, kind).at(Some(self.row), layout.name(at), value).into()
            }
            RowFault::Row(kind) => Fault { row: Some(self.row), ..Fault::of_file(self.path, kind) }.into(),
            RowFault::Again(_) => unreachable!("handled by the reader of rows"),
        }
    }
}

/// Puts rows into the builder, each whole or not at all (ids that only a dropped row has stay known).
struct Rows<'a> {
    layout: &'a Layout,
    fields: usize,
    builder: EventBuilder,
}

impl<'a> Rows<'a> {
    fn new(layout: &'a Layout, first_row_fields: usize, mut builder: EventBuilder) -> Rows<'a> {
        let fields = match &layout.features {
            FeatureFields::Columns(columns) => {
                builder.feature_dim = columns.len();
                layout.names.len()
            }
            FeatureFields::From(start) => {
                builder.feature_dim = first_row_fields.saturating_sub(*start);
                first_row_fields.max(*start)
            }
        };
        Rows { layout, fields, builder }
    }

    fn push(&mut self, record: &ByteRecord) -> std::result::Result<(), RowFault> {
        if record.len() != self.fields {
            return Err(RowFault::Row(FaultKind::Ragged { expected: self.fields, found: record.len() }));
        }
        let layout = self.layout;
        let time = record[layout.time].trim_ascii();
        if is_absent(time) {
            return Err(RowFault::Field(layout.time, FaultKind::AbsentTime));
        }
        self.builder.time.push_text(time).map_err(|kind| RowFault::Field(layout.time, kind))?;
        let pushed = self.push_rest(record);
        if pushed.is_err() {
            self.builder.time.pop();
        }
        pushed
    }

    fn push_rest(&mut self, record: &ByteRecord) -> std::result::Result<(), RowFault> {
        let (layout, builder) = (self.layout, &mut self.builder);
        let source = builder.source.push(record[layout.source].trim_ascii());
        let source = source.map_err(|r| refused(r, layout.source, TextIds { source: true, destination: false }))?;
        let destination = builder.destination.push(record[layout.destination].trim_ascii());
        let destination =
            destination.map_err(|r| refused(r, layout.destination, TextIds { source: false, destination: true }))?;
        let label = match layout.label {
            Some(at) => parse_label(&record[at]).map_err(|kind| RowFault::Field(at, kind))?,
            None => None,
        };
        self.push_features(record)?;
        let builder = &mut self.builder;
        builder.sources.push(source);
        builder.destinations.push(destination);
        if let Some(labels) = &mut builder.labels {
            labels.push(label);
        }
        Ok(())
    }

    fn push_features(&mut self, record: &ByteRecord) -> std::result::Result<(), RowFault> {
        let before = self.builder.features.len();
        let features = &mut self.builder.features;
        let mut push = |at: usize| match parse_feature(&record[at]) {
            Some(value) => {
                features.push(value);
                Ok(())
            }
            None => Err(RowFault::Field(at, FaultKind::FeatureNotFinite)),
        };
        let pushed = match &self.layout.features {
            FeatureFields::Columns(columns) => columns.iter().copied().try_for_each(&mut push),
            FeatureFields::From(start) => (*start..record.len()).try_for_each(&mut push),
        };
        if pushed.is_err() {
            self.builder.features.truncate(before);
        }
        pushed
    }
}

fn refused(refused: Refused, at: usize, text: TextIds) -> RowFault {
    match refused {
        Refused::NotInteger => RowFault::Again(text),
        Refused::Fault(kind) => RowFault::Field(at, kind),
    }
}

fn parse_feature(field: &[u8]) -> Option<f32> {
    let value: f32 = std::str::from_utf8(field.trim_ascii()).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

/// An integer label, written `1` or `1.0`; an empty field is no label.
fn parse_label(field: &[u8]) -> std::result::Result<Option<i8>, FaultKind> {
    let field = field.trim_ascii();
    if field.is_empty() {
        return Ok(None);
    }
    let text = std::str::from_utf8(field).map_err(|_| FaultKind::LabelNotInteger)?;
    if let Ok(label) = text.parse() {
        return Ok(Some(label));
    }
    let number: f64 = text.parse().map_err(|_| FaultKind::LabelNotInteger)?;
    let whole = number.fract() == 0.0 && (-128.0..=127.0).contains(&number);
    if whole { Ok(Some(number as i8)) } else { Err(FaultKind::LabelNotInteger) }
}

/// Whether the columns' names say that sources and destinations are different things.
fn two_spaces(layout: &Layout) -> bool {
    matches!(layout.features, FeatureFields::From(_)) || layout.names_two_spaces()
}

fn finish(
    builder: Box<EventBuilder>,
    layout: &Layout,
    about: About,
    notice: &mut dyn FnMut(String),
) -> Result<EventStream> {
    if !layout.ignored.is_empty() {
        let ignored: Vec<&str> = layout.ignored.iter().take(8).map(String::as_str).collect();
        let more = if layout.ignored.len() > ignored.len() { ", ..." } else { "" };
        notice(format!("columns not used: {}{more}; map them with data.columns.features or label", ignored.join(", ")));
    }
    let about = About {
        names_two_spaces: two_spaces(layout),
        label_column: layout.label.map(|at| layout.names[at].clone()),
        feature_columns: layout.feature_names(),
        ..about
    };
    builder.finish(about, notice)
}
