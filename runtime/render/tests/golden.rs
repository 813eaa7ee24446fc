//! What users see, compared with the text files beside this test; `BLESS=1` rewrites them.

mod common;

use common::*;
use std::collections::BTreeMap;
use std::path::Path;
use xputrace_model::bucket;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label, Site, SourceFile, Sources};
use xputrace_model::gap::Gap;
use xputrace_model::loss::{Account, Arrived, Balance, Loss, Losses};
use xputrace_model::output::{Member, Output, Piece, View};
use xputrace_model::plan::BpfMapId;
use xputrace_model::plan::{
    Activities, Activity, Call, Calls, Demand, Detail, Details, HostEvent, HostEvents, Place, Plan, Probe, ProbeScope,
    Switch,
};
use xputrace_model::schema::{Event, Unit};
use xputrace_model::stack::StackKey;
use xputrace_model::table::{Cell, Scalar, Storage, Table, TableKind, Value};
use xputrace_render::{
    Context, Exporter, FILES, FORMATS, Format, UNLIMITED, diagnostics, explain, flamegraph, folded, json, text,
    widest_paths,
};

fn golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    xputrace_golden::assert(&path, actual);
}

/// Returns the outputs as text, then as JSON.
fn both(outputs: &[Output]) -> String {
    let sources = sources();
    let mut names = Names;
    let mut out = Vec::new();
    let mut context = Context { names: &mut names, sources: &sources, tables: &[], width: 80 };
    for output in outputs {
        text(&mut out, output, &mut context).unwrap();
    }
    out.extend(b"----\n");
    for output in outputs {
        json(&mut out, output, &mut context).unwrap();
    }
    String::from_utf8(out).unwrap()
}

fn sources() -> Sources {
    let file = |name: &str, text: &str| SourceFile { name: name.into(), text: text.into() };
    Sources {
        files: vec![
            file("slow.rhai", "kernel(|k| @time[k.nmae].sum(k.duration));\nbegin(|| print(\"ä tracing\"));\n"),
            file("lib.rhai", "fn helper(x) {\n    @time[x] = 1\n}\n"),
        ],
    }
}

fn buckets(values: &[i64], bits: u32) -> Cell {
    let mut counts = BTreeMap::new();
    for value in values {
        *counts.entry(bucket::index(*value, bits)).or_default() += 1;
    }
    Cell::Buckets(counts)
}

fn member(name: &str, value: Value, unit: Unit) -> Member {
    Member { name: name.into(), value, unit }
}

#[test]
fn plain_maps() {
    let name = Scalar::Name;
    golden(
        "maps.txt",
        &both(&[
            Output::Attached { probes: 1 },
            Output::Attached { probes: 12 },
            Output::print("any text\nof the script"),
            Output::Print(vec![
                Piece::Text("launched by\n".into()),
                Piece::Stack(StackKey::Collector { process: 0, id: 1 }),
                Piece::Text("\nor ".into()),
                Piece::Stack(StackKey::Lost),
            ]),
            Output::Object(vec![
                member("addr", Value::Missing, Unit::None),
                member("by", Value::Stack(StackKey::Collector { process: 0, id: 1 }), Unit::None),
                member("comm", string("a b\n"), Unit::None),
                member("ok", Value::Bool(true), Unit::None),
                member("took", Value::Int(3_100_000), Unit::Nanos),
            ]),
            Output::Note("what the tracer says".into()),
            view(table("@n", &[], TableKind::Count, Unit::None, vec![(vec![], Cell::Number(3))])),
            view(table("@", &[], TableKind::Min, Unit::Nanos, vec![(vec![], Cell::Number(-3))])),
            view(table("@none", &[name], TableKind::Count, Unit::None, vec![])),
            view(table(
                "@time",
                &[name],
                TableKind::Sum,
                Unit::Nanos,
                vec![
                    (vec![string("matmul")], Cell::Number(3_100_000)),
                    (vec![string("relu")], Cell::Number(412)),
                    (vec![Value::Missing], Cell::Number(99_000)),
                    (
                        vec![string(
                            "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, (unsigned long)3> >",
                        )],
                        Cell::Number(1_500_000_000),
                    ),
                ],
            )),
            view(table(
                "@calls",
                &[Scalar::Int, name, Scalar::Bool],
                TableKind::Count,
                Unit::None,
                vec![
                    (vec![Value::Int(-3), string("two"), Value::Bool(true)], Cell::Number(4)),
                    (vec![Value::Int(1), string("b"), Value::Bool(false)], Cell::Number(4)),
                    (vec![Value::Int(1), string("a"), Value::Bool(false)], Cell::Number(4)),
                ],
            )),
            view(table(
                "@last",
                &[Scalar::Int],
                TableKind::Plain(Scalar::Text(128)),
                Unit::None,
                vec![(vec![Value::Int(7)], Cell::Plain(string("tock\n")))],
            )),
            view(table(
                "@bytes",
                &[name],
                TableKind::Avg,
                Unit::Bytes,
                vec![(vec![string("malloc")], Cell::Avg { count: 2, total: 131_072 })],
            )),
            view(table(
                "@s",
                &[name],
                TableKind::Stats,
                Unit::Nanos,
                vec![(vec![string("k")], Cell::Stats { count: 2, total: 9_000, min: 4_000, max: 5_000 })],
            )),
        ]),
    );
}

