//! Histograms of a stream, drawn as one self-contained page: degrees, gaps between a node's events, events over time.
//!
//! Plain SVG made by hand: bars need no library, and the page loads nothing.

use crate::id::EventId;
use crate::statistics::Statistics;
use crate::stream::EventStream;
use std::fmt::Write;

/// Slices of the time axis.
const SLICES: usize = 60;

/// What is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    /// Nodes by events: bin `k` counts those with `2^k .. 2^(k+1) - 1` events; sources and destinations.
    pub degrees: [Vec<u64>; 2],
    /// Gaps between consecutive events of a source: bin 0 counts gaps below a second, bin `k` those of
    /// `2^(k-1) .. 2^k` seconds.
    pub gaps: Vec<u64>,
    /// Events in each of 60 equal slices of the time span.
    pub rate: Vec<u64>,
}

impl Drawing {
    /// Counts. O(E) time.
    pub fn of(stream: &EventStream) -> Drawing {
        let nodes = stream.nodes() as usize;
        let mut events = [vec![0u64; nodes], vec![0u64; nodes]];
        let mut latest: Vec<Option<i64>> = vec![None; nodes];
        let mut gaps = Vec::new();
        let mut rate = vec![0; SLICES];
        let ends = (!stream.is_empty()).then(|| [0, stream.len() as u32 - 1].map(|e| stream.time(EventId(e)).0));
        let [first, last] = ends.unwrap_or_default();
        let slice = |time: i64| (i128::from(time - first) * SLICES as i128 / (i128::from(last - first) + 1)) as usize;
        for chunk in stream.chunks() {
            for ((source, destination), time) in chunk.source.iter().zip(chunk.destination).zip(chunk.time) {
                events[0][source.index()] += 1;
                events[1][destination.index()] += 1;
                if let Some(before) = latest[source.index()].replace(time.0) {
                    let seconds = stream.tick().seconds(time.0 - before);
                    count(&mut gaps, if seconds < 1.0 { 0 } else { 1 + (seconds as u64).ilog2() as usize });
                }
                rate[slice(time.0)] += 1;
            }
        }
        let degrees = events.map(|events| {
            let mut bins = Vec::new();
            events.iter().filter(|&&e| e > 0).for_each(|e| count(&mut bins, e.ilog2() as usize));
            bins
        });
        Drawing { degrees, gaps, rate }
    }
}

fn count(bins: &mut Vec<u64>, at: usize) {
    if bins.len() <= at {
        bins.resize(at + 1, 0);
    }
    bins[at] += 1;
}

/// One page with the statistics as text and the drawings.
pub fn page(statistics: &Statistics, drawing: &Drawing) -> String {
    let name = escaped(&statistics.name);
    let days = statistics.span_seconds / SLICES as f64 / 86_400.0;
    let power = |k: usize| format!("{}", 1u64 << k.min(63));
    let gap = |k: usize| if k == 0 { "< 1 s".into() } else { span(1u64 << (k - 1).min(63)) };
    let charts = [
        chart("Events a source", "events (from, doubling)", "nodes", &drawing.degrees[0], &power),
        chart("Events a destination", "events (from, doubling)", "nodes", &drawing.degrees[1], &power),
        chart("Time between a source's events", "gap (from, doubling)", "gaps", &drawing.gaps, &gap),
        chart("Events over time", "days since the first event", "events", &drawing.rate, &|k| {
            format!("{:.1}", k as f64 * days)
        }),
    ];
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>\n\
         <style>body{{font:14px sans-serif;margin:2em;max-width:60em}}rect{{fill:#3a6ea5}}text{{font:11px sans-serif}}\
         pre{{background:#f4f4f4;padding:1em;overflow:auto}}</style></head>\n\
         <body><h1>{name}</h1>\n<pre>{}</pre>\n{}</body></html>\n",
        escaped(&statistics.to_string()),
        charts.concat()
    )
}

/// Bars with their values as tooltips.
fn chart(title: &str, across: &str, up: &str, bins: &[u64], label: &dyn Fn(usize) -> String) -> String {
    const SIZE: [f64; 2] = [720.0, 180.0];
    let most = bins.iter().copied().max().unwrap_or(0).max(1);
    let width = SIZE[0] / bins.len().max(1) as f64;
    let every = bins.len().div_ceil(12).max(1);
    let mut svg = format!(
        "<h2>{title}</h2>\n<svg viewBox=\"-60 -10 800 240\" width=\"800\" height=\"240\" role=\"img\">\
         <text x=\"-5\" y=\"5\" text-anchor=\"end\">{most}</text>\
         <text x=\"-5\" y=\"180\" text-anchor=\"end\">0 {up}</text><text x=\"300\" y=\"220\">{across}</text>"
    );
    for (k, &bin) in bins.iter().enumerate() {
        let height = SIZE[1] * bin as f64 / most as f64;
        let (x, y) = (k as f64 * width, SIZE[1] - height);
        let text = escaped(&label(k));
        let _ = write!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{text}: {bin}</title></rect>",
            (width - 1.0).max(0.5)
        );
        if k % every == 0 {
            let _ = write!(svg, "<text x=\"{x:.1}\" y=\"197\">{text}</text>");
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::tests::read;

    #[test]
    fn bins_of_a_small_stream() {
        let text = b"src,dst,timestamp\n1,9,0\n1,9,1\n1,8,5\n2,9,5\n1,9,60\n";
        let stream = read(text, |_| {}).unwrap();
        let drawing = Drawing::of(&stream);
        assert_eq!(drawing.degrees, [vec![1, 0, 1], vec![1, 0, 1]]);
        assert_eq!(drawing.gaps, [0, 1, 0, 1, 0, 0, 1]);
        assert_eq!((drawing.rate.iter().sum::<u64>(), drawing.rate[0], drawing.rate[59]), (5, 2, 1));
        let page = page(&Statistics::of(&stream.with_name("<a>")), &drawing);
        assert!(page.contains("&lt;a&gt;") && !page.contains("<a>"));
        assert_eq!((page.matches("<svg").count(), page.matches("http").count()), (4, 0));
    }
}
