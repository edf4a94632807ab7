//! Arrow IPC in: our own streams are mapped; tables of other programs are read by column names, copying.

use super::builder::{About, EventBuilder, TextIds};
use super::config::DataConfig;
use super::decimal::Decimal;
use super::layout::{FeatureFields, Layout};
use crate::error::{Error, Fault, FaultKind, Result};
use crate::stream::ipc::IpcFile;
use crate::stream::{EventStream, FORMAT_KEY, TimeUnit};
use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type, SchemaRef, TimeUnit as ArrowUnit};
use arrow::error::ArrowError;
use arrow::ipc::reader::FileReader;
use std::fs::File;
use std::io::BufReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Opens a stream of ours, or reads a table.
pub(crate) fn load(config: &DataConfig, about: About, notice: &mut dyn FnMut(String)) -> Result<EventStream> {
    let path = &config.path;
    if !IpcFile::open(path)?.metadata.contains_key(FORMAT_KEY) {
        return load_table(config, about, notice);
    }
    if config.columns != super::Columns::default() || config.bipartite.is_some() || config.tick.is_some() {
        notice("the file is an event stream already: data.columns, data.bipartite and data.tick are not used".into());
    }
    EventStream::open(path)
}

fn load_table(config: &DataConfig, about: About, notice: &mut dyn FnMut(String)) -> Result<EventStream> {
    let mut table = Table::open(&config.path)?;
    let names: Vec<String> = table.schema.fields().iter().map(|f| f.name().clone()).collect();
    let mut mapping = config.columns.clone();
    if mapping.features.is_empty() && names.iter().any(|n| n == "features") {
        mapping.features.push("features".into());
    }
    let layout = Layout::find(names, &mapping).map_err(|kind| Fault::of_file(&config.path, kind))?;
    let (text, unit) = (table.text_ids(&layout, config.bipartite)?, table.unit(&layout, config.unit()?));
    let mut builder = EventBuilder::new(unit, text, layout.label.is_some());
    while let Some(batch) = table.next()? {
        let rows =
            BatchRows { path: &config.path, first: builder.sources.len() as u64 + 1, layout: &layout, batch: &batch };
        rows.push_to(&mut builder)?;
    }
    if builder.sources.is_empty() {
        return Err(Fault::of_file(&config.path, FaultKind::NoRows).into());
    }
    if !layout.ignored.is_empty() {
        notice(format!("columns not used: {}; map them with data.columns", layout.ignored.join(", ")));
    }
    let about = About {
        names_two_spaces: layout.names_two_spaces(),
        label_column: layout.label.map(|at| layout.names[at].clone()),
        feature_columns: layout.feature_names(),
        ..about
    };
    builder.finish(about, notice)
}

/// An Arrow file of another program.
pub(crate) struct Table {
    path: PathBuf,
    pub(crate) schema: SchemaRef,
    reader: FileReader<BufReader<File>>,
}

impl Table {
    pub(crate) fn open(path: &Path) -> Result<Table> {
        IpcFile::open(path)?.check_bodies()?;
        let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        let reader = guarded(path, || FileReader::try_new(BufReader::new(file), None))?;
        Ok(Table { path: path.to_owned(), schema: reader.schema(), reader })
    }

    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Table { path, reader, .. } = self;
        guarded(path, || reader.next().transpose())
    }

    fn text_ids(&self, layout: &Layout, bipartite: Option<bool>) -> Result<TextIds> {
        let text = |at: usize, role: &'static str| -> Result<bool> {
            let field = self.schema.field(at);
            match field.data_type() {
                t if t.is_integer() => Ok(false),
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..) => Ok(true),
                other => {
                    let fault = Fault::of_file(&self.path, FaultKind::ColumnType { role, found: other.to_string() });
                    Err(Fault { column: Some(field.name().clone()), ..fault }.into())
                }
            }
        };
        let (source, destination) = (text(layout.source, "src")?, text(layout.destination, "dst")?);
        let together = bipartite == Some(false) && (source || destination);
        Ok(TextIds { source: source || together, destination: destination || together })
    }

    /// The unit of the times: a timestamp column states its own.
    fn unit(&self, layout: &Layout, set: TimeUnit) -> TimeUnit {
        match self.schema.field(layout.time).data_type() {
            DataType::Timestamp(ArrowUnit::Second, _) => TimeUnit::Seconds,
            DataType::Timestamp(ArrowUnit::Millisecond, _) => TimeUnit::Milliseconds,
            DataType::Timestamp(ArrowUnit::Microsecond, _) => TimeUnit::Microseconds,
            DataType::Timestamp(ArrowUnit::Nanosecond, _) => TimeUnit::Nanoseconds,
            _ => set,
        }
    }
}

