//! What compiled handlers compute: scripts run in the tracer's engine on synthetic events, and
//! their tables are decoded.

use crate::support::{compiled, plan};
use std::collections::{BTreeMap, HashMap};
use xputrace_bytecode::vm::{Engine, Env};
use xputrace_bytecode::{BpfMapId, ProgramId};
use xputrace_model::context::{GpuContext, WORDS, word};
use xputrace_model::loss::Loss;
use xputrace_model::plan::{Activities, Activity, Call, Calls, Demand, Detail, Form, Piece, Plan, record};
use xputrace_model::style::{Digits, hex, padded};
use xputrace_model::table::{self, Scalar, TableDef, TableKind};

/// A script with its engine, which kernels are fed to.
pub(crate) struct Run {
    plan: Plan,
    engine: Engine,
    world: World,
}

#[derive(Default)]
struct World {
    names: Vec<String>,
    records: Vec<Vec<u8>>,
}

impl Env for World {
    fn output(&mut self, _map: BpfMapId, data: &[u8]) -> bool {
        self.records.push(data.to_vec());
        true
    }

    fn name(&mut self, id: u64) -> &[u8] {
        self.names.get(id as usize).map_or(&[], |it| it.as_bytes())
    }
}

/// A kernel event, field by field.
#[derive(Clone)]
pub(crate) struct Kernel<'a> {
    name: &'a str,
    symbol: &'a str,
    words: Vec<(usize, i64)>,
    joined: bool,
}

pub(crate) fn kernel(name: &str, duration: i64) -> Kernel<'_> {
    Kernel { name, symbol: "", words: vec![(word::DURATION, duration)], joined: true }
}

impl<'a> Kernel<'a> {
    pub(crate) fn with(mut self, at: usize, value: i64) -> Self {
        self.words.push((at, value));
        self
    }

    pub(crate) fn symbol(self, symbol: &'a str) -> Self {
        Kernel { symbol, ..self }
    }

    fn unjoined(self) -> Self {
        Kernel { joined: false, ..self }
    }
}

impl Run {
    pub(crate) fn new(script: &str) -> Self {
        let plan = plan(script);
        let programs: Vec<ProgramId> = plan.probes.iter().filter_map(|it| it.program).collect();
        let engine = Engine::new(&plan.image, &programs, &mut |_, _| None).expect("the engine takes the programs");
        let world = World { names: plan.strings.clone(), records: Vec::new() };
        Run { plan, engine, world }
    }

    fn id(&mut self, name: &str) -> u64 {
        let known = self.world.names.iter().position(|it| it == name);
        known.unwrap_or_else(|| {
            self.world.names.push(name.into());
            self.world.names.len() - 1
        }) as u64
    }

    pub(crate) fn feed(&mut self, kernels: &[Kernel]) -> &mut Self {
        for kernel in kernels {
            let mut ctx: GpuContext = [0; WORDS];
            ctx[word::NAME] = self.id(kernel.name);
            ctx[word::SYMBOL] = self.id(kernel.symbol);
            ctx[word::JOINED] = u64::from(kernel.joined);
            ctx[word::COMM..word::COMM + 2].copy_from_slice(&words(b"python3"));
            for (at, value) in &kernel.words {
                ctx[*at] = *value as u64;
            }
            for probe in self.plan.probes.iter().filter_map(|it| it.program) {
                self.engine.run_words(probe, &ctx, &mut self.world).expect("no faults");
            }
        }
        self
    }

    /// Returns a table's rows as text: key parts, a colon, the decoded words of the value.
    fn rows(&self, name: &str) -> BTreeMap<String, Vec<i64>> {
        let table = self.plan.tables.iter().find(|it| it.name == name).expect("the map exists").clone();
        let mut rows = BTreeMap::new();
        let map = table.storage.used_by_tracer().expect("the tracer uses the map");
        self.engine.for_each(map, &mut |key, value| {
            rows.insert(self.key(&table, key), decoded(table.kind, value));
        });
        rows
    }

    fn key(&self, table: &TableDef, bytes: &[u8]) -> String {
        let (mut at, mut parts) = (0, Vec::new());
        for part in &table.keys {
            let present = !part.optional || u64_at(bytes, at) == 1;
            at += if part.optional { 8 } else { 0 };
            parts.push(if present { self.scalar(part.kind, &bytes[at..]) } else { "-".into() });
            at += part.kind.size();
        }
        if table.kind.is_bucketed() {
            parts.push(format!("#{}", u64_at(bytes, at) as i64));
        }
        parts.join(",")
    }

    fn scalar(&self, kind: Scalar, bytes: &[u8]) -> String {
        match kind {
            Scalar::Text(n) => {
                let text = &bytes[..n as usize];
                let end = text.iter().position(|it| *it == 0).unwrap_or(text.len());
                assert!(text[end..].iter().all(|it| *it == 0), "texts are NUL padded");
                String::from_utf8_lossy(&text[..end]).into_owned()
            }
            Scalar::Name => self.world.names[u64_at(bytes, 0) as usize].clone(),
            _ => (u64_at(bytes, 0) as i64).to_string(),
        }
    }

    pub(crate) fn one(&self, name: &str) -> Option<Vec<i64>> {
        self.rows(name).into_values().next()
    }

    fn losses(&self) -> HashMap<Loss, u64> {
        let mut counts = HashMap::new();
        if let Some(map) = self.plan.tracer_losses {
            self.engine.for_each(map, &mut |key, value| {
                let slot = u32::from_le_bytes(key[..4].try_into().expect("4 bytes")) as usize;
                let n = u64_at(value, 0);
                if n > 0 {
                    *counts.entry(self.plan.loss_sites[slot].loss).or_default() += n;
                }
            });
        }
        counts
    }

    /// Returns the printed lines, formatted as by the tracer.
    fn printed(&self) -> Vec<String> {
        self.world.records.iter().map(|it| self.line(it)).collect()
    }

