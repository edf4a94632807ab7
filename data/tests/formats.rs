//! Every format gives the same stream, and every fault and oddity is found by `check` where it was planted.

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_data::{
    CandidateRule, DataConfig, EventId, EventStream, GenerateConfig, Key, NegativeSampler, NodeId, Purpose, Report,
    Scored, Split, SplitConfig, Watch, check, generate, load,
};

fn real(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let path = std::env::var_os("TIDEMILL_DATA").map_or(beside, PathBuf::from).join(name);
    if !path.exists() {
        eprintln!("skipped: {} is absent (set TIDEMILL_DATA)", path.display());
    }
    path.exists().then_some(path)
}

fn read(path: &Path) -> EventStream {
    load(&DataConfig::of(path), &mut |_| {}).unwrap_or_else(|e| panic!("{e}"))
}

fn checked(path: &Path) -> Report {
    check(&DataConfig::of(path), Watch { notice: &mut |_| {}, progress: &mut |_, _| {}, scratch: None }).unwrap()
}

/// Dense source and destination, seconds since the first event, label.
type Event = (u32, u32, u64, Option<i8>);
/// Events, features, negatives.
type Seen = (Vec<Event>, Vec<f32>, Vec<NodeId>);

/// What training sees: dense ids, seconds, labels, features, split and negatives.
fn seen(stream: &EventStream) -> Seen {
    let events = || (0..stream.len() as u32).map(EventId);
    let first = stream.time(EventId(0)).0;
    let seconds = |e| stream.tick().seconds(stream.time(e).0 - first).to_bits();
    let label = |e| stream.label(e).filter(|&l| l != 0);
    let rows = events().map(|e| (stream.source(e).0, stream.destination(e).0, seconds(e), label(e))).collect();
    let features = events().flat_map(|e| stream.features(e).to_vec()).collect();
    let split = Split::new(stream, &SplitConfig::default()).unwrap();
    let key = Key::new(1, Purpose::EvalNegative);
    let rule = CandidateRule::TrainDestinations;
    let sampler = NegativeSampler::new(stream, &split, &rule, Scored::Test, true, key).unwrap();
    let negatives =
        split.test.clone().map(|e| sampler.draw(0, EventId(e), stream.destination(EventId(e)), 0)).collect();
    (rows, features, negatives)
}

fn raw(stream: &EventStream, node: NodeId) -> i64 {
    stream.ids().raw(node).to_string().parse().unwrap()
}

/// Rows of a stream as text: source, destination, seconds, label.
fn rows(stream: &EventStream, separator: &str, shift: i64) -> Vec<String> {
    (0..stream.len() as u32)
        .map(EventId)
        .map(|e| {
            let time =
                tidemill_data::export::format_time(stream.time(e).0, stream.tick(), tidemill_data::TimeUnit::Seconds);
            let (source, destination) = (raw(stream, stream.source(e)), raw(stream, stream.destination(e)) + shift);
            [source.to_string(), destination.to_string(), time, stream.label(e).unwrap_or(0).to_string()]
                .join(separator)
        })
        .collect()
}

/// Writes the stream in every format; destinations are shifted where a format knows one numbering only.
fn write_all(stream: &EventStream, folder: &Path) -> Vec<PathBuf> {
    let plain = rows(stream, ",", 0).join("\n");
    let bipartite = stream.meta().bipartite;
    let names = if bipartite { "user_id,item_id" } else { "src,dst" };
    let shift = if bipartite { 1_000_000 } else { 0 };
    let csv = format!("{names},timestamp,label\n{plain}\n");
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(csv.as_bytes()).unwrap();
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(csv.as_bytes()).unwrap();
    let numbered = |shift| rows(stream, ",", shift).into_iter().enumerate();
    let ml: String = numbered(shift).map(|(k, row)| format!("{k},{row},{}\n", k + 1)).collect();
    let tgl: String = numbered(shift).map(|(k, row)| format!("{k},{},0\n", row.rsplit_once(',').unwrap().0)).collect();
    let tgb: String = rows(stream, ",", shift)
        .iter()
        .map(|row| {
            let parts: Vec<&str> = row.split(',').collect();
            format!("{},{},{},{}\n", parts[2], parts[0], parts[1], parts[3])
        })
        .collect();
    vec![
        put("a.csv", csv.as_bytes()),
        put("b.tsv", csv.replace(',', "\t").as_bytes()),
        put("c.csv", csv.replace(',', ";").replace('\n', "\r\n").as_bytes()),
        put("d.csv.gz", &gzip.finish().unwrap()),
        put("e.csv.zst", &zstd::encode_all(csv.as_bytes(), 1).unwrap()),
        put("f.csv.xz", &xz.finish().unwrap()),
        put("ml_g.csv", format!(",u,i,ts,label,idx\n{ml}").as_bytes()),
        put("edges.csv", format!(",src,dst,time,ext_roll\n{tgl}").as_bytes()),
        put("tgb.csv", format!("timestamp,src,dst,label\n{tgb}").as_bytes()),
        put(
            "j.csv",
            format!("user_id,item_id,timestamp,state_label\n{}\n", rows(stream, ",", 0).join("\n")).as_bytes(),
        ),
        parquet(stream, &folder.join("h.parquet")),
    ]
}