#[test]
fn keys_with_a_unit_are_exact() {
    let mut def = def("@at", &[Scalar::Int], TableKind::Count, Unit::None);
    def.keys[0].unit = Unit::Nanos;
    let rows = [1_020_000, 1_020_001].map(|it| (vec![Value::Int(it)], Cell::Number(1))).to_vec();
    let table = Table { def: def.into(), rows }.into();
    assert!(both(&[view(table)]).starts_with("@at[1.02 ms]: 1\n@at[1.020001 ms]: 1\n"));
}

#[test]
fn only_the_largest() {
    let rows = (1..=5).map(|n| (vec![Value::Int(n)], Cell::Number(n * 100))).collect();
    let table = table("@", &[Scalar::Int], TableKind::Sum, Unit::None, rows);
    golden("top.txt", &both(&[Output::Table(View { table, top: Some(2) })]));
}

#[test]
fn histograms() {
    let hist = TableKind::Hist { bits: 0 };
    let linear = TableKind::Lhist { min: 0, max: 10, step: 2 };
    let linear_cell = Cell::Buckets(BTreeMap::from([(-1, 1), (0, 1), (4, 1), (5, 1)]));
    golden(
        "histograms.txt",
        &both(&[
            view(table("@", &[], hist, Unit::None, vec![(vec![], buckets(&[-1, 0, 1, 2, 3, 7, 20], 0))])),
            view(table("@k", &[], hist, Unit::None, vec![(vec![], buckets(&[1023, 1024, 1 << 20], 0))])),
            view(table("@latency", &[], hist, Unit::Nanos, vec![(vec![], buckets(&[1500, 5000, 5001, 70_000], 0))])),
            view(table(
                "@size",
                &[Scalar::Text(16)],
                hist,
                Unit::Bytes,
                vec![(vec![string("python3")], buckets(&[65_536, 100], 0)), (vec![string("sh")], buckets(&[5000], 0))],
            )),
            view(table("@linear", &[], linear, Unit::None, vec![(vec![], linear_cell.clone())])),
            view(table(
                "@ms",
                &[],
                TableKind::Lhist { min: 0, max: 10_000_000, step: 2_500_000 },
                Unit::Nanos,
                vec![(vec![], linear_cell)],
            )),
            view(table(
                "@fine",
                &[],
                TableKind::Hist { bits: 1 },
                Unit::None,
                vec![(vec![], buckets(&[1536, 2048], 1))],
            )),
            view(table(
                "@q",
                &[Scalar::Name],
                TableKind::Quantiles,
                Unit::Nanos,
                vec![
                    (vec![string("matmul")], buckets(&(1..=1000).map(|it| it * 1000).collect::<Vec<_>>(), 5)),
                    (vec![string("a_very_long_kernel_name_that_leaves_no_room")], buckets(&[5], 5)),
                ],
            )),
        ]),
    );
}