    fn line(&self, bytes: &[u8]) -> String {
        let head = u64_at(bytes, 0);
        if head as u32 == record::EXIT {
            return format!("exit {}", u64_at(bytes, 8) as i64);
        }
        if head as u32 == record::MAP {
            return format!("{} {:#x}", self.plan.tables[(head >> 32) as usize].name, u64_at(bytes, 8));
        }
        let print = &self.plan.prints[(head >> 32) as usize];
        assert_eq!(print.size, bytes.len());
        let piece = |it: &Piece| match it {
            Piece::Text(text) => text.clone(),
            Piece::Arg(arg) if arg.present_at.is_some_and(|it| u64_at(bytes, it) == 0) => "-".into(),
            Piece::Arg(arg) => {
                let text = self.scalar(arg.kind, &bytes[arg.at..]);
                let text = match arg.style.digits {
                    Digits::Decimal => text,
                    Digits::Human(unit) => format!("{text} {unit:?}"),
                    Digits::Hex => hex(text.parse().expect("an integer")),
                };
                padded(&text, arg.style.columns.into())
            }
        };
        match &print.form {
            Form::Line(pieces) => pieces.iter().map(piece).collect(),
            Form::Object(members) => {
                members.iter().map(|(name, it)| format!("{name}: {}", piece(it))).collect::<Vec<_>>().join(", ")
            }
        }
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn words(text: &[u8]) -> [u64; 2] {
    let mut bytes = [0; 16];
    bytes[..text.len()].copy_from_slice(text);
    [u64_at(&bytes, 0), u64_at(&bytes, 8)]
}

fn decoded(kind: TableKind, value: &[u8]) -> Vec<i64> {
    let words: Vec<i64> = value.chunks_exact(8).map(|it| u64_at(it, 0) as i64).collect();
    match kind {
        TableKind::Min => vec![words[0] ^ i64::MAX],
        TableKind::Max => vec![words[0] ^ i64::MIN],
        TableKind::Avg => vec![words[0], words[1] + (words[2] << 32)],
        TableKind::Stats => vec![words[0], words[1] + (words[2] << 32), words[3] ^ i64::MAX, words[4] ^ i64::MIN],
        _ => words,
    }
}

/// Evaluates `@r = EXPRESSION` on one kernel; `None` if the handler ended.
fn value_of(expression: &str, kernel: Kernel) -> Option<i64> {
    let mut run = Run::new(&format!("kernel(|k| {{ @r = {expression}; }});"));
    run.feed(&[kernel]).one("@r").map(|it| it[0])
}

fn check_values(cases: &[(&str, i64)]) {
    for (expression, expected) in cases {
        let event = kernel("gemm", 1000)
            .with(word::START, -7)
            .with(word::END, 3)
            .with(word::GRID, 2)
            .with(word::GRID + 1, 3)
            .with(word::GRID + 2, 4);
        assert_eq!(value_of(expression, event), Some(*expected), "{expression}");
    }
}

#[test]
fn strings_are_put_together() {
    let mut run = Run::new(
        "let unit = \"ns\";
         kernel(|k| {
             @key[`${k.name}:${k.duration}${unit}`].count();
             @sum[k.short_name + \"!\" + k.device].count();
             @comm[`<${k.comm}>`].count();
             @flag[`${k.duration > 0} ${k.graph} ${k.launch.tag}`].count();
             let s = \"at \" + k.stream;
             for i in 0..3 { s += `,${i}`; }
             @local = s;
             if s == \"at 7,0,1,2\" { @equal.count(); }
             @choice[if k.duration > 0 { `+${k.duration}` } else { \"none\" }].count();
         });",
    );
    for n in [0, 7, -1, 10, i64::MAX, i64::MIN, 1_000_000_000_000_000_000] {
        run.feed(&[kernel("gemm<int>", n).with(word::STREAM, 7).with(word::DEVICE, 3)]);
    }
    let keys = |name: &str| run.rows(name).into_keys().collect::<Vec<_>>();
    assert_eq!(
        keys("@key"),
        [
            "gemm<int>:-1ns",
            "gemm<int>:-9223372036854775808ns",
            "gemm<int>:0ns",
            "gemm<int>:1000000000000000000ns",
            "gemm<int>:10ns",
            "gemm<int>:7ns",
            "gemm<int>:9223372036854775807ns",
        ]
    );
    assert_eq!(keys("@sum"), ["!3"]);
    assert_eq!(keys("@comm"), ["<python3>"]);
    assert_eq!(keys("@flag"), ["false - -", "true - -"]);
    assert_eq!(run.one("@equal"), Some(vec![7]));
    assert_eq!(keys("@choice"), ["+10", "+1000000000000000000", "+7", "+9223372036854775807", "none"]);
    assert!(run.losses().is_empty(), "{:?}", run.losses());
}

#[test]
fn integers_are_written_in_hexadecimal_digits() {
    let mut run = Run::new(
        "kernel(|k| {
             @key[k.duration.hex].count();
             @part[`<${k.duration.u8.hex}>`].count();
             if k.duration.hex == \"0xff\" { @equal.count(); }
             print(`${k.duration.hex}|${k.duration.i8.hex.pad(6)}|${k.name.pad(-6)}|${k.duration.human.pad(9)}|`);
             print(k.stream.pad(4));
         });",
    );
    for n in [0, 9, 10, 255, 4096, -1, i64::MIN, 0x0123_4567_89ab_cdef] {
        run.feed(&[kernel("gemm", n).with(word::STREAM, 7)]);
    }
    let keys = |name: &str| run.rows(name).into_keys().collect::<Vec<_>>();
    assert_eq!(
        keys("@key"),
        ["0x0", "0x1000", "0x123456789abcdef", "0x8000000000000000", "0x9", "0xa", "0xff", "0xffffffffffffffff"]
    );
    assert_eq!(keys("@part"), ["<0x0>", "<0x9>", "<0xa>", "<0xef>", "<0xff>"]);
    assert_eq!(run.one("@equal"), Some(vec![1]));
    assert_eq!(run.printed()[6..8], ["0xff|0xffffffffffffffff|gemm  |255 Nanos|".to_owned(), "   7".to_owned()]);
    assert!(run.losses().is_empty(), "{:?}", run.losses());
}

#[test]
fn conditions_guard_actions() {
    let mut run = Run::new(
        "fn note(k) { @noted.sum(k.duration); }
         fn is_small(k) { k.duration < 10 }
         fn is_six(k) { k.duration > 5 && is_small(k) }
         kernel(|k| {
             if is_six(k) { @six.count(); }
             k.duration > 5 && @long.count();
             k.duration > 5 || @short.count();
             k.duration > 5 && k.stream == 7 && print(`${k.duration}`);
             (k.duration < 0 || k.duration > 99) && note(k);
             k.stream == 8 || { @other = k.duration; @others.count(); };
             k.duration == 100 && exit(3)
         });",
    );
    for n in [1, 6, 100] {
        run.feed(&[kernel("gemm", n).with(word::STREAM, 7)]);
    }
    assert_eq!((run.one("@long"), run.one("@short")), (Some(vec![2]), Some(vec![1])));
    assert_eq!(run.one("@six"), Some(vec![1]));
    assert_eq!(run.printed(), ["6", "100", "exit 3"]);
    assert_eq!(
        (run.one("@noted"), run.one("@other"), run.one("@others")),
        (Some(vec![100]), Some(vec![100]), Some(vec![3]))
    );
    assert!(run.losses().is_empty(), "{:?}", run.losses());
}

#[test]
fn fields_stand_alone_where_a_handler_names_no_event() {
    let mut run = Run::new(
        "let limit = 5;
         kernel(|| if duration > limit { @by[name, launch.stream].sum(duration); print(`${name} ${duration}`) });
         kernel(interpret(|| @interpreted[short_name].sum(duration)));",
    );
    run.feed(&[kernel("gemm", 9).with(word::LAUNCH_STREAM, 3)]);
    assert_eq!(run.one("@by"), Some(vec![9]));
    assert_eq!(run.printed(), ["gemm 9"]);
}

#[test]
fn maps_and_objects_are_printed() {
    let mut run = Run::new(
        "kernel(|k| {
             @by[k.short_name].count();
             @n = k.duration;
             print(#{took: k.duration, name: k.name, at: k.stream.hex, graph: k.graph, kind: \"kernel\"});
             if k.duration == 2 { print(@by); print(@by.top(3)); @by.clear(); print(@n); }
         });",
    );
    run.feed(&[kernel("gemm", 1).with(word::STREAM, 7), kernel("gemm", 2)]);
    let whole = "@by 0xffffffffffffffff";
    assert_eq!(
        run.printed(),
        [
            "at: 0x7, graph: -, kind: kernel, name: gemm, took: 1",
            "at: 0x0, graph: -, kind: kernel, name: gemm, took: 2",
            whole,
            "@by 0x3",
            "@by 0x0",
            "2",
        ]
    );
}

#[test]
fn elements_are_read_and_removed() {
    let mut run = Run::new(
        "kernel(|k| {
             if k.stream == 1 { @start[k.device] = k.duration; @text[k.device] = `${k.duration}!`; }
             else {
                 let was = @start[k.device].take();
                 if was != () { @sum.sum(k.duration - was); }
                 @gone[@start[k.device].take() ?? -1].count();
                 @said[@text[k.device].take() ?? \"none\"].count();
             }
         });",
    );
    let event = |stream, n| kernel("gemm", n).with(word::STREAM, stream).with(word::DEVICE, 3);
    run.feed(&[event(1, 10), event(2, 30), event(2, 31)]);
    assert_eq!(run.one("@sum"), Some(vec![20]));
    assert_eq!(run.rows("@gone").into_iter().collect::<Vec<_>>(), [("-1".to_owned(), vec![2])]);
    assert_eq!(run.rows("@said").into_keys().collect::<Vec<_>>(), ["10!", "none"]);
    assert!(run.rows("@start").is_empty() && run.rows("@text").is_empty());
    assert!(run.losses().is_empty(), "{:?}", run.losses());
}

#[test]
fn lists_and_objects_of_the_top_level_are_tables() {
    let mut run = Run::new(
        "let names = [\"zero\", \"one\", \"two\", \"three\", \"four\"];
         let of_kernel = #{gemm: 10, scale: 20};
         let limits = #{low: 3, inner: #{high: [7, 8]}};
         fn named(list, n) { list[n] }
         kernel(|k| {
             @by[names[k.duration] ?? \"none\"].count();
             @of.sum(of_kernel[k.name] ?? 1);
             @constant = limits.low + limits.inner.high[1] + names.len();
             if k.duration in [2, 3] { @among.count(); }
             if k.name in of_kernel { @known.count(); }
             if names[-1] == \"four\" { @last.count(); }
             for name in names { if name == names[k.duration] { @looped.count(); } }
             @called[named(names, k.duration) ?? \"-\"].count();
         });",
    );
    run.feed(&[kernel("gemm", 0), kernel("scale", 2), kernel("scale", 4), kernel("other", 5), kernel("gemm", -1)]);
    let rows = |name: &str| run.rows(name).into_iter().map(|(key, n)| (key, n[0])).collect::<Vec<_>>();
    let expected = [("four", 2), ("none", 1), ("two", 1), ("zero", 1)].map(|(key, n)| (key.to_owned(), n));
    assert_eq!(rows("@by"), expected);
    assert_eq!((run.one("@of"), run.one("@constant")), (Some(vec![61]), Some(vec![16])));
    assert_eq!((run.one("@among"), run.one("@known"), run.one("@last")), (Some(vec![1]), Some(vec![4]), Some(vec![5])));
    assert_eq!((run.one("@looped"), rows("@called").len()), (Some(vec![4]), 4));
    assert!(run.losses().is_empty(), "{:?}", run.losses());
}

#[test]
fn functions_are_compiled_in_place() {
    let mut run = Run::new(
        "fn long(k, limit) { k.duration > limit }
         fn class(ns) { if ns < 10 { return \"short\"; } if ns < 100 { return `${ns} ns`; } \"long\" }
         fn half(n) { n = n / 2; return n; }
         fn note(k) { if k.duration == 7 { return; } @noted.count(); }
         fn twice(x) { half(x) * 4 }
         fn named(k) { @calls.count(); `g${\"emm\"}${k.device}` }
         let limit = 20;
         let device = |k| k.device + limit;
         kernel(|k| {
             if long(k, limit) { @long.count(); }
             @class[class(k.duration)].count();
             @half.sum(half(k.duration));
             @twice.sum(twice(k.duration));
             note(k);
             @device[device.call(k)].count();
             @switch[switch k.duration { 7 => \"seven\", 8 | 9 => \"few\", 500 if k.device == 4 => \"never\", 40..=60 if k.device == 3 => \"some\", _ => \"many\" }].count();
             if k.name == named(k) { @named.count(); }
             switch k.name { \"gemm\" => @gemm.count(), _ => @other.count() }
         });",
    );
    for n in [7, 9, 50, 500] {
        run.feed(&[kernel("gemm", n).with(word::DEVICE, 3)]);
    }
    assert_eq!(run.one("@long"), Some(vec![2]));
    assert_eq!(run.rows("@class").into_keys().collect::<Vec<_>>(), ["50 ns", "long", "short"]);
    assert_eq!(run.one("@half"), Some(vec![3 + 4 + 25 + 250]));
    assert_eq!(run.one("@twice"), Some(vec![4 * (3 + 4 + 25 + 250)]));
    assert_eq!(run.one("@noted"), Some(vec![3]));
    assert_eq!(run.one("@calls"), Some(vec![4]), "each call runs once");
    assert_eq!(run.one("@named"), Some(vec![0]));
    assert_eq!(run.rows("@device").into_keys().collect::<Vec<_>>(), ["23"]);
    assert_eq!(run.rows("@switch").into_keys().collect::<Vec<_>>(), ["few", "many", "seven", "some"]);
    assert_eq!(run.one("@gemm"), Some(vec![4]));
    assert!(run.losses().is_empty(), "{:?}", run.losses());
}

#[test]
fn arithmetic_is_that_of_wrapping_64_bit_integers() {
    check_values(&[
        ("k.duration + 1", 1001),
        ("k.duration - k.start * 2", 1014),
        ("-k.start", 7),
        ("k.start / 2", -3),
        ("k.start % 3", -1),
        ("k.start / k.end", -2),
        ("k.start % k.end", -1),
        ("k.start / (k.end - 4)", 7),
        ("k.start % (k.end - 4)", 0),
        ("(k.duration & 0xff) | 1", 233),
        ("k.duration ^ k.duration", 0),
        ("k.end << 4", 48),
        ("k.start >> 1", -4),
        ("k.end << k.end", 24),
        ("9223372036854775807 + k.end", i64::MIN + 2),
        ("k.duration * 9223372036854775807", -1000),
        ("k.grid.size", 24),
        ("k.grid.x + k.grid.y * k.grid.z", 14),
        ("100.ms / 1.us", 100_000),
        ("1.5.ms + k.device.us + k.end", 1_500_003),
        ("min(k.start, k.end) + max(k.start, k.end)", -4),
        ("k.end.max(10)", 10),
        ("abs(k.start) + (k.start).abs()", 14),
        (
            "((k.end + 1) * (k.end + 2)) - ((k.end + 3) * ((k.end + 4) - ((k.end + 5) * (k.end + (k.end * k.end)))))",
            20 - 6 * (7 - 8 * 12),
        ),
        ("if k.end > 2 { 5 } else { 6 }", 5),
        ("if k.end > 3 { 5 } else if k.end == 3 { 6 } else { 7 }", 6),
        ("{ let a = k.end; a += 4; a *= 2; a }", 14),
    ]);
}

#[test]
fn conditions() {
    let cases = [
        ("k.end == 3", true),
        ("k.end != 3", false),
        ("k.start < 0", true),
        ("k.start >= k.end", false),
        ("k.start <= -7 && k.end > 2", true),
        ("k.start > 0 || k.end < 2", false),
        ("!(k.start > 0) && (k.end == 1 || k.end == 3)", true),
        ("!(k.end == 3 && k.start == -7)", false),
        ("k.end > 5_000_000_000", false),
        ("k.name == \"gemm\"", true),
        ("k.name == \"_Z4gemm\"", true),
        ("k.name != \"other\"", true),
        ("k.name == \"other\"", false),
        ("k.comm == \"python3\"", true),
        ("k.comm == \"python\"", false),
        ("k.comm == \"python3.11\"", false),
        ("k.comm == \"a name that is longer than sixteen\"", false),
        ("k.comm == k.launch.comm", false),
        ("k.comm.contains(\"thon\")", true),
        ("k.comm.contains(\"thon3\")", true),
        ("k.comm.contains(\"thon33\")", false),
        ("k.comm.contains(\"\")", true),
        ("k.comm.contains(\"a name that is longer than sixteen\")", false),
        ("!k.comm.contains(\"ruby\")", true),
        ("\"yth\" in k.comm", true),
        ("k.comm.starts_with(\"python\")", true),
        ("k.comm.starts_with(\"python3\")", true),
        ("k.comm.starts_with(\"python33\")", false),
        ("k.comm.starts_with(\"ython\")", false),
        ("k.comm.ends_with(\"3\")", true),
        ("k.comm.ends_with(\"python3\")", true),
        ("k.comm.ends_with(\"python\")", false),
        ("k.name.contains(\"em\")", true),
        ("k.name.contains(\"Z4\")", false),
        ("k.symbol.contains(\"Z4\")", true),
        ("k.name.starts_with(\"ge\") && k.name.ends_with(\"mm\")", true),
        ("k.name.starts_with(\"mm\") || k.name.ends_with(\"ge\")", false),
        ("`${k.comm}:${k.end}`.ends_with(\"n3:3\")", true),
        ("\"abc\".contains(\"b\")", true),
        ("k.graph == ()", true),
        ("k.graph == 0", false),
        ("k.graph != 7", true),
        ("k.graph == k.graph_node", true),
        ("true", true),
    ];
    for (condition, expected) in cases {
        let event = kernel("gemm", 1).symbol("_Z4gemm").with(word::START, -7).with(word::END, 3);
        let value = value_of(&format!("if {condition} {{ 1 }} else {{ 0 }}"), event.clone());
        assert_eq!(value, Some(i64::from(expected)), "{condition}");
        let mut run = Run::new(&format!("kernel(|k| {{ @r = {condition}; }});"));
        assert_eq!(run.feed(&[event]).one("@r"), Some(vec![i64::from(expected)]), "stored: {condition}");
    }
}

#[test]
fn a_name_of_any_length_is_looked_through() {
    let long = format!("{}gemm", "cutlass::".repeat(40));
    let script = "kernel(|k| if k.name.contains(\"gemm\") && k.name.ends_with(\"emm\") { @n.count() });";
    assert_eq!(Run::new(script).feed(&[kernel(&long, 1), kernel("memset", 1)]).one("@n"), Some(vec![1]));
}

/// Compares every pair of short strings with Rust's own results.
#[test]
fn parts_of_strings_are_those_of_rust() {
    let texts: Vec<String> = (0..=5u32).flat_map(|n| (0..1u32 << n).map(move |bits| (n, bits))).map(of_bits).collect();
    for wanted in &texts {
        let mut run = Run::new(&format!(
            "kernel(|k| {{ @a[k.comm] = k.comm.contains(\"{wanted}\"); \
             @s[k.comm] = k.comm.starts_with(\"{wanted}\"); @e[k.comm] = k.comm.ends_with(\"{wanted}\"); }});"
        ));
        for text in texts.iter().map(String::as_str).chain(["aaaaaaaaaaaaaaab", "abababababababab", "bbbbbbbbbbbbbbb"])
        {
            let [low, high] = words(text.as_bytes());
            let event = kernel("x", 1).with(word::COMM, low as i64).with(word::COMM + 1, high as i64);
            run.feed(&[event]);
            let expected = [text.contains(wanted), text.starts_with(wanted), text.ends_with(wanted)];
            for (map, expected) in ["@a", "@s", "@e"].into_iter().zip(expected) {
                assert_eq!(run.rows(map)[text], [i64::from(expected)], "{map}: {wanted:?} in {text:?}");
            }
        }
    }
}

/// Returns a string of `n` letters, `a` where the bit is 0.
fn of_bits((n, bits): (u32, u32)) -> String {
    (0..n).map(|it| if bits >> it & 1 == 0 { 'a' } else { 'b' }).collect()
}

#[test]
fn keys_of_names_texts_and_several_parts() {
    let mut run = Run::new("kernel(|k| @t[k.name, k.comm, k.device].sum(k.duration));");
    run.feed(&[kernel("a", 1), kernel("b", 2), kernel("a", 4).with(word::DEVICE, 1), kernel("a", 8)]);
    let expected = [("a,python3,0", 9), ("b,python3,0", 2), ("a,python3,1", 4)];
    assert_eq!(run.rows("@t"), expected.map(|(key, n)| (key.to_string(), vec![n])).into());
}

#[test]
fn a_name_beside_a_text_becomes_text() {
    let mut run = Run::new("kernel(|k| { @t[k.name].count(); @t[k.comm].count(); @t[\"lit\"].count(); });");
    run.feed(&[kernel("python3", 1), kernel("gemm", 1)]);
    let expected = [("python3", 3), ("gemm", 1), ("lit", 2)];
    assert_eq!(run.rows("@t"), expected.map(|(key, n)| (key.to_string(), vec![n])).into());
}

#[test]
fn a_name_that_is_too_long_as_text_is_cut_and_counted() {
    let long = "x".repeat(200);
    let mut run = Run::new("kernel(|k| { @t[k.name].count(); @t[k.comm].count(); });");
    run.feed(&[kernel(&long, 1)]);
    assert_eq!(run.rows("@t").get(&"x".repeat(128)), Some(&vec![1]));
    assert_eq!(run.losses(), [(Loss::TextCut, 1)].into());
}

#[test]
fn aggregations() {
    let values = [5, -3, 12, 0, 5];
    let events: Vec<Kernel> = values.iter().map(|it| kernel("k", *it)).collect();
    let cases: [(&str, Vec<i64>); 6] = [
        ("count()", vec![5]),
        ("sum(k.duration)", vec![19]),
        ("min(k.duration)", vec![-3]),
        ("max(k.duration)", vec![12]),
        ("avg(k.duration)", vec![5, 19]),
        ("stats(k.duration)", vec![5, 19, -3, 12]),
    ];
    for (call, expected) in cases {
        for map in ["@r", "@r[k.name]", "@r[k.name, 1]"] {
            let mut run = Run::new(&format!("kernel(|k| {map}.{call});"));
            assert_eq!(run.feed(&events).one("@r"), Some(expected.clone()), "{map}.{call}");
        }
    }
}

#[test]
fn extremes_of_the_integers_are_kept() {
    for n in [i64::MIN, -1, 0, 1, i64::MAX] {
        let mut run = Run::new("kernel(|k| { @lo.min(k.duration); @hi.max(k.duration); });");
        run.feed(&[kernel("k", n)]);
        assert_eq!((run.one("@lo"), run.one("@hi")), (Some(vec![n]), Some(vec![n])));
    }
}

#[test]
fn buckets_are_those_of_the_model() {
    let mut values: Vec<i64> = (0..63).flat_map(|it| [(1i64 << it) - 1, 1 << it, (1 << it) + 1]).collect();
    values.extend([-1, i64::MIN, i64::MAX]);
    values.extend((1..64).map(|it| -(1i64 << (it - 1)) - 1));
    let hist = |bits| TableKind::Hist { bits };
    let kinds = [hist(0), hist(3), TableKind::Quantiles];
    for (call, kind) in ["hist(k.duration)", "hist(k.duration, 3)", "quantiles(k.duration)"].into_iter().zip(kinds) {
        let mut run = Run::new(&format!("kernel(|k| @h.{call});"));
        let events: Vec<Kernel> = values.iter().map(|it| kernel("k", *it)).collect();
        run.feed(&events);
        let mut expected: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for value in &values {
            expected.entry(format!("#{}", kind.bucket(*value))).or_insert_with(|| vec![0])[0] += 1;
        }
        assert_eq!(run.rows("@h"), expected, "{call}");
    }
}

#[test]
fn linear_buckets() {
    let mut run = Run::new("kernel(|k| @h[k.name].lhist(k.duration, 0, 10, 3));");
    let values = [-5, -1, 0, 2, 3, 8, 9, 10, 11, i64::MAX];
    run.feed(&values.map(|it| kernel("k", it)));
    let expected = [("k,#-1", 2), ("k,#0", 2), ("k,#1", 1), ("k,#2", 1), ("k,#3", 1), ("k,#4", 3)];
    assert_eq!(run.rows("@h"), expected.map(|(key, n)| (key.to_string(), vec![n])).into());
}

#[test]
fn plain_values() {
    let mut run = Run::new(
        "kernel(|k| {
            @n += 1; @d -= k.duration; @or[k.name] |= k.duration; @x ^= 3; @and[1] &= 7;
            @last[k.name] = k.duration; @who[k.device] = k.comm; @name[0] = k.name; @flag = k.duration > 2;
            @twice = @n * 2; @n2 *= 1;
        });
        kernel(|k| @n2 = 5);",
    );
    run.feed(&[kernel("a", 1), kernel("a", 6)]);
    assert_eq!(run.one("@n"), Some(vec![2]));
    assert_eq!(run.one("@d"), Some(vec![-7]));
    assert_eq!(run.one("@or"), Some(vec![7]));
    assert_eq!(run.one("@x"), Some(vec![0]));
    assert_eq!(run.one("@and"), Some(vec![0]));
    assert_eq!(run.one("@last"), Some(vec![6]));
    assert_eq!(run.one("@flag"), Some(vec![1]));
    assert_eq!(run.one("@twice"), Some(vec![4]));
    assert_eq!(run.one("@who").map(|it| it[0] as u64), Some(words(b"python3")[0]));
    assert_eq!(run.losses(), [(Loss::MissingValue, 1)].into(), "`*=` has no value to start from");
}

#[test]
fn missing_values_are_tested_and_never_computed_with() {
    let script = "kernel(|k| {
        if k.device in @seen { @again += 1; }
        if [k.device, k.name] in @pairs { @pair += 1; }
        @or_else = @seen[k.device] ?? -1;
        if @seen[k.device] == () { @absent += 1; } else { @present += 1; }
        @seen[k.device] = k.duration;
        @pairs[k.device, k.name] = 1;
        let x = @never[9];
        if x != () { @never[8] = 1; }
        @by[@never[9], k.graph ?? 77].count();
        @never[10] = @never[9];
        @after += @never[9] + 1;
        @unreached += 1;
    });
    kernel(|k| { @never[1] = 5; });";
    let mut run = Run::new(script);
    run.feed(&[kernel("a", 4), kernel("a", 5)]);
    assert_eq!(run.one("@again"), Some(vec![1]));
    assert_eq!(run.one("@pair"), Some(vec![1]));
    assert_eq!(run.one("@or_else"), Some(vec![4]));
    assert_eq!((run.one("@absent"), run.one("@present")), (Some(vec![1]), Some(vec![1])));
    assert_eq!(run.rows("@by"), [("-,77".to_string(), vec![2])].into());
    assert_eq!(run.rows("@never"), [("1".to_string(), vec![5])].into());
    assert_eq!((run.one("@after"), run.one("@unreached")), (None, None));
    assert_eq!(run.losses(), [(Loss::MissingValue, 2)].into());
}

#[test]
fn removing_and_assigning_nothing() {
    let mut run = Run::new(
        "kernel(|k| { @a[1] = 1; @a[2] = 2; @a[3] = 3; @a[1].remove(); @a[9].remove(); @a[2] = (); @b = 1; @b.remove(); });",
    );
    run.feed(&[kernel("k", 1)]);
    assert_eq!(run.rows("@a"), [("3".to_string(), vec![3])].into());
    assert_eq!(run.one("@b"), None);
}

#[test]
fn division_by_zero_ends_the_handler_and_is_counted() {
    let mut run = Run::new("kernel(|k| { @a = 10 / k.device; @b += 1; @c = 10 % (k.device - 1); });");
    run.feed(&[kernel("k", 1), kernel("k", 1).with(word::DEVICE, 1), kernel("k", 1).with(word::DEVICE, 2)]);
    assert_eq!((run.one("@a"), run.one("@b"), run.one("@c")), (Some(vec![5]), Some(vec![2]), Some(vec![0])));
    assert_eq!(run.losses(), [(Loss::DivisionByZero, 2)].into());
}

#[test]
fn unjoined_kernels_are_skipped_unless_the_handler_tests() {
    let events = [kernel("a", 1).with(word::LAUNCH_START, 40), kernel("a", 1).unjoined()];
    let mut skips = Run::new("kernel(|k| { @n += 1; @t = k.launch.time; });");
    skips.feed(&events);
    assert_eq!((skips.one("@n"), skips.one("@t")), (Some(vec![1]), Some(vec![40])));
    assert_eq!(skips.losses(), [(Loss::SkippedUnjoined, 1)].into());
    assert!(!skips.plan.probes[0].sees_unjoined);

    let mut tests = Run::new("kernel(|k| { if k.launch == () { @lost += 1; } @by[k.launch.time].count(); });");
    tests.feed(&events);
    assert_eq!(tests.one("@lost"), Some(vec![1]));
    assert_eq!(tests.rows("@by"), [("40".to_string(), vec![1]), ("-".to_string(), vec![1])].into());
    assert!(tests.losses().is_empty() && tests.plan.probes[0].sees_unjoined);
}

#[test]
fn tags_are_optional() {
    let mut run = Run::new("kernel(|k| @by[k.launch.tag].sum(k.duration));");
    run.feed(&[kernel("a", 3).with(word::LAUNCH_TAGGED, 1).with(word::LAUNCH_TAG, 0), kernel("a", 4)]);
    assert_eq!(run.rows("@by"), [("0".to_string(), vec![3]), ("-".to_string(), vec![4])].into());
}

#[test]
fn prints() {
    let mut run = Run::new(
        "let who = \"me\";
        kernel(|k| {
            print(\"plain\");
            print(`${who}: ${k.name} took ${k.duration.human} on ${k.comm}, graph ${k.graph}, ${k.duration > 5}, ${k.start + 1}`);
            print(k.duration);
            @v = 4; print(`${@v} ${@w[1]} ${(@v + 1).human}`);
        });
        kernel(|k| @w[2] = 1);",
    );
    run.feed(&[kernel("gemm", 7)]);
    assert_eq!(run.printed(), ["plain", "me: gemm took 7 Nanos on python3, graph -, 1, 1", "7", "4 - 5 None"]);
}

#[test]
fn exit_ends_the_handler() {
    let mut run = Run::new(
        "kernel(|k| { print(\"one\"); if k.duration > 1 { exit(k.duration); } else { exit(); } print(\"never\"); });",
    );
    run.feed(&[kernel("k", 3), kernel("k", 1)]);
    assert_eq!(run.printed(), ["one", "exit 3", "one", "exit 0"]);
}

#[test]
fn loops_are_unrolled() {
    let mut run = Run::new(
        "let n = 4;
        kernel(|k| {
            let total = 0;
            for i in 0..n { if i == 1 { continue; } total += i; @i[i].count(); }
            for i in 1..=3 { total += 100; if i == 2 { break; } }
            for f in [\"x\", \"y\"] { @f[f].count(); }
            @total = total;
            return;
            @never = 1;
        });",
    );
    run.feed(&[kernel("k", 1)]);
    assert_eq!(run.one("@total"), Some(vec![205]));
    assert_eq!(run.rows("@i").len(), 3);
    assert_eq!(run.rows("@f").into_keys().collect::<Vec<_>>(), ["x", "y"]);
    assert_eq!(run.one("@never"), None);
}

#[test]
fn every_nth_event() {
    let mut run = Run::new("kernel(#{every: 3}, |k| @n.count());");
    run.feed(&vec![kernel("k", 1); 7]);
    assert_eq!(run.one("@n"), Some(vec![3]), "the first, the fourth and the seventh");
}

#[test]
fn full_maps_are_counted_by_map() {
    let mut run = Run::new(
        "map(#{name: \"@small\", size: 2}); map(#{name: \"@plain\", size: 1});
        kernel(|k| { @small[k.duration].count(); @plain[k.duration] = 1; @after += 1; });",
    );
    run.feed(&[kernel("k", 1), kernel("k", 2), kernel("k", 3), kernel("k", 1)]);
    assert_eq!((run.rows("@small").len(), run.rows("@plain").len()), (2, 1));
    assert_eq!(run.losses(), [(Loss::MapFull, 3)].into());
    assert_eq!(run.one("@after"), Some(vec![4]));
}

#[test]
fn locals_hold_texts_and_missing_values() {
    let mut run = Run::new(
        "kernel(|k| {
            let who = if k.duration > 1 { k.comm } else { \"nobody in particular\" };
            @who[who].count();
            if who == \"nobody in particular\" { @nobody += 1; }
            let g = k.graph;
            let h = g ?? 5;
            { let g = 9; @inner = g; }
            @h = h; @g[g].count();
            let s = k.name; @s[s].count();
        });",
    );
    run.feed(&[kernel("a", 1), kernel("a", 2)]);
    assert_eq!(run.rows("@who").into_keys().collect::<Vec<_>>(), ["nobody in particular", "python3"]);
    assert_eq!(run.one("@nobody"), Some(vec![1]));
    assert_eq!((run.one("@inner"), run.one("@h")), (Some(vec![9]), Some(vec![5])));
    assert_eq!(run.rows("@g").into_keys().collect::<Vec<_>>(), ["-"]);
    assert_eq!(run.rows("@s").into_keys().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn a_variable_has_room_for_its_longest_text() {
    let mut run = Run::new(
        "kernel(|k| {
            let w = k.comm;
            if k.duration > 1 { w = \"a text of more than sixteen bytes\"; } else if k.duration == 1 { w = k.name; }
            @w[w].count();
        });",
    );
    run.feed(&[kernel("a name of more than sixteen bytes", 1), kernel("b", 2), kernel("c", 0)]);
    assert_eq!(
        run.rows("@w").into_keys().collect::<Vec<_>>(),
        ["a name of more than sixteen bytes", "a text of more than sixteen bytes", "python3"]
    );
}

#[test]
fn arithmetic_inside_an_alternative_still_ends_the_handler() {
    let mut run = Run::new("kernel(|k| { @r = (@m[1] + 1) ?? 7; @after = 1; }); kernel(|k| @m[2] = 1);");
    run.feed(&[kernel("k", 1)]);
    assert_eq!((run.one("@r"), run.one("@after")), (None, None));
    assert_eq!(run.losses(), [(Loss::MissingValue, 1)].into());
}

#[test]
fn units_follow_values() {
    use xputrace_model::schema::Unit;
    let plan = plan(
        "kernel(|k| {
            @t[k.start].sum(k.end - k.start); @half = k.duration / 2; @us.hist(k.duration / 1.us);
            @b.sum(k.dynamic_shared + k.static_shared); @n.count(); @more.avg(k.duration * 2); @later = @half + 1;
            @at = k.start; @soon = k.end + 1.ms; @since = k.end - @at; @within = k.start % 1.s;
        });",
    );
    let unit = |name: &str| plan.tables.iter().find(|it| it.name == name).map(|it| it.unit);
    assert_eq!(unit("@t"), Some(Unit::Nanos));
    assert_eq!(unit("@half"), Some(Unit::Nanos));
    assert_eq!(unit("@us"), Some(Unit::None));
    assert_eq!(unit("@b"), Some(Unit::Bytes));
    assert_eq!(unit("@n"), Some(Unit::None));
    assert_eq!(unit("@more"), Some(Unit::Nanos));
    assert_eq!(unit("@later"), Some(Unit::Nanos));
    assert_eq!((unit("@at"), unit("@soon")), (Some(Unit::Clock), Some(Unit::Clock)));
    assert_eq!((unit("@since"), unit("@within")), (Some(Unit::Nanos), Some(Unit::Nanos)));
}

/// A histogram's capacity counts its keys: each has room for all its buckets.
#[test]
fn the_capacity_of_a_histogram_counts_keys() {
    let mut run = Run::new("map(#{name: \"h\", size: 50}); kernel(|k| @h[k.stream].hist(k.duration));");
    let events: Vec<_> =
        (0..50).flat_map(|key| (0..40).map(move |bit| kernel("k", 1i64 << bit).with(word::STREAM, key))).collect();
    run.feed(&events);
    assert_eq!(run.losses(), [].into());
    assert_eq!(run.rows("@h").len(), 50 * 40, "buckets");
    let (_, diagnostics) = compiled("map(#{name: \"h\", evict: true}); kernel(|k| @h[k.stream].hist(k.duration));");
    assert_eq!(diagnostics.iter().map(|it| it.code).collect::<Vec<_>>(), ["evicting-histogram"]);
}

/// Totals have more than 64 bits, so an average never comes from a wrapped sum.
#[test]
fn averages_do_not_overflow() {
    let mut run = Run::new("kernel(|k| { @avg.avg(k.duration); @stats.stats(k.duration); });");
    run.feed(&[kernel("k", i64::MAX), kernel("k", i64::MAX), kernel("k", i64::MAX - 3)]);
    let average = |name: &str| {
        let table = run.plan.tables.iter().find(|it| it.name == name).expect("the map exists");
        let mut found = None;
        run.engine.for_each(table.storage.tracer().expect("of the tracer"), &mut |_, value| {
            let word = |at: usize| u64::from_le_bytes(value[at * 8..at * 8 + 8].try_into().expect("8 bytes"));
            found = table::average(table::total(word(1), word(2) as i64), word(0) as i64);
        });
        found
    };
    assert_eq!((average("@avg"), average("@stats")), (Some(i64::MAX - 1), Some(i64::MAX - 1)));
}

#[test]
fn the_size_of_the_table_of_stacks_can_be_said() {
    let size = |script: &str| {
        let plan = plan(script);
        plan.linux_stacks.map(|it| plan.image.maps[it].max_entries)
    };
    assert_eq!(size("profile(99.hz, |e| @[e.ustack].count());"), Some(16_384));
    assert_eq!(size("stacks(65_536); profile(99.hz, |e| @[e.ustack].count());"), Some(65_536));
    let (_, diagnostics) = compiled("stacks(7); profile(99.hz, |e| @[e.ustack].count());");
    assert_eq!(diagnostics.iter().map(|it| it.code).collect::<Vec<_>>(), ["stacks"]);
}

/// Dividing by a plain power of 1000 may convert nanoseconds, so the result has no unit. Any other
/// division keeps the unit.
#[test]
fn a_division_that_converts_leaves_no_unit() {
    use xputrace_model::schema::Unit;
    let plan = plan(
        "let ms = 1000000;
        kernel(|k| {
            @us.sum(k.duration / 1000); @ms.sum(k.duration / ms); @s.sum(k.duration / 1_000_000_000);
            @kib.sum(k.dynamic_shared / 1024); @share.sum(k.duration / 100); @each.sum(k.duration / k.grid.x);
        });",
    );
    let unit = |name: &str| plan.tables.iter().find(|it| it.name == name).map(|it| it.unit);
    for plain in ["@us", "@ms", "@s", "@kib"] {
        assert_eq!(unit(plain), Some(Unit::None), "{plain}");
    }
    for time in ["@share", "@each"] {
        assert_eq!(unit(time), Some(Unit::Nanos), "{time}");
    }
}

/// Likewise at the top level and in interpreted handlers.
#[test]
fn rhai_knows_the_widths_of_integers() {
    let test = "if [4294967295.i32, 4294967295.u32, 511.u8, 511.i8, 7.i64] != [-1, 4294967295, 255, -1, 7] { throw }";
    let (_, diagnostics) = compiled(&format!("{test} kernel(|k| @n.count());"));
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
}

#[test]
fn the_low_bits_of_an_integer_have_its_sign() {
    let mut run = Run::new(
        "kernel(|k| {
            @i32 = k.stream.i32; @u32 = k.stream.u32; @i16 = k.stream.i16; @u16 = k.stream.u16;
            @i8 = k.stream.i8; @u8 = k.stream.u8; @i64 = k.stream.i64; @constant = 4294967295.i32;
        });",
    );
    run.feed(&[kernel("k", 1).with(word::STREAM, 0xffff_fff0)]);
    for (map, value) in [
        ("@i32", -16),
        ("@u32", 0xffff_fff0),
        ("@i16", -16),
        ("@u16", 0xfff0),
        ("@i8", -16),
        ("@u8", 0xf0),
        ("@i64", 0xffff_fff0),
        ("@constant", -1),
    ] {
        assert_eq!(run.one(map), Some(vec![value]), "{map}");
    }
}

/// The clock is read again when a launch call returns only if a script needs it.
#[test]
fn the_end_of_launches_is_asked_for_where_it_matters() {
    for (wanted, script) in [
        (false, "kernel(|k| @time[k.name].sum(k.duration));"),
        (false, "kernel(|k| @latency.hist(k.start - k.launch.time));"),
        (false, "kernel(|k| @time[k.launch.ustack, k.name].sum(k.end - k.start));"),
        (false, "launch(|l| l.tag = 7); kernel(|k| @n[k.launch.tag].count());"),
        (true, "kernel(|k| @us.hist(k.launch.duration));"),
        (true, "kernel(|k| { @a = 1; if k.launch.end > k.start { @late.count() } });"),
        (true, "launch(|l| @n[l.api].count());"),
        (true, "kernel(interpret(|k| print(k.launch.end)));"),
    ] {
        assert_eq!(plan(script).demand.has(Detail::Ends), wanted, "{script}");
    }
}

/// The demand follows from the fields that handlers read, by whatever name. An interpreted handler
/// may read everything that it can reach.
#[test]
fn demand_follows_from_the_fields_that_are_read() {
    fn launches(it: Demand) -> bool {
        it.calls.contains_all(Calls::LAUNCHES)
    }
    let stacks = |it: Demand| launches(it) && it.has(Detail::Stacks);
    let joined = |it: Demand| launches(it) && !it.has(Detail::Stacks) && !it.has(Detail::Ends);
    let alone = |it: Demand| !it.activities.is_empty() && it.calls.is_empty() && !it.has(Detail::Stacks);
    let everything = |it: Demand| launches(it) && it.has(Detail::Stacks) && it.has(Detail::Ends);
    // Calls of a kind are recorded only if a handler asks for that kind.
    let memsets = |it: Demand| it.calls.is_empty() && it.activities == Activities::of(&[Activity::Memset]);
    let memsets_joined = |it: Demand| it.calls == Calls::of(&[Call::Memset, Call::Graph]);
    let memset_calls = |it: Demand| it.calls == Calls::of(&[Call::Memset]) && it.activities.is_empty();
    type Holds = fn(Demand) -> bool;
    let cases: [(&str, Holds); 21] = [
        ("memset(|m| @n[m.value].sum(m.bytes));", memsets),
        ("memset(|m| @n[m.launch.api].sum(m.bytes));", memsets_joined),
        ("launch(#{kinds: [\"memset\"]}, |l| @n[l.api].count());", memset_calls),
        ("kernel(|k| @n[k.name].count());", alone),
        ("kernel(|k| @n[k[\"launch\"][\"api\"]].count());", joined),
        ("kernel(|k| @n[k.launch[\"ustack\"]].count());", stacks),
        ("kernel(|k| if k[\"launch\"] == () { @lost.count() });", joined),
        ("fn stack_of(it) { it.launch.ustack } kernel(|k| @n[stack_of(k)].count());", stacks),
        ("kernel(|k| @n[k.tid].count());", joined),
        // The stack belongs to the CPU probe, or to no launch.
        ("uprobe(\"libc:read\", |e| @c[e.ustack].count()); kernel(|k| @n[k.launch.api].count());", joined),
        ("fn unused(x) { x.ustack } kernel(|k| @n[k.launch.api].count());", joined),
        ("kernel(interpret(|k| @n[k.name].count()));", alone),
        ("kernel(interpret(|k| @n[k[\"launch\"][\"api\"]].count()));", joined),
        ("kernel(interpret(|k| { let l = k.launch; let f = \"x\"; @n[l.api].count(); }));", joined),
        ("kernel(interpret(|k| { let it = k; @n[it.launch.ustack].count(); }));", stacks),
        ("fn call_of(l) { l.api } kernel(interpret(|k| @n[call_of(k.launch)].count()));", joined),
        ("let api = |l| l.api; kernel(interpret(|k| @n[api.call(k.launch)].count()));", joined),
        ("kernel(interpret(|k| { if k.name == \"k\" { let k = 1; } @n[k.launch.api].count(); }));", joined),
        ("let f = \"launch\"; kernel(interpret(|k| @n[k[f].api].count()));", everything),
        ("kernel(interpret(|k| print(k)));", everything),
        ("kernel(interpret(|k| { let all = [k]; print(all[0].launch.api); }));", everything),
    ];
    for (script, holds) in cases {
        let demand = plan(script).demand;
        assert!(holds(demand), "{script}: {demand:?}");
    }
}

#[test]
fn a_field_named_by_a_value_is_an_error_in_a_compiled_handler() {
    let (_, diagnostics) = compiled("let f = \"api\"; kernel(|k| @n[k.launch[f]].count());");
    assert_eq!(diagnostics.iter().map(|it| it.code).collect::<Vec<_>>(), ["launch-value"]);
}

#[test]
fn explain_claims_a_join_only_where_launches_are_recorded() {
    let why = |script: &str| plan(script).probes[0].why.join("; ");
    assert!(!why("kernel(|k| @n[k.name].count());").contains("is joined with"));
    assert!(why("kernel(|k| @n[k.launch.api].count());").contains("is joined with"));
    assert!(why("kernel(|k| @n[k.name].count()); launch(|l| @m[l.api].count());").contains("is joined with"));
}

/// Fields of a memset that its record may lack are `()`, whatever their type.
#[test]
fn a_memset_in_a_graph_has_no_value() {
    let mut run = Run::new("memset(|m| { @sum[m.memory_kind ?? \"none\"].sum(m.bytes); @by[m.value].count(); })");
    let kind = run.id("device") as i64;
    let memset = |known: i64| {
        let it = kernel("", 10).with(word::memset::BYTES, 64).with(word::memset::KNOWN, known);
        it.with(word::memset::VALUE, 7).with(word::memset::MEMORY_KIND, kind)
    };
    run.feed(&[memset(1), memset(0), memset(0)]);
    assert_eq!(run.rows("@sum"), BTreeMap::from([("device".to_owned(), vec![64]), ("none".to_owned(), vec![128])]));
    assert_eq!(run.rows("@by"), BTreeMap::from([("7".to_owned(), vec![1]), ("-".to_owned(), vec![2])]));
}

/// A handler at the marker skips calls of kinds that it did not ask for.
#[test]
fn a_launch_handler_in_linux_leaves_out_calls_of_other_kinds() {
    let tags = "launch(#{kinds: [\"kernel\"]}, |l| l.tag = 1);";
    let others = "launch(#{kinds: [\"memset\"]}, |l| @n.count());";
    let size = |script: &str| plan(script).image.programs[0].insns.len();
    assert!(size(&format!("{tags} {others}")) > size(tags), "alone it sees nothing else");
}

#[test]
fn a_cleared_map_is_kept_as_a_sum_where_compiled_handlers_only_add() {
    let kind = |handler: &str| {
        let script =
            format!("uprobe(\"libc:malloc\", |e| {{ {handler} }}); interval(1.s, || {{ print(@m); @m.clear(); }});");
        plan(&script).tables[0].kind
    };
    let plain = TableKind::Plain(Scalar::Int);
    assert_eq!(kind("@m[e.tid] += 1"), TableKind::Sum);
    assert_eq!(kind("@m[e.tid] -= e.arg0"), TableKind::Sum);
    assert_eq!(kind("@m[e.tid] += 1; if @m[e.tid] > 5 { exit() }"), plain, "a read needs all in one place");
    assert_eq!(kind("@m[e.tid] += 1; if e.tid in @m { exit() }"), plain);
    assert_eq!(kind("@m[e.tid] += 1; @m[0].remove();"), plain);
    assert_eq!(kind("@m[e.tid] += 1; @m[0] = 7;"), plain);
    assert_eq!(kind("@m[e.tid] |= 1"), plain);
}

#[test]
fn the_plan_tells_whether_lines_of_stacks_are_read() {
    for (script, expected) in [
        ("kernel(|k| @n[k.launch.ustack].count());", false),
        ("kernel(|k| @n[k.launch.ustack.lines].count());", true),
        ("kernel(|k| @n[k.launch.pystack.lines].count());", false),
        ("kernel(interpret(|k| @n[k.launch.ustack.lines].count()));", true),
        ("kernel(|k| @n[k.launch.ustack].count()); end(|| for it in @n.rows() { print(it.key.lines); });", true),
    ] {
        assert_eq!(plan(script).reads_lines, expected, "{script}");
    }
}
