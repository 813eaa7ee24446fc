//! Linux's verifier on compiled programs: the examples of the language, and random scripts with
//! every construct. Needs root; otherwise prints a line and passes.

use crate::support::{compiled, plan, plan_on};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use xputrace_bytecode::probe::{IdsWithin, PidNamespace};
use xputrace_bytecode::vm::{Engine, Env};
use xputrace_bytecode::{BpfMapId, Image, MapKind, MapSpec, Program, ProgramId, ProgramKind, helper};
use xputrace_model::catalog::{Catalog, MiniCatalog, TracepointFormat};
use xputrace_model::context::{GpuContext, WORDS};
use xputrace_model::diagnostic::Severity;
use xputrace_model::plan::Plan;

/// Scripts whose handlers must all be accepted.
const EXAMPLES: &[&str] = &[
    "kernel(|k| @time[k.name].sum(k.duration));",
    "kernel(|k| if k.duration > 100.ms { print(`${k.name} took ${k.duration} ns\\n${k.launch.ustack}`) });",
    "kernel(|k| @latency.hist(k.start - k.launch.time));",
    "kernel(|k| @gpu[k.launch.ustack, k.name].sum(k.duration)); end(|| print(@gpu));",
    "uprobe(\"./server:handle_request\", |e| @request[e.tid] = e.arg0);
     launch(|l| l.tag = @request[l.tid]);
     kernel(|k| @gpu_ns[k.launch.tag].sum(k.duration));",
    "uprobe(\"libc:malloc\", |e| @bytes[e.comm].hist(e.arg0));",
    "uretprobe(\"libc:read\", |e| @us.hist(e.duration / 1.us));",
    "uprobe(\"libc:write\", |e| @start[e.tid] = e.time);
     uretprobe(\"libc:write\", |e| { if e.tid in @start { @us2.hist((e.time - @start[e.tid]) / 1.us); @start[e.tid].remove(); } });",
    "tracepoint(\"sched:sched_switch\", |e| @switches[e.prev_comm].count());",
    "profile(99.hz, |e| @cpu[e.ustack].count());",
    "for f in [\"cudaMalloc\", \"cudaFree\"] { uprobe(`libcudart:${f}`, |e| @calls[f].count()); }",
    "uprobe(\"libc:read\", |e| @time.sum(e.arg2)); interval(1.s, || { print(@time.top(5)); @time.clear(); });",
    "uprobe(\"libc:read\", |e| @n[e.pid].quantiles(e.arg2)); interval(1.s, || print(@n));",
    "uprobe(\"libc:open\", |e| { print(`${str(e.arg0)} by ${e.comm} ${e.pid}`); @f[str(e.arg0, 64)].count(); if str(e.arg1) == \"x\" { exit(3); } });",
    "uretprobe(\"libc:read\", |e| { @bytes[e.entry.arg0].sum(e.retval); @when = e.entry.time; });",
    "uprobe(\"libc:mem*\", |e| @f[e.func, e.probe].count());",
    "launch(|l| { if l.symbol == \"_Z3foo\" { l.tag = l.grid.size + l.stream; } });",
    "tracepoint(\"syscalls:sys_enter_write\", #{scope: \"system\", every: 10}, |e| { @fd[e.fd, e.cpu, e.uid, e.gid].stats(e.count); @c[e.cgroup].lhist(e.count, 0, 4096, 64); });",
    "uprobe(\"libc:malloc\", |e| @[`${e.comm}:${e.arg0}`].count());",
    "uprobe(\"libc:open\", |e| { @[`${str(e.arg0, 64)}:${e.arg1}/${e.arg2 > 0}:${e.comm}`].count(); @last[e.tid] = e.comm + \"!\"; });
     uretprobe(\"libc:open\", |e| { if @last[e.tid] == `${e.comm}!` { @same[`${@last[e.tid]} ${e.retval}`].count(); } });",
    "fn class(n) { if n < 10 { return \"small\"; } if n > 1000 { return `${n / 1000}k`; } \"big\" }
     fn over(e, limit) { e.arg0 > limit }
     uprobe(\"libc:malloc\", |e| { if over(e, 64) { @[class(e.arg0), e.comm].count(); } });",
    "uprobe(\"libc:malloc\", |e| { let s = e.comm + \":\"; for i in 0..3 { s += `${e.arg0 >> i},`; } @[s].count(); });",
    "uprobe(\"libc:malloc\", |e| @[switch e.arg0 { 0 => \"none\", 17 if e.arg1 > 3 => \"odd\", 1..=16 => \"small\", _ => e.comm }].count());",
    "usdt(\"./server:shop:sold\", |e| @price[str(e.arg1)].hist(e.arg0));",
    "usdt(\"./server:shop:*\", |e| { @all[e.func, e.arg11 ?? 0, e.arg2].count(); if e.arg0 == () { @none.count(); } @s.sum(e.arg1 + e.arg3); });",
    "usdt(\"./server::sold\", |e| { for i in 0..8 { if e.arg0 > i && e.arg1 != e.arg2 { @n[i, e.arg3 ?? e.arg4, e.arg5].sum(e.arg6); } } });",
    "profile(99.hz, |e| { @k[e.kstack].count(); @best[e.comm].max(e.time); @worst.min(e.time); @mean[e.cpu].avg(e.time); });",
];

#[test]
fn linux_accepts_the_examples() {
    if !can_load() {
        return;
    }
    for script in EXAMPLES {
        load_all(&plan(script)).unwrap_or_else(|log| panic!("{script}\n{log}"));
    }
}

/// Linux accepts whatever the compiler accepts: scripts at the limits of what a program may be.
#[test]
fn linux_accepts_what_the_compiler_accepts() {
    if !can_load() {
        return;
    }
    let many = |n: usize, each: &dyn Fn(usize) -> String| (0..n).map(each).collect::<String>();
    let bodies = [
        // Paths: each branch doubles the possible values of a variable.
        format!(
            "let x = 0; {} if x > 3 {{ @n.count(); }}",
            many(24, &|i| format!("if e.arg{} > {i} {{ x += {}; }}", i % 6, 1 << i))
        ),
        format!(
            "let n = 0; {} if n > 9 {{ @m.count(); }}",
            many(20, &|i| format!("let a{i} = twice(e.arg0 + {i}); if a{i} > 7 {{ n += a{i}; }}"))
        ),
        "let s = str(e.arg0); let n = 0; for i in 0..64 { if s.contains(\"q\") { n += 1; } } if n > 5 { @n.count(); }"
            .into(),
        format!(
            "let s = str(e.arg0); {}",
            many(12, &|i| format!("if s.contains(\"abcdefghijkl{i}\") {{ @m[{i}].count(); }}"))
        ),
        format!(
            "if str(e.arg0, 240).contains(\"{0}\") {{ @m.count(); }} if str(e.arg1, 240).ends_with(\"{0}\") {{ @m.count(); }}",
            "a".repeat(200)
        ),
        // Jumps, including those that Linux lengthens.
        many(400, &|_| "@n += 1;".into()),
        many(1100, &|_| "@n += 1;".into()),
        many(3000, &|_| "@m.count();".into()),
        many(400, &|i| format!("if e.arg0 == {i} {{ @m[{i}].count(); }}")),
        many(250, &|i| format!("@n += e.arg1 / (e.arg0 + {i});")),
        // Maps.
        many(62, &|i| format!("@m{i}[e.pid].count();")),
        many(64, &|i| format!("@m{i}.count();")),
        // Stack.
        format!("{} @n = v59;", many(60, &|i| format!("let v{i} = e.arg0 + {i};"))),
        many(200, &|i| format!("print(`${{e.comm}} ${{e.arg0}} {i}`);")),
    ];
    let mut refused = Vec::new();
    for body in bodies {
        let script =
            format!("fn twice(x) {{ if x > 1000 {{ return 5; }} x * 2 }}\nuprobe(\"libc:read\", |e| {{ {body} }});");
        let (plan, diagnostics) = compiled(&script);
        match diagnostics.iter().find(|it| it.severity == Severity::Error) {
            Some(error) => refused.push(error.code),
            None => load_all(&plan).unwrap_or_else(|log| panic!("{}\n{log}", &script[..script.len().min(300)])),
        }
    }
    assert_eq!(refused, ["too-large", "too-large", "too-many-maps", "stack-too-large"]);
}

#[test]
fn too_many_handlers_are_refused_in_time() {
    let script = "for i in 0..100_000 { uprobe(\"libc:malloc\", |e| @[i].count()) }";
    let codes: Vec<_> = compiled(script).1.iter().map(|it| it.code).collect();
    assert_eq!(codes, ["too-many-handlers"]);
}

/// A machine in a pid namespace, which can tell the programs of a process apart.
struct Namespaced;

/// As on some machine; the verifier accepts any offsets.
const IDS_WITHIN: IdsWithin = IdsWithin { group_leader: 1400, pid: 1500, number: 112, namespace: 120, inode: 136 };

impl Catalog for Namespaced {
    fn tracepoint(&self, category: &str, name: &str) -> Result<TracepointFormat, String> {
        MiniCatalog.tracepoint(category, name)
    }

    fn tracepoints(&self) -> Result<Vec<String>, String> {
        MiniCatalog.tracepoints()
    }

    fn pid_namespace(&self) -> Option<PidNamespace> {
        Some(PidNamespace { device: 4, inode: 4_026_531_836, within: Some(IDS_WITHIN) })
    }

    fn exec_id_offset(&self) -> Option<u32> {
        Some(2000)
    }
}

#[test]
fn linux_accepts_the_examples_of_a_container() {
    if !can_load() {
        return;
    }
    for script in EXAMPLES {
        load_all(&plan_on(script, &Namespaced)).unwrap_or_else(|log| panic!("{script}\n{log}"));
    }
}

#[test]
fn linux_accepts_random_scripts_of_every_construct() {
    if !can_load() {
        return;
    }
    let seen = RefCell::new(Coverage::default());
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 400, failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    runner
        .run(&script(), |script| {
            let plan = plan(&script);
            seen.borrow_mut().note(&script, &plan);
            load_all(&plan).map_err(|log| TestCaseError::fail(format!("{script}\n{log}")))
        })
        .unwrap_or_else(|error| panic!("{error}"));
    let seen = seen.into_inner();
    println!("{seen}");
    let missing: Vec<String> = constructs().into_iter().filter(|it| !seen.constructs.contains_key(it)).collect();
    assert!(missing.is_empty(), "never generated: {missing:?}");
}

#[test]
fn linux_and_the_engine_compute_the_same() {
    if !can_load() {
        return;
    }
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 200, failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let compared = RefCell::new(0);
    let text = |it: &[u8; 8]| Just(i64::from_le_bytes(*it));
    let event =
        proptest::collection::vec(prop_oneof![0i64..8, any::<i64>(), text(b"abababab"), text(b"bab\0\0\0\0\0")], WORDS);
    runner
        .run(&(script(), proptest::collection::vec(event, 1..6)), |(script, events)| {
            let plan = plan(&script);
            let programs: Vec<ProgramId> = (0..plan.image.programs.len())
                .map(ProgramId::at)
                .filter(|it| plan.image.programs[*it].kind == ProgramKind::Syscall)
                .filter(|it| !calls_engine(&plan.image.programs[*it]))
                .collect();
            let mut engine = Engine::new(&plan.image, &programs, &mut |_, _| None).expect("the engine takes it");
            let maps: Vec<OwnedFd> = plan.image.maps.iter().map(|it| create_map(it).expect("created")).collect();
            let loaded: Vec<OwnedFd> =
                programs.iter().map(|it| load(&plan.image.programs[*it], &plan.image, &maps).expect("loads")).collect();
            for event in &events {
                let words: Vec<u64> = event.iter().map(|it| *it as u64).collect();
                let words: GpuContext = words.try_into().expect("64 words");
                for (index, fd) in programs.iter().zip(&loaded) {
                    engine.run_words(*index, &words, &mut Silent).expect("no fault");
                    run_in_linux(fd, &words);
                }
            }
            for (index, spec) in plan.image.maps.iter().enumerate() {
                if matches!(spec.kind, MapKind::Hash | MapKind::Array) {
                    let mut expected = BTreeMap::new();
                    engine.for_each(BpfMapId::at(index), &mut |key, value| {
                        expected.insert(key.to_vec(), value.to_vec());
                    });
                    if !expected.is_empty() {
                        *compared.borrow_mut() += expected.len();
                        prop_assert_eq!(&dump(&maps[index], spec), &expected, "{}\n{}", spec.name, script);
                    }
                }
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    println!("{} elements compared", compared.borrow());
    assert!(compared.into_inner() > 100);
}

/// Accepts every record, like a ring buffer in Linux that has room.
struct Silent;

impl Env for Silent {
    fn output(&mut self, _map: BpfMapId, _data: &[u8]) -> bool {
        true
    }
}

fn calls_engine(program: &Program) -> bool {
    program.insns.iter().any(|it| it.code == 0x85 && it.imm >= helper::NAME_TEXT)
}

fn run_in_linux(program: &OwnedFd, words: &GpuContext) {
    let mut attr = Attr::new();
    attr.u32(0, program.as_raw_fd() as u32);
    attr.u32(40, std::mem::size_of_val(words) as u32);
    attr.u64(48, words.as_ptr() as u64);
    assert_eq!(attr.raw(BPF_PROG_TEST_RUN), 0, "{}", std::io::Error::last_os_error());
}

fn dump(map: &OwnedFd, spec: &MapSpec) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut key: Option<Vec<u8>> = None;
    loop {
        let (mut next, mut value) = (vec![0u8; spec.key_size as usize], vec![0u8; spec.value_size as usize]);
        let mut attr = Attr::new();
        attr.u32(0, map.as_raw_fd() as u32);
        attr.u64(8, key.as_ref().map_or(0, |it| it.as_ptr() as u64));
        attr.u64(16, next.as_mut_ptr() as u64);
        if attr.raw(BPF_MAP_GET_NEXT_KEY) != 0 {
            return found;
        }
        let mut attr = Attr::new();
        attr.u32(0, map.as_raw_fd() as u32);
        attr.u64(8, next.as_ptr() as u64);
        attr.u64(16, value.as_mut_ptr() as u64);
        assert_eq!(attr.raw(BPF_MAP_LOOKUP_ELEM), 0);
        found.insert(next.clone(), value);
        key = Some(next);
    }
}

/// Returns the constructs in docs/LANGUAGE.md's table, from its second column.
fn constructs() -> Vec<String> {
    let text = include_str!("../../../../docs/LANGUAGE.md");
    let table = text.split("<!-- constructs -->").nth(1).expect("the table is marked").replace("\\|", "\u{1}");
    let code =
        |row: &str| Some(row.split('|').nth(2)?.trim().strip_prefix('`')?.strip_suffix('`')?.replace('\u{1}', "|"));
    table.lines().filter_map(code).collect()
}

#[derive(Default)]
struct Coverage {
    constructs: BTreeMap<String, usize>,
    helpers: BTreeSet<i32>,
    programs: usize,
    insns: usize,
    largest: usize,
}

impl Coverage {
    fn note(&mut self, script: &str, plan: &Plan) {
        for construct in constructs() {
            if script.contains(&construct) {
                *self.constructs.entry(construct).or_default() += 1;
            }
        }
        for program in &plan.image.programs {
            self.programs += 1;
            self.insns += program.insns.len();
            self.largest = self.largest.max(program.insns.len());
            self.helpers.extend(program.insns.iter().filter(|it| it.code == 0x85).map(|it| it.imm));
        }
    }
}

impl std::fmt::Display for Coverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} programs, {} instructions, largest {}", self.programs, self.insns, self.largest)?;
        writeln!(f, "helpers: {:?}", self.helpers)?;
        self.constructs.iter().try_for_each(|(construct, n)| writeln!(f, "{n:5} {construct}"))
    }
}

// ---- random scripts -------------------------------------------------------------------------

fn script() -> impl Strategy<Value = String> {
    let probe = prop_oneof![
        Just(("uprobe(\"libc:read\", |e| {", "e", &["e.arg0", "e.arg5", "e.uid", "e.gid", "e.cpu", "e.cgroup"][..])),
        Just(("uprobe(\"libc:mem*\", #{every: 10}, |e| {", "e", &["e.arg1", "e.arg2", "e.arg3", "e.arg4"][..])),
        Just(("uretprobe(\"libc:read\", |e| {", "e", &["e.retval", "e.duration", "e.entry.arg2", "e.entry.time"][..])),
        Just(("tracepoint(\"sched:sched_switch\", |e| {", "e", &["e.prev_pid", "e.prev_state", "e.args.next_pid"][..])),
        Just(("profile(99.hz, |e| {", "e", &["e.cpu", "e.uid"][..])),
        Just((
            "kernel(|k| {",
            "k",
            &["k.duration", "k.grid.size", "k.launch.time", "k.launch.block.x", "k.registers"][..]
        )),
        Just(("launch(|l| { l.tag = 1;", "l", &["l.grid.x", "l.block.size", "l.stream", "l.dynamic_shared"][..])),
    ];
    proptest::collection::vec(
        (probe, proptest::collection::vec(any::<[u8; 24]>(), 1..5)).prop_map(|((open, event, fields), bytes)| {
            let mut body = String::new();
            for bytes in bytes {
                let mut choice = Choice { bytes, at: 0, event, fields };
                body += &choice.statement(2);
                body.push('\n');
            }
            format!("{open}\n{body}}});")
        }),
        1..4,
    )
    .prop_map(|handlers| {
        format!("let n = 3;\nlet names = [1, 20, 300, 4000];\nfn twice(x) {{ if x > 1000 {{ return x; }} x * 2 }}\n{}\n{REST}", handlers.join("\n"))
    })
}

/// The end of every random script: a map that is only read would be a mistake.
const REST: &str = "uprobe(\"libc:free\", |e| { @plain[1] = e.arg0; @pair[1, 1] = 1; });
interval(1.s, || { print(@live); @live.clear(); });";

/// Bytes that determine what is generated; shrinking them simplifies the script.
struct Choice<'a> {
    bytes: [u8; 24],
    at: usize,
    event: &'a str,
    fields: &'a [&'a str],
}