fn parquet(stream: &EventStream, path: &Path) -> PathBuf {
    let events = || (0..stream.len() as u32).map(EventId);
    let (source, destination) = if stream.meta().bipartite { ("user", "item") } else { ("src", "dst") };
    let decimals = 9 - stream.tick().decimals();
    let nanoseconds = |e| stream.time(e).0 * 10i64.pow(decimals);
    let times = arrow::array::TimestampNanosecondArray::from_iter_values(events().map(nanoseconds));
    let batch = RecordBatch::try_from_iter([
        (source, Arc::new(events().map(|e| raw(stream, stream.source(e))).collect::<Int64Array>()) as ArrayRef),
        (destination, Arc::new(events().map(|e| raw(stream, stream.destination(e))).collect::<Int64Array>())),
        ("time", Arc::new(times)),
        ("label", Arc::new(events().map(|e| i64::from(stream.label(e).unwrap_or(0))).collect::<Int64Array>())),
    ])
    .unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path.to_owned()
}

fn every_format_is_one_stream(stream: &EventStream) {
    let folder = tempfile::tempdir().unwrap();
    let wanted = seen(stream);
    for path in write_all(stream, folder.path()) {
        if path.ends_with("j.csv") && !stream.meta().bipartite {
            continue;
        }
        let copy = read(&path);
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let got = seen(&copy);
        // TGL's file has no label
        let same = if name == "edges.csv" {
            got.0.iter().zip(&wanted.0).all(|(a, b)| (a.0, a.1, a.2) == (b.0, b.1, b.2)) && got.2 == wanted.2
        } else {
            got == wanted
        };
        assert!(same, "{name} is another stream");
        let arrow = folder.path().join("again.arrow");
        copy.write(&arrow).unwrap();
        assert!(seen(&read(&arrow)) == got, "{name} through Arrow");
        assert!(checked(&path).passes() && checked(&arrow).passes(), "{name}");
    }
}

#[test]
fn formats_of_a_generated_stream() {
    every_format_is_one_stream(&generate(&GenerateConfig { events: Some(2_000), ..Default::default() }).unwrap());
}

#[test]
fn formats_of_real_streams() {
    for name in ["wikipedia.csv.gz", "bitcoin-otc.csv.gz"] {
        if let Some(path) = real(name) {
            every_format_is_one_stream(&read(&path));
        }
    }
}

#[test]
fn real_streams_pass_the_check() {
    for name in ["wikipedia", "sx-mathoverflow", "collegemsg", "bitcoin-otc", "bitcoin-alpha"] {
        let Some(path) = real(&format!("{name}.csv.gz")) else { continue };
        let report = checked(&path);
        assert!(report.passes(), "{report}");
    }
}

fn npy(rows: u64, dim: u64) -> Vec<u8> {
    use npyz::WriterBuilder;
    let mut bytes = Vec::new();
    let options = npyz::WriteOptions::new().default_dtype().shape(&[rows, dim]);
    let mut writer = options.writer(&mut bytes).begin_nd().unwrap();
    npyz::NpyWriter::extend(&mut writer, (0..rows * dim).map(|x| x as f32)).unwrap();
    npyz::NpyWriter::finish(writer).unwrap();
    bytes
}

