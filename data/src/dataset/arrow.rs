//! Arrow IPC and Parquet in: our own streams are mapped; tables of other programs are read by column names, copying.

use super::builder::{About, EventBuilder, TextIds};
use super::config::DataConfig;
use super::decimal::Decimal;
use super::intern::{Interner, Refused, is_absent};
use super::layout::{FeatureFields, Layout};
use super::session::{Faults, Session};
use super::table::{FloatRows, Table, cast};
use crate::error::{Error, Fault, FaultKind, Result};
use crate::stream::ipc::IpcFile;
use crate::stream::{EventStream, FORMAT_KEY, TimeUnit};
use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, LargeStringArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type, TimeUnit as ArrowUnit, UInt64Type};
use std::path::Path;

/// Opens a stream of ours, or reads a table.
pub(crate) fn load(config: &DataConfig, about: About, session: &mut Session<'_>) -> Result<EventStream> {
    let path = &config.path;
    if !IpcFile::open(path)?.metadata.contains_key(FORMAT_KEY) {
        return load_table(config, about, session, Table::open);
    }
    let stream = match session.faults {
        Faults::EndAtFirst => EventStream::open(path)?,
        Faults::Count(_) => EventStream::open_verified(path)?,
    };
    refuse_settings(config, &stream)?;
    Ok(stream)
}

/// Keys that say how to read a source can not change what was read from it already.
fn refuse_settings(config: &DataConfig, stream: &EventStream) -> Result<()> {
    let mend =
        |what: &str| format!("the file is an event stream already, {what}; drop the key or convert the source with it");
    if let Some(tick) = &config.tick {
        return Err(Error::setting("data.tick", tick, mend(&format!("with a tick of {}", stream.tick()))));
    }
    if config.columns != super::Columns::default() {
        return Err(Error::setting("data.columns", "{..}", mend("its columns are mapped")));
    }
    match config.bipartite {
        Some(set) if set != stream.meta().bipartite => {
            let spaces = if stream.meta().bipartite { "with two id spaces" } else { "with one id space" };
            Err(Error::setting("data.bipartite", set, mend(spaces)))
        }
        _ => Ok(()),
    }
}

/// Reads a table that `open` opens.
pub(crate) fn load_table(
    config: &DataConfig,
    about: About,
    session: &mut Session<'_>,
    open: impl Fn(&Path) -> Result<Table>,
) -> Result<EventStream> {
    let mut text = TextIds::default();
    loop {
        let mut table = open(&config.path)?;
        let mut mapping = config.columns.clone();
        if mapping.features.is_empty() && table.names().iter().any(|n| n == "features") {
            mapping.features.push("features".into());
        }
        let layout = Layout::find(table.names(), &mapping).map_err(|kind| Fault::of_file(&config.path, kind))?;
        let known = text_ids(&table, config, &layout)?;
        text = TextIds { source: text.source || known.source, destination: text.destination || known.destination };
        let unit = time_unit(&table, config, &layout)?;
        let mut builder = EventBuilder::new(unit, text, layout.label.is_some(), &session.scratch);
        match read_batches(&mut table, config, &layout, &mut builder, session)? {
            Some(wanted) => {
                let together = config.bipartite == Some(false);
                text.source |= wanted.source || together;
                text.destination |= wanted.destination || together;
                session.faults.restart();
            }
            None => return finish(builder, layout, about, config, session),
        }
    }
}

fn finish(
    builder: EventBuilder,
    layout: Layout,
    about: About,
    config: &DataConfig,
    session: &mut Session<'_>,
) -> Result<EventStream> {
    if builder.len() == 0 && matches!(session.faults, Faults::EndAtFirst) {
        return Err(Fault::of_file(&config.path, FaultKind::NoRows).into());
    }
    if !layout.ignored.is_empty() {
        (session.notice)(format!("columns not used: {}; map them with data.columns", layout.ignored.join(", ")));
    }
    let about = About {
        names_two_spaces: layout.names_two_spaces(),
        label_column: layout.label.map(|at| layout.names[at].clone()),
        feature_columns: layout.feature_names(),
        ..about
    };
    builder.finish(about, session.notice)
}