impl Choice<'_> {
    fn of(&mut self, n: usize) -> usize {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte as usize % n
    }

    fn number(&mut self, depth: usize) -> String {
        let simple = depth == 0;
        match self.of(if simple { 4 } else { 17 }) {
            0 => "7".into(),
            1 => self.fields[self.of(self.fields.len())].into(),
            2 => format!("{}.time", self.event),
            3 => "n".into(),
            4 => format!("({} {} {})", self.number(depth - 1), ["+", "-", "*"][self.of(3)], self.number(depth - 1)),
            5 => format!("({} / ({} | 1))", self.number(depth - 1), self.number(depth - 1)),
            6 => format!("({} % ({} | 1))", self.number(depth - 1), self.number(depth - 1)),
            7 => format!("({} {} {})", self.number(depth - 1), ["&", "|", "^"][self.of(3)], self.number(depth - 1)),
            8 => format!("({} {} {})", self.number(depth - 1), ["<<", ">>"][self.of(2)], self.number(depth - 1)),
            9 => format!("(@plain[{}] ?? {})", self.number(depth - 1), self.number(depth - 1)),
            10 => format!(
                "(if {} {{ {} }} else {{ {} }})",
                self.truth(depth - 1),
                self.number(depth - 1),
                self.number(depth - 1)
            ),
            11 => format!("{}({}, {})", ["min", "max"][self.of(2)], self.number(depth - 1), self.number(depth - 1)),
            12 => format!("abs({})", self.number(depth - 1)),
            13 => "-7".into(),
            14 => "100.ms".into(),
            15 => {
                let width = ["i8", "u8", "i16", "u16", "i32", "u32", "i64"][self.of(7)];
                format!("({}).{width}", self.number(depth - 1))
            }
            _ => format!("@plain[{}]", self.number(depth - 1)),
        }
    }

    fn truth(&mut self, depth: usize) -> String {
        if depth == 0 {
            return format!("{} > 3", self.number(0));
        }
        let event = self.event;
        match self.of(13) {
            0 => format!(
                "{} {} {}",
                self.number(depth - 1),
                ["==", "!=", "<", "<=", ">", ">="][self.of(6)],
                self.number(depth - 1)
            ),
            1 => format!("({} && {})", self.truth(depth - 1), self.truth(depth - 1)),
            2 => format!("({} || {})", self.truth(depth - 1), self.truth(depth - 1)),
            3 => format!("!({})", self.truth(depth - 1)),
            4 => format!("{}.comm == \"python3\"", self.event),
            5 => format!("{} in @plain", self.number(depth - 1)),
            6 => format!("[{}, {}] in @pair", self.number(depth - 1), self.number(depth - 1)),
            7 => format!("@plain[{}] == ()", self.number(depth - 1)),
            8 => format!("{event}.comm.contains(\"{}\")", self.part()),
            9 => format!("{event}.comm.starts_with(\"{}\")", self.part()),
            10 => format!("{event}.comm.ends_with(\"{}\")", self.part()),
            11 if event == "e" => format!("str(e.time).contains(\"{}\")", self.part()),
            _ if self.event == "k" => "k.name != \"gemm\"".into(),
            _ => "true".into(),
        }
    }

    /// Returns a part of an event's name.
    fn part(&mut self) -> &'static str {
        ["a", "ab", "bab", "abababab", "babababababababa", "ababababababababa"][self.of(6)]
    }

    fn statement(&mut self, depth: usize) -> String {
        let event = self.event;
        match self.of(32) {
            0 => format!("@count[{}.comm].count();", event),
            1 => format!("@sum.sum({});", self.number(depth)),
            2 => format!("@min[{}].min({});", self.number(1), self.number(depth)),
            3 => format!("@max.max({});", self.number(depth)),
            4 => format!("@avg[{}.pid].avg({});", event, self.number(depth)),
            5 => format!("@stats[{}.tid].stats({});", event, self.number(depth)),
            6 => format!("@hist[{}].hist({});", self.number(1), self.number(depth)),
            7 => format!("@lin.lhist({}, 0, 1000, 10);", self.number(depth)),
            8 => format!("@quant.quantiles({});", self.number(depth)),
            9 => format!("@live[{}].stats({});", self.number(1), self.number(depth)),
            10 => format!("@plain[{}] = {};", self.number(1), self.number(depth)),
            11 => format!("@plain[{}] += {};", self.number(1), self.number(depth)),
            12 => format!("@pair[{}, {}] -= 1;", self.number(1), self.number(0)),
            13 => format!("@plain[{}].remove();", self.number(1)),
            14 => format!("@plain[{}] = ();", self.number(1)),
            15 => format!("if {} {{ {} }} else {{ {} }}", self.truth(depth), self.inner(depth), self.inner(depth)),
            16 => format!("let x = {}; x += {}; @plain[x] = x;", self.number(depth), self.number(1)),
            17 => format!("for i in 0..n {{ if {} {{ break; }} @count[{}.comm].count(); }}", self.truth(1), event),
            18 => format!("for i in 0..n {{ if {} {{ continue; }} @sum.sum(i); }}", self.truth(1)),
            19 => format!(
                "print(`v ${{{}}} of ${{{}.comm.pad(-16)}}, ${{({}).human}} ${{({}).hex.pad(20)}}`);",
                self.number(depth),
                event,
                self.number(1),
                self.number(1)
            ),
            20 => format!("if {} {{ exit(abs({}) % 256); }}", self.truth(depth), self.number(1)),
            21 => format!("if {} {{ return; }}", self.truth(depth)),
            23 => format!("@joined[`${{{event}.comm}}:${{{}}}:${{{}}}`].count();", self.number(depth), self.truth(1)),
            24 => format!(
                "@kind[switch {} {{ 0 => \"zero\", 1..=9 => \"few\", _ => {event}.comm + \"!\" }}].count();",
                self.number(depth)
            ),
            25 => format!("@plain[1] = twice({});", self.number(depth)),
            27 => format!("{} && @sum.sum({});", self.truth(depth), self.number(1)),
            28 => format!("@plain[2] = @plain[{}].take() ?? names[{}];", self.number(1), self.number(1)),
            29 => format!("if {} {{ print(@live); @live.clear(); }}", self.truth(1)),
            30 => format!("print(#{{n: {}, comm: {event}.comm, of: names[n]}});", self.number(depth)),
            26 => format!("@hexed[({}).hex, `<${{({}).hex}}>`].count();", self.number(depth), self.number(1)),
            22 => match event {
                "k" => "@stack[k.launch.ustack, k.name].count(); @who[0] = k.comm;".into(),
                "l" => "@where[l.symbol].count(); @tag_seen = l.pid;".into(),
                _ => "@ustack[e.ustack].count(); @kstack[e.kstack].count(); @who[0] = e.comm;".into(),
            },
            _ => match event {
                "e" => "let s = str(e.time, 32); if s != \"x\" { @text[s].count(); } @func[e.probe].count();".into(),
                _ => "@x |= 1; @x &= 3; @x ^= 1; @y *= 2; @y = 1;".into(),
            },
        }
    }

    fn inner(&mut self, depth: usize) -> String {
        if depth == 0 { "@n.count();".into() } else { self.statement(depth - 1) }
    }
}