#[test]
fn ml_files_bring_their_features() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ml_x.csv");
    std::fs::write(&path, ",u,i,ts,label,idx\n0,1,3,10,0.0,2\n1,2,3,20,1.0,1\n").unwrap();
    std::fs::write(folder.path().join("ml_x.npy"), npy(3, 2)).unwrap();
    std::fs::write(folder.path().join("ml_x_node.npy"), npy(4, 1)).unwrap();
    let stream = read(&path);
    assert_eq!((stream.features(EventId(0)), stream.features(EventId(1))), (&[4.0, 5.0][..], &[2.0, 3.0][..]));
    assert_eq!([0, 1, 2].map(|n| stream.node_features(NodeId(n))[0]), [1.0, 2.0, 3.0]);
    std::fs::write(&path, ",u,i,ts,label,idx\n0,1,3,10,0.0,9\n").unwrap();
    let error = load(&DataConfig::of(&path), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("row 1, column `idx`, value `9`") && error.contains("it has 3"), "{error}");
}

/// Name of the finding, bytes of the file, row, and words of the sentence.
type Planted<'a> = (&'a str, &'a [u8], Option<u64>, &'a str);

#[test]
fn every_error_is_found_where_it_was_planted() {
    let utf16: Vec<u8> = "src,dst,timestamp\n1,2,3\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let cut = {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        (0..5_000u32).for_each(|i| writeln!(gzip, "{i},{},{}", i.wrapping_mul(2_654_435_761), i * 7).unwrap());
        let bytes = gzip.finish().unwrap();
        bytes[..bytes.len() / 2].to_vec()
    };
    let cut_with_header = [zip_of(b"src,dst,timestamp\n"), cut].concat();
    let cases: &[Planted<'_>] = &[
        ("absent_id", b"src,dst,timestamp\n1,2,3\n,2,4\n5,6,7\n", Some(2), "fill it in or drop the row"),
        ("absent_id", b"src,dst,timestamp\n1,NaN,3\n", Some(1), "the id is absent"),
        ("absent_time", b"src,dst,timestamp\n1,2,3\n1,2,nan\n", Some(2), "the time is absent"),
        ("time_not_number", b"src,dst,timestamp\n1,2,soon\n", Some(1), "no ISO 8601 time"),
        ("ragged_row", b"src,dst,timestamp\n1,2,3\n1,2\n4,5,6\n", Some(2), "2 fields where 3 are expected"),
        (
            "feature_not_finite",
            b"user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n0,0,0,0,1,inf\n",
            Some(1),
            "no finite number",
        ),
        ("header_inside", b"src,dst,timestamp\n1,2,3\nsrc,dst,timestamp\n4,5,6\n", Some(2), "drop this row"),
        (
            "unit_change",
            b"src,dst,timestamp\n1,2,1700000000\n1,3,1700000005000\n1,4,1700000009000\n",
            Some(2),
            "give all in one unit",
        ),
        ("cut_compressed", &cut_with_header, None, "fetch it again"),
        ("lfs_pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", None, "git lfs pull"),
        ("empty", b"", None, "the file is empty"),
        ("no_rows", b"src,dst,timestamp\n", None, "no data row"),
        ("utf16", &utf16, None, "save it as UTF-8"),
        ("label_not_integer", b"src,dst,timestamp,label\n1,2,3,0.5\n", Some(1), "number the classes"),
        ("time_too_fine", b"src,dst,timestamp\n1,2,0.0123456789\n", Some(1), "finer than a nanosecond"),
        ("time_too_large", b"src,dst,timestamp\n1,2,99999999999999999999\n", Some(1), "does not fit 64 bits"),
        ("open_quote", b"src,dst,timestamp\n1,\"2,3\n4,5,6\n", Some(1), "close or remove it"),
        ("not_utf8", b"src,dst,timestamp\na\xff,2,3\n", Some(1), "save the file as UTF-8"),
        ("binary", b"src,dst,timestamp\n1,2,3\n\0\0\0\0", None, "bytes of zero"),
        ("npy_events", b"\x93NUMPY\x01\0v\0", None, "name the csv beside it"),
        ("no_header", b"1,2,3\n4,5,6\n", None, "put a header"),
        ("missing_column", b"a,b,c\n1,2,3\n", None, "data.columns.src"),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (kind, bytes, row, words) in cases {
        let path = folder.path().join("events.csv");
        std::fs::write(&path, bytes).unwrap();
        let report = checked(&path);
        let [finding] = &report.errors[..] else { panic!("{kind}: {report}") };
        let place = &finding.places[0];
        assert_eq!((finding.kind, finding.count, place.row), (*kind, 1, *row), "{report}");
        assert!(place.sentence.contains(words), "{}", place.sentence);
        // training meets the same sentence
        assert_eq!(load(&DataConfig::of(&path), &mut |_| {}).unwrap_err().to_string(), place.sentence);
    }
}