/// Puts all batches into the builder, or says which id columns must be text.
fn read_batches(
    table: &mut Table,
    config: &DataConfig,
    layout: &Layout,
    builder: &mut EventBuilder,
    session: &mut Session<'_>,
) -> Result<Option<TextIds>> {
    let mut first = 1u64;
    loop {
        let batch = match table.next() {
            Ok(Some(batch)) => batch,
            Ok(None) => return Ok(None),
            Err(Error::Fault(fault)) => {
                session.faults.found(*fault)?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let rows = batch.num_rows() as u64;
        let columns = match BatchColumns::of(&config.path, first, layout, &batch, builder) {
            Ok(Ok(columns)) => columns,
            Ok(Err(wanted)) => return Ok(Some(wanted)),
            Err(error) => return Err(error),
        };
        columns.push_to(builder, session)?;
        first += rows;
        if let Some(all) = table.rows {
            (session.progress)(first - 1, all);
        }
    }
}

fn text_ids(table: &Table, config: &DataConfig, layout: &Layout) -> Result<TextIds> {
    let text = |at: usize, role: &'static str| -> Result<bool> {
        let field = table.schema.field(at);
        match field.data_type() {
            t if t.is_integer() || matches!(t, DataType::Float32 | DataType::Float64) => Ok(false),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..) => Ok(true),
            other => {
                let fault = Fault::of_file(&config.path, FaultKind::ColumnType { role, found: other.to_string() });
                Err(Fault { column: Some(field.name().clone()), ..fault }.into())
            }
        }
    };
    let (source, destination) = (text(layout.source, "src")?, text(layout.destination, "dst")?);
    let together = config.bipartite == Some(false) && (source || destination);
    Ok(TextIds { source: source || together, destination: destination || together })
}

/// The unit of the times: a column of timestamps or dates states its own.
fn time_unit(table: &Table, config: &DataConfig, layout: &Layout) -> Result<TimeUnit> {
    let field = table.schema.field(layout.time);
    let own = match field.data_type() {
        DataType::Timestamp(ArrowUnit::Second, _) | DataType::Date32 => TimeUnit::Seconds,
        DataType::Timestamp(ArrowUnit::Millisecond, _) | DataType::Date64 => TimeUnit::Milliseconds,
        DataType::Timestamp(ArrowUnit::Microsecond, _) => TimeUnit::Microseconds,
        DataType::Timestamp(ArrowUnit::Nanosecond, _) => TimeUnit::Nanoseconds,
        _ => return config.unit(),
    };
    match &config.tick {
        Some(tick) if config.unit()? != own => {
            let mend = format!("column `{}` states its own unit ({}); drop the key", field.name(), field.data_type());
            Err(Error::setting("data.tick", tick, mend))
        }
        _ => Ok(own),
    }
}

enum Ids {
    Integers(Int64Array),
    Floats(Float64Array),
    Texts(LargeStringArray),
}

enum Times {
    Integers(Int64Array),
    Texts(Vec<Option<String>>),
}

/// The columns of a batch in the types that rows are read from.
struct BatchColumns<'a> {
    path: &'a Path,
    /// Row number of the batch's first row.
    first: u64,
    layout: &'a Layout,
    rows: usize,
    time: Times,
    source: Ids,
    destination: Ids,
    label: Option<Float64Array>,
    features: Option<FloatRows>,
}