// ---- loading, by the system call itself -----------------------------------------------------

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_GET_NEXT_KEY: libc::c_int = 4;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_TEST_RUN: libc::c_int = 10;

#[allow(clippy::print_stdout, reason = "a test says why it did not run")]
fn can_load() -> bool {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("skipped: loading programs into Linux needs root");
    }
    root
}

/// Loads every program of a plan, except those that call helpers of the tracer's engine.
fn load_all(plan: &Plan) -> Result<(), String> {
    let maps = plan.image.maps.iter().map(create_map).collect::<Result<Vec<_>, _>>()?;
    for program in &plan.image.programs {
        if !calls_engine(program) {
            load(program, &plan.image, &maps)?;
        }
    }
    Ok(())
}

fn create_map(spec: &MapSpec) -> Result<OwnedFd, String> {
    let inner = spec.inner.as_ref().map(|it| create_map(it)).transpose()?;
    let mut attr = Attr::new();
    // The maps of so many tests would not fit at once, and the verifier ignores their size.
    let entries = if matches!(spec.kind, MapKind::Hash | MapKind::PercpuHash | MapKind::LruHash) {
        spec.max_entries.min(64)
    } else {
        spec.max_entries
    };
    for (at, value) in [
        (0, spec.kind as u32),
        (4, spec.key_size),
        (8, spec.value_size),
        (12, entries),
        (16, spec.flags),
        (20, inner.as_ref().map_or(0, |it| it.as_raw_fd() as u32)),
    ] {
        attr.u32(at, value);
    }
    attr.call(BPF_MAP_CREATE).map_err(|error| format!("creating the map {spec:?}: {error}"))
}

