//! Checking a file: all faults and oddities, each with its place and its mend.
//!
//! The same readers as for [`super::load`] do it, so the sentences are the same; here the row at fault is left out and
//! the reading goes on. Warnings are about what is legal and perhaps not meant. A row with two faults is told its first.

use super::config::DataConfig;
use super::session::{Faults, KEPT, Session, Tally, Watch};
use super::source::{self, Content};
use crate::error::{Error, Fault, Result};
use crate::id::{EventId, NodeId};
use crate::stream::{Endpoint, EventStream};
use rayon::prelude::*;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// What is wrong or odd in a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The file.
    pub path: PathBuf,
    /// Events without fault.
    pub events: u64,
    /// Faults: `train` would refuse the file with the first sentence.
    pub errors: Vec<Finding>,
    /// Oddities that are legal.
    pub warnings: Vec<Finding>,
    /// What the reader decided by itself.
    pub notices: Vec<String>,
}

/// All findings of a kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// A short name that stays the same.
    pub kind: &'static str,
    /// How many there are.
    pub count: u64,
    /// The first of them, at most 20.
    pub places: Vec<Place>,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Place {
    /// Data row, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<u64>,
    /// Column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// Value, shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The whole sentence, with file and mend.
    pub sentence: String,
}

impl Report {
    /// Whether there is no error; warnings are no errors.
    pub fn passes(&self) -> bool {
        self.errors.is_empty()
    }
}

impl From<&Fault> for Place {
    fn from(fault: &Fault) -> Place {
        let (row, column, value) = (fault.row, fault.column.clone(), fault.value.clone());
        Place { row, column, value, sentence: fault.to_string() }
    }
}

/// Checks a file from its first to its last row.
///
/// # Errors
/// If it can not be opened or read at all, or a setting is impossible. Faults of the file are no errors of this function.
pub fn check(config: &DataConfig, watch: Watch<'_>) -> Result<Report> {
    let mut notices = Vec::new();
    let mut keep = |notice| notices.push(notice);
    let Watch { progress, scratch, .. } = watch;
    let mut session = Session::new(Watch { notice: &mut keep, progress, scratch }, Faults::Count(Tally::default()));
    let mut oddities = Vec::new();
    let read = config.validate().and_then(|()| source::open(&config.path)).and_then(|content| {
        oddities = line_oddities(config, &content);
        super::read(config, content, &mut session)
    });
    let mut tally = session.faults.into_tally();
    let mut events = 0;
    match read {
        Ok(stream) if stream.is_empty() => {}
        Ok(stream) => {
            events = stream.len() as u64;
            oddities.extend(stream_oddities(config, &stream));
        }
        Err(Error::Fault(fault)) => tally.add(*fault),
        Err(Error::Damaged { path, what }) => {
            tally.add(Fault::of_file(path, crate::FaultKind::Damaged { what }));
        }
        Err(error @ Error::TimeRange { .. }) => {
            let sentence = format!("{}: {error}", config.path.display());
            let places = vec![Place { row: None, column: None, value: None, sentence }];
            let errors = vec![Finding { kind: "time_range", count: 1, places }];
            return Ok(Report { path: config.path.clone(), events, errors, warnings: oddities, notices });
        }
        Err(error) => return Err(error),
    }
    let finding = |(kind, count, faults): (&'static str, u64, Vec<Fault>)| Finding {
        kind,
        count,
        places: faults.iter().map(Place::from).collect(),
    };
    let errors = tally.kinds.into_iter().map(finding).collect();
    Ok(Report { path: config.path.clone(), events, errors, warnings: oddities, notices })
}

/// Makes sentences about a file.
struct Teller<'a>(&'a DataConfig);

impl Teller<'_> {
    fn place(&self, row: Option<u64>, value: Option<String>, what: &str) -> Place {
        let row_text = row.map_or_else(String::new, |row| format!(", row {row}"));
        let value_text = value.as_ref().map_or_else(String::new, |value| format!(", value `{value}`"));
        let sentence = format!("{}{row_text}{value_text}: {what}", self.0.path.display());
        Place { row, column: None, value, sentence }
    }

    fn finding(&self, kind: &'static str, mut rows: Vec<(u64, Option<String>)>, what: &str) -> Option<Finding> {
        let count = rows.len() as u64;
        rows.sort_unstable();
        rows.truncate(KEPT);
        let places = rows.into_iter().map(|(row, value)| self.place(Some(row + 1), value, what)).collect();
        (count > 0).then_some(Finding { kind, count, places })
    }
}

/// A byte-order mark, or lines that end in CRLF.
fn line_oddities(config: &DataConfig, content: &Content) -> Vec<Finding> {
    let Content::Text(source) = content else { return Vec::new() };
    let teller = Teller(config);
    let whole = |kind, what| Finding { kind, count: 1, places: vec![teller.place(None, None, what)] };
    let mut found = Vec::new();
    if source.marked {
        found.push(whole("bom", "the file begins with a byte-order mark; it is skipped, save it without"));
    }
    if source.head.windows(2).any(|w| w == b"\r\n") {
        found.push(whole("crlf", "lines end in CRLF; that is read, LF is usual"));
    }
    found
}