#[test]
fn widths() {
    let kernel = |tile: &str| {
        vec![string(&format!("sm80_xmma_gemm_f32f32_tn_n_tilesize{tile}_stage3_warpsize_execute_kernel__5x_cublas"))]
    };
    let names = ["64x64x8", "64x128x8", "128x128x8"].map(kernel);
    let rows = names.into_iter().zip(1..).map(|(name, n)| (name, Cell::Number(n * 1_000_000))).collect();
    let time = view(table("@time", &[Scalar::Name], TableKind::Sum, Unit::Nanos, rows));
    let addresses = [94_557_999_988_735, 96_757_023_244_287];
    let buckets = addresses.iter().map(|it| (bucket::index(*it, bucket::QUANTILE_BITS), 565)).collect();
    let rows = vec![(vec![string("realloc")], Cell::Buckets(buckets))];
    let quantiles = view(table("@addresses", &[Scalar::Name], TableKind::Quantiles, Unit::None, rows));
    let rows = vec![(vec![string("first")], Cell::Plain(Value::Int(12_466_123_456_789)))];
    let clock = view(table("@seen", &[Scalar::Name], TableKind::Plain(Scalar::Int), Unit::Clock, rows));
    let at = |width: usize| {
        let (mut names, sources, mut out) = (Names, sources(), Vec::new());
        let mut context = Context { names: &mut names, sources: &sources, tables: &[], width };
        [&time, &quantiles, &clock].into_iter().for_each(|it| text(&mut out, it, &mut context).unwrap());
        String::from_utf8(out).unwrap()
    };
    golden("widths.txt", &[at(60), at(80), at(UNLIMITED)].join("----\n"));
}

#[test]
fn stacks() {
    let rows = vec![
        (vec![stack(1), string("matmul")], Cell::Number(1000)),
        (vec![stack(2), string("matmul")], Cell::Number(200)),
        (vec![stack(3), string("a;b")], Cell::Number(30)),
        (vec![stack(99), string("matmul")], Cell::Number(4)),
    ];
    let gpu = table("@gpu", &[Scalar::Stack, Scalar::Name], TableKind::Sum, Unit::Nanos, rows);
    let lines = folded(&gpu, &mut Names).unwrap();
    let widest: String = widest_paths(&lines, 2)
        .iter()
        .map(|it| format!("{:.1} % {} {}\n", it.share * 100.0, it.weight, it.frames.join(" > ")))
        .collect();
    let rows = vec![(vec![stack(1)], Cell::Number(5))];
    let alone = table("@cpu", &[Scalar::Stack], TableKind::Count, Unit::None, rows);
    let outputs = both(&[view(gpu), view(alone)]);
    golden("stacks.txt", &format!("{outputs}----\n{lines}----\n{widest}"));
}

#[test]
fn flame_graphs_are_labelled_and_the_same_each_time() {
    let lines = "main;forward;matmul 1200\nmain;forward;relu 30\n";
    let svg = String::from_utf8(flamegraph(lines, "GPU time <x>", Unit::Nanos).unwrap()).unwrap();
    assert!(svg.contains("GPU time &lt;x&gt;") && svg.contains("matmul (1,200 ns, 97.56%)"), "{svg}");
    assert_eq!(svg.as_bytes(), flamegraph(lines, "GPU time <x>", Unit::Nanos).unwrap());
    let blank = table(
        "@b",
        &[Scalar::Stack],
        TableKind::Count,
        Unit::None,
        vec![(vec![Value::Str(" ".into())], Cell::Number(1))],
    );
    let lines = folded(&blank, &mut Names).unwrap();
    assert_eq!(lines, "- 1\n");
    assert!(flamegraph(&lines, "t", Unit::None).is_ok(), "a frame of blanks");
    let no_stack = table("@x", &[Scalar::Int], TableKind::Count, Unit::None, vec![]);
    let histogram = table(
        "@h",
        &[Scalar::Stack],
        TableKind::Hist { bits: 0 },
        Unit::None,
        vec![(vec![stack(1)], buckets(&[1], 0))],
    );
    golden(
        "fold-errors.txt",
        &format!(
            "{}\n{}\n{}\n",
            flamegraph("\n", "t", Unit::None).unwrap_err(),
            folded(&no_stack, &mut Names).unwrap_err(),
            folded(&histogram, &mut Names).unwrap_err()
        ),
    );
}

#[test]
fn gaps() {
    let gap = Gap {
        pid: 4711,
        comm: "python3".into(),
        holder: "libtorch_cpu.so".into(),
        start: 1_000,
        end: 412_001_000,
        launches: 1840,
        saw_all: true,
        was_refused: false,
    };
    let of_another = Gap { holder: "libmine.so".into(), launches: 1, saw_all: false, ..gap.clone() };
    let refused = Gap { end: 1_000, launches: 0, was_refused: true, ..gap.clone() };
    golden("gaps.txt", &both(&[gap, of_another, refused].map(Output::Gap)));
}