fn load(program: &Program, image: &Image, maps: &[OwnedFd]) -> Result<OwnedFd, String> {
    let mut insns = program.insns.clone();
    for (at, map) in &program.map_refs {
        insns[*at].imm = maps[map.index()].as_raw_fd();
    }
    let code: Vec<u8> = insns.iter().flat_map(|it| it.to_bytes()).collect();
    let mut log = vec![0u8; 1 << 22];
    let license = c"GPL";
    let mut attr = Attr::new();
    let (kind, flags) = match &program.kind {
        ProgramKind::Uprobe | ProgramKind::Uretprobe => (2, 0),
        ProgramKind::Tracepoint { .. } => (5, 0),
        ProgramKind::PerfEvent => (7, 0),
        ProgramKind::Syscall | ProgramKind::Device { .. } => (31, 1 << 4),
        ProgramKind::Section(name) => unreachable!("only compiled objects have the section {name}"),
    };
    attr.u32(0, kind);
    attr.u32(4, insns.len() as u32);
    attr.u64(8, code.as_ptr() as u64);
    attr.u64(16, license.as_ptr() as u64);
    attr.u32(44, flags);
    // The log of a large program exceeds the buffer, so request it only if needed.
    if let Ok(fd) = attr.call(BPF_PROG_LOAD) {
        return Ok(fd);
    }
    attr.u32(24, 1);
    attr.u32(28, log.len() as u32);
    attr.u64(32, log.as_mut_ptr() as u64);
    attr.call(BPF_PROG_LOAD).map_err(|error| {
        let end = log.iter().position(|it| *it == 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&log[..end]).into_owned();
        let tail: Vec<&str> = text.lines().rev().take(60).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        format!("{}: {error}\n{}\n{}", program.name, tail.join("\n"), xputrace_bytecode::disasm::text(program, image))
    })
}

/// `union bpf_attr`, by offset (`include/uapi/linux/bpf.h`).
struct Attr([u64; 18]);

impl Attr {
    fn new() -> Self {
        Attr([0; 18])
    }

    fn u32(&mut self, at: usize, value: u32) {
        let shift = (at % 8) * 8;
        self.0[at / 8] |= u64::from(value) << shift;
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.0[at / 8] = value;
    }

    fn call(&self, command: libc::c_int) -> Result<OwnedFd, std::io::Error> {
        let fd = self.raw(command);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: Linux just created this descriptor; nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }

    fn raw(&self, command: libc::c_int) -> libc::c_long {
        // SAFETY: the attribute outlives the call, and so do the caller's buffers whose addresses
        // it contains.
        unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_ptr(), std::mem::size_of_val(&self.0) as u32) }
    }
}