fn zip_of(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn every_warning_is_found_where_it_was_planted() {
    let cases: &[Planted<'_>] = &[
        ("unsorted", b"src,dst,timestamp\n1,9,5\n2,9,3\n3,9,7\n", Some(2), "sorted on load"),
        ("duplicate", b"src,dst,timestamp\n1,9,3\n2,9,3\n1,9,3\n", Some(3), "occurred before"),
        ("self_loop", b"src,dst,timestamp\n1,2,3\n2,2,4\n", Some(2), "one node"),
        ("tie", b"src,dst,timestamp\n1,8,3\n2,8,4\n3,8,4\n", Some(2), "have this time too"),
        ("both_spaces", b"user_id,item_id,timestamp\n1,1,3\n2,7,4\n", None, "value `1`"),
        ("bom", b"\xef\xbb\xbfsrc,dst,timestamp\n1,2,3\n", None, "byte-order mark"),
        ("crlf", b"src,dst,timestamp\r\n1,2,3\r\n", None, "CRLF"),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (kind, bytes, row, words) in cases {
        let path = folder.path().join("events.csv");
        std::fs::write(&path, bytes).unwrap();
        let report = checked(&path);
        assert!(report.passes(), "{report}");
        let finding = report.warnings.iter().find(|w| w.kind == *kind).unwrap_or_else(|| panic!("{kind}: {report}"));
        assert_eq!(finding.places[0].row, *row, "{kind}");
        assert!(finding.places[0].sentence.contains(words), "{}", finding.places[0].sentence);
    }
}

#[test]
fn all_are_counted_and_twenty_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.csv");
    let rows: String = (0..100).map(|i| format!("{},2,{i}\n", if i % 2 == 0 { "1" } else { "" })).collect();
    std::fs::write(&path, format!("src,dst,timestamp\n{rows}")).unwrap();
    let report = checked(&path);
    assert_eq!((report.events, report.errors[0].count, report.errors[0].places.len()), (50, 50, 20));
    assert!(report.to_string().contains("30 more of this kind"), "{report}");
}

#[test]
fn odd_ids_keep_their_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.csv");
    let ids = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let stream = read(&path);
        (0..stream.nodes()).map(|n| stream.ids().raw(NodeId(n)).to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids("src,dst,timestamp\n1.0,2,1\n1,3,2\n"), ["1", "2", "3"]);
    assert_eq!(
        ids("src,dst,timestamp\n-9223372036854775808,9223372036854775807,1\n"),
        ["-9223372036854775808", "9223372036854775807"]
    );
    assert_eq!(
        ids("src,dst,timestamp\n18446744073709551616,\"a, \"\"b\"\"\",1\n"),
        ["18446744073709551616", "a, \"b\""]
    );
}

#[test]
fn a_changed_stream_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.arrow");
    let config = GenerateConfig { events: Some(200), features: 3, ..Default::default() };
    generate(&config).unwrap().write(&path).unwrap();
    assert!(checked(&path).passes());
    let mut bytes = std::fs::read(&path).unwrap();
    let feature = read(&path).features(EventId(100))[1].to_le_bytes();
    let at = bytes.windows(4).position(|w| w == feature).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(checked(&path).errors[0].kind, "hash_mismatch");
    let error = load(&DataConfig { tick: Some("ms".into()), ..DataConfig::of(&path) }, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("data.tick = ms"), "{error}");
}