#[test]
fn losses() {
    let mut account = Account::new(Calls::LAUNCHES, Activities::of(&[Activity::Kernel]));
    *account.call_mut(Call::Kernel) = Balance { made: 180, joined: 180, ..Balance::default() };
    *account.call_mut(Call::Graph) = Balance { made: 20, joined: 20, ..Balance::default() };
    *account.activity_mut(Activity::Kernel) =
        Arrived { records: 200, nanos: 5_000_000, told_records: 200, told_nanos: 5_000_000 };
    let mut lost = Losses::default();
    lost.add(Loss::LostAtExit, 2);
    lost.add_at(Loss::MissingValue, Site { file: FileId(0), offset: 3, line: 2 }, 17);
    let end = |losses: &Losses, account: Option<Account>| Output::End {
        losses: losses.clone(),
        account: account.map(Box::new),
    };
    let mut failing = account;
    *failing.call_mut(Call::Kernel) =
        Balance { made: 180, joined: 175, failed: 3, lost: 2, captured: 7, ..Balance::default() };
    *failing.call_mut(Call::Graph) =
        Balance { made: 20, joined: 14, without_work: 5, without_record: 1, ..Balance::default() };
    failing.activity_mut(Activity::Kernel).records = 195;
    let mut unbalanced = account;
    unbalanced.call_mut(Call::Kernel).joined = 175;
    let mut with_memsets = account;
    with_memsets.calls = Calls::LAUNCHES.with(Calls::of(&[Call::Memset]));
    with_memsets.activities = Activities::of(&[Activity::Kernel, Activity::Memset]);
    *with_memsets.call_mut(Call::Memset) = Balance { made: 30, joined: 28, failed: 2, ..Balance::default() };
    *with_memsets.activity_mut(Activity::Memset) =
        Arrived { records: 28, nanos: 1_000, told_records: 28, told_nanos: 1_000 };
    let mut memsets_alone = with_memsets;
    (memsets_alone.calls, memsets_alone.activities) = (Calls::NONE, Activities::of(&[Activity::Memset]));
    let mut copies = Account::new(Activity::Memcpy.causes(), Activities::of(&[Activity::Memcpy]));
    *copies.call_mut(Call::Memcpy) =
        Balance { made: 9, joined: 5, without_work: 3, without_record: 1, ..Balance::default() };
    *copies.activity_mut(Activity::Memcpy) = Arrived { records: 7, nanos: 900, told_records: 7, told_nanos: 900 };
    golden(
        "losses.txt",
        &both(&[
            end(&Losses::default(), Some(account)),
            end(&Losses::default(), None),
            end(&lost, Some(failing)),
            end(&Losses::default(), Some(unbalanced)),
            end(&Losses::default(), Some(with_memsets)),
            end(&Losses::default(), Some(memsets_alone)),
            end(&Losses::default(), Some(copies)),
        ]),
    );
}

#[test]
fn outputs_have_names_of_their_own() {
    let mut names: Vec<&str> = FORMATS.iter().map(|it| it.name).chain(FILES.iter().map(|it| it.option)).collect();
    assert_eq!(names[0], "text", "the default comes first");
    names.sort();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}

/// A complete new output.
struct Counts(usize);

impl Exporter for Counts {
    fn output(&mut self, _: &mut dyn std::io::Write, _: &Output, _: &mut Context<'_>) -> std::io::Result<()> {
        self.0 += 1;
        Ok(())
    }

    fn tick(&mut self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        writeln!(out, "{} so far", self.0)
    }
}

#[test]
fn a_new_output_is_an_exporter() {
    let format = Format { name: "counts", machine_readable: true, open: || Box::new(Counts(0)) };
    let (mut exporter, mut out) = ((format.open)(), Vec::new());
    let sources = Sources::default();
    for text in ["one", "two"] {
        let mut context = Context { names: &mut Names, sources: &sources, tables: &[], width: UNLIMITED };
        exporter.output(&mut out, &Output::print(text), &mut context).unwrap();
    }
    exporter.tick(&mut out).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "2 so far\n");
}