impl<'a> BatchColumns<'a> {
    /// The columns, or which ids are too large for integers.
    fn of(
        path: &'a Path,
        first: u64,
        layout: &'a Layout,
        batch: &RecordBatch,
        builder: &mut EventBuilder,
    ) -> Result<std::result::Result<BatchColumns<'a>, TextIds>> {
        let named = |at: usize| (batch.column(at), layout.name(at));
        let (source, destination) = (named(layout.source), named(layout.destination));
        let (Some(source), Some(destination)) =
            (ids(source, path, "src", &builder.source)?, ids(destination, path, "dst", &builder.destination)?)
        else {
            return Ok(Err(TextIds { source: too_large(source.0), destination: too_large(destination.0) }));
        };
        let (time, time_name) = named(layout.time);
        let label = match layout.label.map(named) {
            Some((column, name)) => {
                Some(cast(column, &DataType::Float64, path, name, "label")?.as_primitive::<Float64Type>().clone())
            }
            None => None,
        };
        let features = match &layout.features {
            FeatureFields::Columns(columns) if !columns.is_empty() => Some(FloatRows::of(batch, columns, path)?),
            _ => None,
        };
        let columns = BatchColumns {
            path,
            first,
            layout,
            rows: batch.num_rows(),
            time: times(time, path, time_name)?,
            source,
            destination,
            label,
            features,
        };
        Ok(Ok(columns))
    }

    fn push_to(&self, builder: &mut EventBuilder, session: &mut Session<'_>) -> Result<()> {
        if let Some(features) = &self.features
            && self.rows > 0
        {
            if builder.len() == 0 {
                builder.features.dim = features.dim;
            } else if builder.features.dim != features.dim {
                let kind = FaultKind::Ragged { expected: builder.features.dim, found: features.dim };
                return Err(Fault { row: Some(self.first), ..Fault::of_file(self.path, kind) }.into());
            }
        }
        for row in 0..self.rows {
            match self.push_row(row, builder) {
                Ok((source, destination, label)) => {
                    builder.end_event(self.first + row as u64, source, destination, label)?;
                }
                Err(fault) => {
                    builder.drop_event();
                    session.faults.found(*fault)?;
                }
            }
        }
        Ok(())
    }

    fn push_row(
        &self,
        row: usize,
        builder: &mut EventBuilder,
    ) -> std::result::Result<(u32, u32, Option<i8>), Box<Fault>> {
        self.push_time(row, builder)?;
        let source = self.id(&self.source, self.layout.source, row, &mut builder.source)?;
        let destination = self.id(&self.destination, self.layout.destination, row, &mut builder.destination)?;
        let label = self.label(row)?;
        if let Some(features) = &self.features {
            let pushed = features.row(row, |value| builder.features.push(value));
            pushed.map_err(|(name, value)| {
                let fault = Fault::of_file(self.path, FaultKind::FeatureNotFinite);
                Box::new(fault.at(Some(self.first + row as u64), name, value.as_bytes()))
            })?;
        }
        Ok((source, destination, label))
    }

    fn fault(&self, row: usize, at: usize, value: &str, kind: FaultKind) -> Box<Fault> {
        let fault = Fault::of_file(self.path, kind);
        Box::new(fault.at(Some(self.first + row as u64), self.layout.name(at), value.as_bytes()))
    }

    fn id(&self, ids: &Ids, at: usize, row: usize, interner: &mut Interner) -> std::result::Result<u32, Box<Fault>> {
        let absent = || self.fault(row, at, "null", FaultKind::AbsentId);
        match ids {
            Ids::Integers(ids) => ids.is_valid(row).then(|| interner.push_integer(ids.value(row))).ok_or_else(absent),
            Ids::Floats(ids) if ids.is_null(row) || ids.value(row).is_nan() => Err(absent()),
            Ids::Floats(ids) => match ids.value(row) {
                // every integer up to 2^53 has a float of its own
                id if id.fract() == 0.0 && id.abs() <= (1u64 << 53) as f64 => Ok(interner.push_integer(id as i64)),
                id => Err(self.fault(row, at, &id.to_string(), FaultKind::IdNotInteger)),
            },
            Ids::Texts(ids) if ids.is_null(row) => Err(absent()),
            Ids::Texts(ids) => interner.push(ids.value(row).as_bytes()).map_err(|refused| match refused {
                Refused::Fault(kind) => self.fault(row, at, ids.value(row), kind),
                Refused::NotInteger => self.fault(row, at, ids.value(row), FaultKind::IdNotInteger),
            }),
        }
    }

    fn push_time(&self, row: usize, builder: &mut EventBuilder) -> std::result::Result<(), Box<Fault>> {
        let fault = |value: &str, kind| self.fault(row, self.layout.time, value, kind);
        match &self.time {
            Times::Integers(times) if times.is_null(row) => Err(fault("null", FaultKind::AbsentTime)),
            Times::Integers(times) => {
                let time = times.value(row);
                builder.time.push(Decimal::integer(time)).map_err(|kind| fault(&time.to_string(), kind))
            }
            Times::Texts(times) => match times[row].as_deref() {
                None => Err(fault("null", FaultKind::AbsentTime)),
                Some(text) if is_absent(text.as_bytes()) => Err(fault(text, FaultKind::AbsentTime)),
                Some(text) => builder.time.push_text(text.as_bytes()).map_err(|kind| fault(text, kind)),
            },
        }
    }

    fn label(&self, row: usize) -> std::result::Result<Option<i8>, Box<Fault>> {
        let (Some(labels), Some(at)) = (&self.label, self.layout.label) else { return Ok(None) };
        if labels.is_null(row) {
            return Ok(None);
        }
        let label = labels.value(row);
        if label.fract() != 0.0 || !(-128.0..=127.0).contains(&label) {
            return Err(self.fault(row, at, &label.to_string(), FaultKind::LabelNotInteger));
        }
        Ok(Some(label as i8))
    }
}

