//! Separated values with a header: comma, tab or semicolon, quoted or not, plain or compressed.
//!
//! Rows are read as bytes into one reused record; no field becomes a `String`. Ids are taken as integers until one is
//! none; then the file is read again with that column as text.

use super::builder::{About, EventBuilder, TextIds};
use super::config::{DataConfig, Format};
use super::intern::{Refused, is_absent};
use super::jodie;
use super::layout::{FeatureFields, Layout};
use super::npy_rows::NpyRows;
use super::session::{Faults, Session};
use super::source::{Content, Position, Source, open, separator};
use crate::error::{Error, Fault, FaultKind, Result};
use crate::stream::EventStream;
use csv::{ByteRecord, ReaderBuilder};
use std::cell::Cell;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Rows between two reports of progress.
const REPORT_EVERY: u64 = 1 << 16;
/// A row that is longer is no row.
const LONGEST_ROW: usize = 64 << 20;

/// Reads a table into a stream.
pub(crate) fn load(
    source: Source,
    config: &DataConfig,
    about: About,
    session: &mut Session<'_>,
) -> Result<EventStream> {
    let mut text = TextIds::default();
    let mut source = Some(source);
    loop {
        let bytes = match source.take() {
            Some(source) => source,
            None => match open(&config.path)? {
                Content::Text(source) => source,
                _ => return Err(Error::damaged(&config.path, "the file changed while it was read")),
            },
        };
        match Table::start(bytes, config)?.read(config, text, session)? {
            Pass::Done(builder, layout) => return finish(builder, &layout, about, session.notice),
            Pass::Again(wanted) => text = together(text, wanted, config.bipartite == Some(false)),
        }
        session.faults.restart();
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

/// Why a row was not taken.
enum RowFault {
    Field(usize, FaultKind),
    Row(FaultKind),
    Again(TextIds),
    /// Not the row's fault.
    Stop(Error),
}

/// A reader that refuses a row without end, before it fills the memory.
struct Bounded {
    inner: Box<dyn Read>,
    since_row: Rc<Cell<usize>>,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.since_row.get() > LONGEST_ROW {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let count = self.inner.read(buffer)?;
        self.since_row.set(self.since_row.get() + count);
        Ok(count)
    }
}

struct Table<'a> {
    path: &'a Path,
    reader: csv::Reader<Bounded>,
    since_row: Rc<Cell<usize>>,
    position: Position,
    compressed: bool,
    header: ByteRecord,
    record: ByteRecord,
    row: u64,
}

impl<'a> Table<'a> {
    fn start(source: Source, config: &'a DataConfig) -> Result<Table<'a>> {
        let compressed = source.is_compressed();
        let since_row = Rc::new(Cell::new(0));
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(separator(&source.head))
            .buffer_capacity(256 * 1024)
            .from_reader(Bounded { inner: source.reader, since_row: since_row.clone() });
        let (header, record) = (ByteRecord::new(), ByteRecord::new());
        let position = source.position;
        let mut table = Table { path: &config.path, reader, since_row, position, compressed, header, record, row: 0 };
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
        self.since_row.set(0);
        self.reader.read_byte_record(&mut self.record).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(error) => self.read_fault(error),
            other => Fault::of_file(self.path, FaultKind::Damaged { what: format!("{other:?}") }).into(),
        })
    }

    fn read_fault(&self, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::FileTooLarge && error.raw_os_error().is_none() {
            let kind = FaultKind::EndlessRow { mib: LONGEST_ROW >> 20 };
            return Fault { row: Some(self.row), ..Fault::of_file(self.path, kind) }.into();
        }
        Source::read_fault(self.compressed, self.path, error)
    }

    fn read(mut self, config: &DataConfig, text: TextIds, session: &mut Session<'_>) -> Result<Pass> {
        let names = self.names()?;
        let more = self.advance()?;
        let (layout, features) = self.layout(names, config)?;
        if !more {
            return Err(Fault::of_file(self.path, FaultKind::NoRows).into());
        }
        let builder = EventBuilder::new(config.unit()?, text, layout.label.is_some(), &session.scratch);
        let mut rows = Rows::new(&layout, self.record.len(), builder, features);
        if let Some(again) = self.read_rows(&mut rows, session)? {
            return Ok(Pass::Again(again));
        }
        let builder = Box::new(rows.builder);
        if builder.len() == 0 && matches!(session.faults, Faults::EndAtFirst) {
            return Err(Fault::of_file(self.path, FaultKind::NoRows).into());
        }
        if config.bipartite.is_none() && !two_spaces(&layout) && builder.is_mixed() {
            return Ok(Pass::Again(TextIds { source: true, destination: true }));
        }
        Ok(Pass::Done(builder, layout))
    }

    /// Puts all rows into the builder, or says which columns must be read as text.
    fn read_rows(&mut self, rows: &mut Rows<'_>, session: &mut Session<'_>) -> Result<Option<TextIds>> {
        loop {
            if let Err(fault) = rows.push(&self.record, self.row) {
                match fault {
                    RowFault::Stop(error) => return Err(error),
                    RowFault::Again(text) if !self.is_header() => return Ok(Some(text)),
                    fault => self.found(rows.layout, fault, session)?,
                }
            }
            if self.row.is_multiple_of(REPORT_EVERY) {
                (session.progress)(self.position.read(), self.position.size);
            }
            match (self.advance(), &session.faults) {
                (Ok(true), _) => {}
                (Ok(false), _) => return Ok(None),
                (Err(Error::Fault(fault)), Faults::Count(_)) => {
                    session.faults.found(*fault)?;
                    return Ok(None);
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// Files a row's fault, unless the file is damaged and the row's contents mean nothing.
    fn found(&mut self, layout: &Layout, fault: RowFault, session: &mut Session<'_>) -> Result<()> {
        let mut fault = if self.is_header() {
            self.fault(layout, RowFault::Row(FaultKind::HeaderInside))
        } else {
            self.fault(layout, fault)
        };
        let spans_lines = self.record.iter().find(|field| field.contains(&b'\n'));
        if let (FaultKind::Ragged { .. }, Some(field)) = (&fault.kind, spans_lines) {
            let column = layout.name(self.record.iter().position(|f| f == field).unwrap_or_default());
            fault = Fault::of_file(self.path, FaultKind::OpenQuote).at(Some(self.row), column, field);
        }
        if self.compressed && matches!(session.faults, Faults::EndAtFirst) {
            // read to the end: only then is it known that the bytes were what was packed
            io::copy(&mut self.reader.get_mut().inner, &mut io::sink()).map_err(|e| self.read_fault(e))?;
        }
        session.faults.found(fault)
    }

    fn names(&self) -> Result<Vec<String>> {
        let fields = || self.header.iter().map(<[u8]>::trim_ascii);
        let number = |f: &[u8]| std::str::from_utf8(f).is_ok_and(|t| t.parse::<f64>().is_ok());
        if fields().all(number) {
            return Err(Fault::of_file(self.path, FaultKind::NoHeader).into());
        }
        if fields().any(|f| f.contains(&b'\n')) {
            return Err(Fault::of_file(self.path, FaultKind::OpenQuote).at(None, "the header", &self.header[0]).into());
        }
        Ok(fields().map(|f| String::from_utf8_lossy(f).into_owned()).collect())
    }

    /// The columns' roles, and the features' file if there is one beside.
    fn layout(&self, names: Vec<String>, config: &DataConfig) -> Result<(Layout, Option<NpyRows>)> {
        let jodie = match config.format {
            Format::Jodie => names.len() >= 4,
            Format::Auto => jodie::is_header(&names, self.record.len()),
            _ => false,
        };
        let of_file = |kind| Error::from(Fault::of_file(self.path, kind));
        if jodie {
            return Ok((jodie::layout(names, &config.columns).map_err(of_file)?, None));
        }
        let ml = Layout::is_ml(&names) && matches!(config.format, Format::Auto | Format::Ml);
        let beside = features_beside(self.path);
        let layout = Layout::find(names, &config.columns).map_err(of_file)?;
        if !ml || !config.columns.features.is_empty() || !(beside.exists() || config.format == Format::Ml) {
            return Ok((layout, None));
        }
        Ok((layout.with_feature_rows(), Some(NpyRows::open(&beside)?)))
    }

    fn is_header(&self) -> bool {
        self.record.iter().map(<[u8]>::trim_ascii).eq(self.header.iter().map(<[u8]>::trim_ascii))
    }

    fn fault(&self, layout: &Layout, fault: RowFault) -> Fault {
        match fault {
            RowFault::Field(at, kind) => {
                let value = self.record.get(at).unwrap_or_default();
                Fault::of_file(self.path, kind).at(Some(self.row), layout.name(at), value)
            }
            RowFault::Row(kind) => Fault { row: Some(self.row), ..Fault::of_file(self.path, kind) },
            RowFault::Again(_) | RowFault::Stop(_) => unreachable!("handled by the reader of rows"),
        }
    }
}

/// `ml_x.npy` beside `ml_x.csv`, compressed or not.
fn features_beside(path: &Path) -> PathBuf {
    path.with_file_name(format!("{}.npy", super::stem(path)))
}

/// `ml_x_node.npy` beside `ml_x.csv`, if the file is of that kind and there is one.
pub(crate) fn node_features_beside(path: &Path) -> Option<PathBuf> {
    let beside = path.with_file_name(format!("{}_node.npy", super::stem(path)));
    (features_beside(path).exists() && beside.exists()).then_some(beside)
}

/// Puts rows into the builder, each whole or not at all.
struct Rows<'a> {
    layout: &'a Layout,
    fields: usize,
    builder: EventBuilder,
    npy: Option<NpyRows>,
}

impl<'a> Rows<'a> {
    fn new(layout: &'a Layout, first_row_fields: usize, mut builder: EventBuilder, npy: Option<NpyRows>) -> Rows<'a> {
        let (dim, fields) = match &layout.features {
            FeatureFields::Columns(columns) => (columns.len(), layout.names.len()),
            FeatureFields::Row(_) => (npy.as_ref().map_or(0, |n| n.dim), layout.names.len()),
            FeatureFields::From(start) => (first_row_fields.saturating_sub(*start), first_row_fields.max(*start)),
        };
        builder.features.dim = dim;
        Rows { layout, fields, builder, npy }
    }

    #[inline]
    fn push(&mut self, record: &ByteRecord, row: u64) -> std::result::Result<(), RowFault> {
        if record.len() != self.fields {
            return Err(RowFault::Row(FaultKind::Ragged { expected: self.fields, found: record.len() }));
        }
        let pushed = self.push_fields(record, row);
        if pushed.is_err() {
            self.builder.drop_event();
        }
        pushed
    }

    fn push_fields(&mut self, record: &ByteRecord, row: u64) -> std::result::Result<(), RowFault> {
        let (layout, builder) = (self.layout, &mut self.builder);
        let time = record[layout.time].trim_ascii();
        if is_absent(time) {
            return Err(RowFault::Field(layout.time, FaultKind::AbsentTime));
        }
        builder.time.push_text(time).map_err(|kind| RowFault::Field(layout.time, kind))?;
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
        self.builder.end_event(row, source, destination, label).map_err(RowFault::Stop)
    }

    fn push_features(&mut self, record: &ByteRecord) -> std::result::Result<(), RowFault> {
        let features = &mut self.builder.features;
        let mut push = |at: usize| match parse_feature(&record[at]) {
            Some(value) => {
                features.push(value);
                Ok(())
            }
            None => Err(RowFault::Field(at, FaultKind::FeatureNotFinite)),
        };
        match &self.layout.features {
            FeatureFields::Columns(columns) => columns.iter().copied().try_for_each(&mut push),
            FeatureFields::From(start) => (*start..record.len()).try_for_each(&mut push),
            FeatureFields::Row(at) => self.push_npy_row(*at, &record[*at]),
        }
    }

    fn push_npy_row(&mut self, at: usize, field: &[u8]) -> std::result::Result<(), RowFault> {
        let Some(npy) = &mut self.npy else { return Ok(()) };
        let number = std::str::from_utf8(field.trim_ascii()).ok().and_then(|t| t.parse::<f64>().ok());
        let row = number.filter(|n| n.fract() == 0.0 && *n >= 0.0 && *n < npy.rows as f64);
        let row = row.ok_or(RowFault::Field(at, FaultKind::FeatureRow { rows: npy.rows }))?;
        let values = npy.row(row as u64).map_err(RowFault::Stop)?;
        if values.iter().any(|x| !x.is_finite()) {
            return Err(RowFault::Field(at, FaultKind::FeatureNotFinite));
        }
        self.builder.features.extend(values);
        Ok(())
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