fn stream_oddities(config: &DataConfig, stream: &EventStream) -> Vec<Finding> {
    let teller = Teller(config);
    let found = [
        teller.finding("unsorted", unsorted(stream), "its time is before an earlier row's; sorted on load, rows of one time keep their order"),
        teller.finding("duplicate", duplicates(stream), "source, destination and time of this row occurred before; all are kept, drop it if it is no event of its own"),
        teller.finding("self_loop", self_loops(stream), "source and destination are one node; it is kept, drop the row if it is no event"),
        teller.finding("tie", ties(stream), "other rows have this time too; their order is the file's, and none sees the others as neighbors"),
        both_spaces(&teller, stream),
    ];
    found.into_iter().flatten().collect()
}

fn events(stream: &EventStream) -> impl DoubleEndedIterator<Item = EventId> {
    (0..stream.len() as u32).map(EventId)
}

/// Rows that had to move behind another.
fn unsorted(stream: &EventStream) -> Vec<(u64, Option<String>)> {
    let mut least = u64::MAX;
    let mut moved = Vec::new();
    for event in events(stream).rev() {
        let row = stream.row(event);
        if row > least {
            moved.push((row, None));
        }
        least = least.min(row);
    }
    moved
}

fn duplicates(stream: &EventStream) -> Vec<(u64, Option<String>)> {
    let key = |e: EventId| (stream.source(e).0, stream.destination(e).0, stream.time(e).0, stream.row(e));
    let mut all: Vec<(u32, u32, i64, u64)> = events(stream).map(key).collect();
    all.par_sort_unstable();
    let same = |w: &&[(u32, u32, i64, u64)]| (w[0].0, w[0].1, w[0].2) == (w[1].0, w[1].1, w[1].2);
    all.windows(2).filter(same).map(|w| (w[1].3, None)).collect()
}

fn self_loops(stream: &EventStream) -> Vec<(u64, Option<String>)> {
    events(stream).filter(|&e| stream.source(e) == stream.destination(e)).map(|e| (stream.row(e), None)).collect()
}

/// Rows that share their time with another.
fn ties(stream: &EventStream) -> Vec<(u64, Option<String>)> {
    let last = stream.len() as u32 - 1;
    let same = |a: u32, b: u32| stream.time(EventId(a)) == stream.time(EventId(b));
    let tied = |e: &EventId| e.0 > 0 && same(e.0 - 1, e.0) || e.0 < last && same(e.0, e.0 + 1);
    events(stream).filter(tied).map(|e| (stream.row(e), None)).collect()
}

/// Ids that occur as source and as destination.
fn both_spaces(teller: &Teller<'_>, stream: &EventStream) -> Option<Finding> {
    let (ids, bipartite) = (stream.ids(), stream.meta().bipartite);
    let shared: Vec<NodeId> = if bipartite {
        let also = |n: &NodeId| ids.find(Endpoint::Destination, &ids.raw(*n).to_string()).is_some();
        stream.source_space().map(NodeId).filter(also).collect()
    } else {
        let mut seen = vec![0u8; stream.nodes() as usize];
        for event in events(stream) {
            seen[stream.source(event).index()] |= 1;
            seen[stream.destination(event).index()] |= 2;
        }
        (0..stream.nodes()).map(NodeId).filter(|n| seen[n.index()] == 3).collect()
    };
    let what = if bipartite {
        "the id is a source and a destination; taken as two nodes, set data.bipartite = false if it names one thing"
    } else {
        "the id is a source and a destination; taken as one node, set data.bipartite = true if it names two things"
    };
    let place = |n: &NodeId| teller.place(None, Some(ids.raw(*n).to_string()), what);
    let places = shared.iter().take(KEPT).map(place).collect();
    (!shared.is_empty()).then_some(Finding { kind: "both_spaces", count: shared.len() as u64, places })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = |findings: &[Finding]| findings.iter().map(|finding| finding.count).sum::<u64>();
        for (name, findings) in [("error", &self.errors), ("warning", &self.warnings)] {
            for finding in findings {
                for place in &finding.places {
                    writeln!(f, "{name}: {}", place.sentence)?;
                }
                let more = finding.count - finding.places.len() as u64;
                if more > 0 {
                    writeln!(f, "{name}: {}: {more} more of this kind", finding.kind)?;
                }
            }
        }
        for notice in &self.notices {
            writeln!(f, "notice: {notice}")?;
        }
        let (errors, warnings) = (total(&self.errors), total(&self.warnings));
        write!(f, "{}: {} sound events, {errors} errors, {warnings} warnings", self.path.display(), self.events)
    }
}