/// Whether a column of unsigned integers has one beyond 63 bits.
fn too_large(column: &ArrayRef) -> bool {
    column.as_primitive_opt::<UInt64Type>().is_some_and(|ids| ids.iter().flatten().any(|id| i64::try_from(id).is_err()))
}

/// A column of ids; none if they are integers too large for that.
fn ids((column, name): (&ArrayRef, &str), path: &Path, role: &'static str, interner: &Interner) -> Result<Option<Ids>> {
    if matches!(interner, Interner::Texts(_)) {
        let texts = cast(column, &DataType::LargeUtf8, path, name, role)?;
        return Ok(Some(Ids::Texts(texts.as_string::<i64>().clone())));
    }
    if too_large(column) {
        return Ok(None);
    }
    Ok(Some(match column.data_type() {
        DataType::Float32 | DataType::Float64 => {
            Ids::Floats(cast(column, &DataType::Float64, path, name, role)?.as_primitive::<Float64Type>().clone())
        }
        _ => Ids::Integers(cast(column, &DataType::Int64, path, name, role)?.as_primitive::<Int64Type>().clone()),
    }))
}

fn times(column: &ArrayRef, path: &Path, name: &str) -> Result<Times> {
    let cast = |to: &DataType| cast(column, to, path, name, "time");
    let integers = |array: ArrayRef| Times::Integers(array.as_primitive::<Int64Type>().clone());
    Ok(match column.data_type() {
        kind if kind.is_integer() || matches!(kind, DataType::Timestamp(..) | DataType::Date64) => {
            integers(cast(&DataType::Int64)?)
        }
        DataType::Date32 => {
            let days = cast(&DataType::Int32)?;
            let seconds = days.as_primitive::<arrow::datatypes::Int32Type>().iter();
            Times::Integers(seconds.map(|day| day.map(|day| i64::from(day) * 86_400)).collect())
        }
        DataType::Float32 => {
            Times::Texts(column.as_primitive::<Float32Type>().iter().map(|t| t.map(|t| t.to_string())).collect())
        }
        DataType::Float64 => {
            Times::Texts(column.as_primitive::<Float64Type>().iter().map(|t| t.map(|t| t.to_string())).collect())
        }
        _ => {
            let texts = cast(&DataType::LargeUtf8)?;
            Times::Texts(texts.as_string::<i64>().iter().map(|t| t.map(|t| t.trim().to_owned())).collect())
        }
    })
}