/// Runs the Arrow reader. Its checks on foreign files end in errors mostly; a panic is taken for damage too.
fn guarded<T>(path: &Path, read: impl FnOnce() -> std::result::Result<T, ArrowError>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(Error::Arrow { path: path.to_owned(), doing: "read", source }),
        Err(_) => Err(Fault::of_file(path, FaultKind::Damaged { what: "the Arrow reader gave up".into() }).into()),
    }
}

struct BatchRows<'a> {
    path: &'a Path,
    /// Row number of the batch's first row.
    first: u64,
    layout: &'a Layout,
    batch: &'a RecordBatch,
}

impl BatchRows<'_> {
    fn push_to(&self, builder: &mut EventBuilder) -> Result<()> {
        let layout = self.layout;
        self.push_times(builder)?;
        let sources = self.ids(layout.source, "src", &mut builder.source)?;
        builder.sources.extend(sources);
        let destinations = self.ids(layout.destination, "dst", &mut builder.destination)?;
        builder.destinations.extend(destinations);
        if let (Some(at), Some(labels)) = (layout.label, &mut builder.labels) {
            self.push_labels(at, labels)?;
        }
        let FeatureFields::Columns(columns) = &layout.features else {
            return Ok(());
        };
        let rows = FloatRows::of(self.batch, columns, self.path)?;
        builder.feature_dim = rows.dim;
        rows.push_to(&mut builder.features, self.path, self.first)
    }

    fn fault(&self, row: usize, at: usize, value: &str, kind: FaultKind) -> Error {
        Fault::of_file(self.path, kind).at(Some(self.first + row as u64), self.layout.name(at), value.as_bytes()).into()
    }

    fn ids(&self, at: usize, role: &'static str, interner: &mut super::intern::Interner) -> Result<Vec<u32>> {
        use super::intern::{Interner, Refused};
        let column = self.batch.column(at);
        let absent = |row| self.fault(row, at, "null", FaultKind::AbsentId);
        if let Interner::Integers(_) = interner {
            let ids = cast(column, &DataType::Int64, self.path, role)?;
            let ids = ids.as_primitive::<Int64Type>();
            return ids
                .iter()
                .enumerate()
                .map(|(r, id)| Ok(interner.push_integer(id.ok_or_else(|| absent(r))?)))
                .collect();
        }
        let ids = cast(column, &DataType::LargeUtf8, self.path, role)?;
        let ids = ids.as_string::<i64>();
        let push = |(row, id): (usize, Option<&str>)| {
            let id = id.ok_or_else(|| absent(row))?;
            interner.push(id.as_bytes()).map_err(|refused| match refused {
                Refused::Fault(kind) => self.fault(row, at, id, kind),
                Refused::NotInteger => unreachable!("the column holds text"),
            })
        };
        ids.iter().enumerate().map(push).collect()
    }

    fn push_times(&self, builder: &mut EventBuilder) -> Result<()> {
        let at = self.layout.time;
        let column = self.batch.column(at);
        let mut push = |row: usize, text: Option<String>, time: std::result::Result<Decimal, FaultKind>| {
            let text = text.unwrap_or_else(|| "null".into());
            let pushed = time.and_then(|time| builder.time.push(time));
            pushed.map_err(|kind| self.fault(row, at, &text, kind))
        };
        let kind = column.data_type();
        if kind.is_integer() || matches!(kind, DataType::Timestamp(..)) {
            let times = cast(column, &DataType::Int64, self.path, "time")?;
            let times = times.as_primitive::<Int64Type>().iter().enumerate();
            return times
                .into_iter()
                .try_for_each(|(r, t)| push(r, None, t.map(Decimal::integer).ok_or(FaultKind::AbsentTime)));
        }
        let texts: Vec<Option<String>> = match kind {
            DataType::Float32 => {
                column.as_primitive::<Float32Type>().iter().map(|t| t.map(|t| t.to_string())).collect()
            }
            DataType::Float64 => {
                column.as_primitive::<Float64Type>().iter().map(|t| t.map(|t| t.to_string())).collect()
            }
            _ => {
                let texts = cast(column, &DataType::LargeUtf8, self.path, "time")?;
                texts.as_string::<i64>().iter().map(|t| t.map(|t| t.trim().to_owned())).collect()
            }
        };
        texts.into_iter().enumerate().try_for_each(|(row, text)| {
            let present = text.as_deref().filter(|t| !super::intern::is_absent(t.as_bytes()));
            let time = present.ok_or(FaultKind::AbsentTime).and_then(|t| Decimal::parse(t.as_bytes()));
            push(row, text, time)
        })
    }

    fn push_labels(&self, at: usize, labels: &mut Vec<Option<i8>>) -> Result<()> {
        let column = cast(self.batch.column(at), &DataType::Float64, self.path, "label")?;
        for (row, label) in column.as_primitive::<Float64Type>().iter().enumerate() {
            if label.is_some_and(|l| l.fract() != 0.0 || !(-128.0..=127.0).contains(&l)) {
                return Err(self.fault(row, at, &label.unwrap_or_default().to_string(), FaultKind::LabelNotInteger));
            }
            labels.push(label.map(|l| l as i8));
        }
        Ok(())
    }
}