#[test]
fn mistakes_in_scripts() {
    let label = |file, span, note: Option<&str>| Label { file: FileId(file), span, note: note.map(str::to_string) };
    let all = [
        Diagnostic::error("unknown-field", "a kernel has no field `nmae`", label(0, 19..23, Some("not a field")))
            .also(label(0, 7..8, None), "`k` is a kernel")
            .help("did you mean `name`?"),
        Diagnostic::error("mixed-kinds", "`@time` is used in two ways", label(1, 19..31, Some("assigned here")))
            .also(label(0, 11..41, None), "summed up here")
            .help("use another map")
            .help("a map is one thing, whoever touches it"),
        Diagnostic::warning(
            "odd-place",
            "a span that lies within a character and past the end",
            label(0, 60..9000, None),
        ),
        Diagnostic::error("no-file", "a file that is not there", label(9, 0..1, None)),
    ];
    let colored = diagnostics(&all[..1], &sources(), true);
    assert!(colored.contains("\u{1b}["));
    assert_eq!(diagnostics(&[], &sources(), false), "");
    golden("diagnostics.txt", &diagnostics(&all, &sources(), false));
}

#[test]
fn plans() {
    let probe = |event, name: &str, place, line, why: &[&str]| Probe {
        name: name.into(),
        scope: ProbeScope::Process,
        site: Site { file: FileId(0), offset: 0, line },
        why: why.iter().map(|it| it.to_string()).collect(),
        ..Probe::of(event, place)
    };
    let mut time = def("@time", &[Scalar::Name, Scalar::Int], TableKind::Sum, Unit::Nanos);
    time.storage = Storage::Tracer(BpfMapId(0));
    let mut request = def("@request", &[Scalar::Int], TableKind::Plain(Scalar::Int), Unit::None);
    request.storage = Storage::Linux { map: BpfMapId(1), from_tracer: true };
    let plan = Plan {
        sources: sources(),
        probes: vec![
            probe(Event::KERNEL, "kernel", Place::Tracer, 1, &["reads only fields of the joined kernel"]),
            Probe {
                scope: ProbeScope::System,
                ..probe(Event::Uprobe, "uprobe:./server:handle_request", Place::Linux, 2, &[])
            },
            Probe { scope: ProbeScope::Tree, ..probe(Event::Uprobe, "uprobe:libc:open", Place::Linux, 2, &[]) },
            probe(
                Event::Interval,
                "interval:s:1",
                Place::Interpreter,
                3,
                &["prints a map, which needs all of Rhai, and this sentence is long enough to be broken over lines"],
            ),
        ],
        tables: vec![time.into(), request.into()],
        demand: Demand {
            calls: Calls::LAUNCHES,
            activities: Activities::of(&[Activity::Kernel]),
            details: Details::of(&[Detail::Stacks, Detail::Marker]),
            ..Demand::default()
        },
        ..Plan::default()
    };
    golden("explain.txt", &format!("{}====\n{}", explain(&plan), explain(&Plan::default())));
}

#[test]
fn plans_whose_probes_are_switched() {
    let switch = |name: &str, line, begins_on, demand| Switch {
        declared: line,
        name: name.into(),
        begins_on,
        is_turned_elsewhere: true,
        site: Site { file: FileId(0), offset: 0, line },
        demand,
    };
    let kernels =
        Demand { calls: Calls::LAUNCHES, activities: Activities::of(&[Activity::Kernel]), ..Demand::default() };
    let waits = Demand { host_events: HostEvents::of(&[HostEvent::Wait]), ..Demand::default() };
    let with_stacks = Demand { details: Details::of(&[Detail::Stacks]), ..kernels };
    let plan = |switches: Vec<Switch>| {
        let demand = switches.iter().fold(Demand::default(), |all, it| all.with(&it.demand));
        Plan { sources: sources(), demand, switches, ..Plan::default() }
    };
    let all = [
        plan(vec![switch("kernel", 1, false, kernels), switch("kernel", 2, false, kernels)]),
        plan(vec![
            switch("kernel", 1, true, kernels),
            switch("kernel", 2, false, kernels),
            switch("kernel", 3, false, with_stacks),
            switch("wait", 4, true, waits),
        ]),
    ];
    golden("explain_switched.txt", &all.map(|it| explain(&it)).join("====\n"));
}