/// Some columns of a batch, as one row-major matrix of f32.
pub(crate) struct FloatRows {
    columns: Vec<(String, Float32Array, usize)>,
    pub(crate) dim: usize,
}

impl FloatRows {
    pub(crate) fn of(batch: &RecordBatch, columns: &[usize], path: &Path) -> Result<FloatRows> {
        let take = |&at: &usize| {
            let (values, width) = match batch.column(at).as_any().downcast_ref::<FixedSizeListArray>() {
                Some(list) if list.null_count() == 0 => {
                    let width = list.value_length() as usize;
                    (list.values().slice(list.value_offset_at(0), list.len() * width), width)
                }
                _ => (batch.column(at).clone(), 1),
            };
            let values = cast(&values, &DataType::Float32, path, "features")?;
            Ok((batch.schema_ref().field(at).name().clone(), values.as_primitive::<Float32Type>().clone(), width))
        };
        let columns = columns.iter().map(take).collect::<Result<Vec<_>>>()?;
        Ok(FloatRows { dim: columns.iter().map(|(_, _, width)| width).sum(), columns })
    }

    /// Appends all rows.
    pub(crate) fn push_to(&self, out: &mut Vec<f32>, path: &Path, first_row: u64) -> Result<()> {
        let rows = self.columns.first().map_or(0, |(_, values, width)| values.len() / (*width).max(1));
        for row in 0..rows {
            for (name, values, width) in &self.columns {
                for at in row * width..(row + 1) * width {
                    if values.is_null(at) || !values.value(at).is_finite() {
                        let value = if values.is_null(at) { "null".into() } else { values.value(at).to_string() };
                        let fault = Fault::of_file(path, FaultKind::FeatureNotFinite);
                        return Err(fault.at(Some(first_row + row as u64), name, value.as_bytes()).into());
                    }
                    out.push(values.value(at));
                }
            }
        }
        Ok(())
    }
}

/// Casts a column; a value that does not fit is an error.
pub(crate) fn cast(column: &ArrayRef, to: &DataType, path: &Path, role: &'static str) -> Result<ArrayRef> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(column, to, &options)
        .map_err(|_| Fault::of_file(path, FaultKind::ColumnType { role, found: column.data_type().to_string() }).into())
}
