//! What is woven, as text; and NVIDIA's assembler accepts it.

mod common;

use common::{accept, assemble, assert_assembles, corpus, fixture, fixtures, only_faithful};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use xputrace_ptx::{ADDRESS, Module, Point, Site, WeaveError};

/// Counts, at a place of its own in global memory, that a thread came to a point.
fn count(word: usize) -> Option<String> {
    Some(format!(".reg .b64 %a; mov.u64 %a, counts; red.global.add.u64 [%a+{}], 1;", 8 * word))
}

/// Weaves into a kernel of a fixture alone, and compares with a golden text.
#[track_caller]
fn check(fixture_name: &str, kernel: &str, golden: &str, insert: &mut dyn FnMut(&Site) -> Option<String>) {
    let mut module = Module::parse(&fixture(fixture_name)).unwrap();
    module.only(&[kernel]).unwrap();
    module.declare(".visible .global .align 8 .u64 counts[16];").unwrap();
    let woven = module.weave(&[kernel], insert).unwrap();
    assert!(woven > 0, "nothing was woven");
    accept(golden, &module);
}

#[test]
fn entry_and_exits() {
    check("first", "first", "entry-and-exits", &mut |site| match site.point {
        Point::Entry => count(0),
        Point::Exit => count(1),
        _ => None,
    });
}

#[test]
fn exits_of_functions_that_a_kernel_calls() {
    check("flow", "flow", "exits-in-functions", &mut |site| (site.point == Point::Exit).then(|| count(1))?);
}

/// Records the address of every access, and its bytes before it, its kind behind it.
fn record_access(site: &Site) -> Option<String> {
    match site.point {
        Point::BeforeAccess(access) => {
            let bytes = access.bytes.unwrap_or(0);
            Some(format!("st.global.v2.u64 [counts], {{{ADDRESS}, {bytes}}};"))
        }
        Point::AfterAccess(access) => {
            Some(format!("red.global.add.u64 [counts+{}], {ADDRESS};", access.kind as u8 * 8))
        }
        _ => None,
    }
}

#[test]
fn accesses_in_all_spaces() {
    check("memory", "spaces", "accesses-spaces", &mut record_access);
}

#[test]
fn atomics_that_give_something_back() {
    check("memory", "atomics", "accesses-atomics", &mut |site| match site.point {
        Point::AfterAccess(access) if access.kind == xputrace_ptx::AccessKind::Atomic => count(0),
        _ => None,
    });
}

#[test]
fn guarded_accesses_and_barriers() {
    check("memory", "guarded", "accesses-guarded", &mut |site| match site.point {
        Point::BeforeBarrier => count(8),
        Point::AfterBarrier => count(9),
        _ => record_access(site),
    });
}

/// Counts that a thread came to a call, by the length of the function's name.
fn count_call(site: &Site) -> Option<String> {
    (site.point == Point::BeforeCall).then(|| count(site.instruction?.callee()?.len()))?
}

#[test]
fn calls_whose_parameters_are_passed_in_a_scope() {
    check("first", "first", "calls", &mut count_call);
}

/// Calls that people write: with a guard, without a scope, with registers, one after another, and in a function.
const CALLS: &str = ".version 9.0 .target sm_90 .address_size 64
    .func f() { ret; }
    .func (.param .b32 r) gg(.param .b32 p) { .reg .b32 %v; ld.param.b32 %v, [p]; call.uni f; st.param.b32 [r], %v; ret; }
    .visible .entry k(.param .u64 p) {
        .reg .b64 %a; .reg .b32 %v<3>; .reg .pred %p;
        call.uni f;
        ld.param.u64 %a, [p];
        mov.u32 %v1, %tid.x;
        setp.gt.u32 %p, %v1, 5;
        @%p call f;
        { .param .b32 x, y; st.param.b32 [x], %v1; @!%p call (y), gg, (x); ld.param.b32 %v2, [y]; }
        { .param .b32 x, y; .reg .pred %own; setp.lt.u32 %own, %v1, 3; st.param.b32 [x], %v2; @%own call (y), gg, (x); ld.param.b32 %v2, [y];
          st.param.b32 [x], %v2; call.uni (y), gg, (x); ld.param.b32 %v2, [y]; }
        .param .b32 x, y;
        st.param.b32 [x], %v2;
        call.uni (y), gg, (x);
        ld.param.b32 %v2, [y];
        call.uni (%v2), gg, (%v1);
        st.global.b32 [%a], %v2;
        ret;
    }";

#[test]
fn calls_of_all_forms() {
    let mut module = Module::parse(CALLS).unwrap();
    module.declare(".visible .global .align 8 .u64 counts[16];").unwrap();
    assert_eq!(module.weave(&["k"], &mut count_call), Ok(8));
    accept("calls-of-all-forms", &module);
}

#[test]
fn copies_have_two_accesses() {
    check("memory", "copies", "accesses-copies", &mut |site| match site.point {
        Point::BeforeAccess(access) if access.is_asynchronous => record_access(site),
        _ => None,
    });
}

#[test]
fn accesses_of_hopper() {
    check("hopper", "tensor", "accesses-hopper", &mut record_access);
}

/// A kernel in clusters stays one, and memory of other blocks is accessed as it says.
#[test]
fn accesses_of_clusters() {
    check("clusters", "ring", "accesses-cluster-generic", &mut record_access);
    check("clusters", "windows", "accesses-cluster", &mut record_access);
}

#[test]
fn basic_blocks() {
    let mut blocks = 0;
    check("flow", "table", "blocks", &mut |site| match site.point {
        Point::BlockBegin => {
            blocks += 1;
            Some(format!("/* block {blocks} */ .reg .b32 %begin{blocks}; mov.u32 %begin{blocks}, {blocks};"))
        }
        Point::BlockEnd => Some(format!(".reg .b32 %end{blocks}; mov.u32 %end{blocks}, {blocks};")),
        _ => None,
    });
}

#[test]
fn lines() {
    check("lines", "lines", "lines", &mut |site| {
        let line = site.line?.line;
        (site.point == Point::Line).then(|| format!(".reg .b32 %line; mov.u32 %line, {line};"))
    });
}

#[test]
fn a_line_is_found_with_its_file() {
    let mut module = Module::parse(&fixture("lines")).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    let kernel = ["lines"];
    let woven = module.clone().weave(&kernel, &mut |site| {
        seen.extend(site.line);
        None
    });
    assert_eq!(woven, Ok(0));
    let before = module.clone();
    module.weave(&kernel, &mut |_| None).unwrap();
    assert!(module == before, "nothing was put in, and yet something changed");
    let seen: Vec<_> =
        seen.iter().filter(|line| module.file(line.file) == Some("lines.cu")).map(|it| it.line).collect();
    // The loop, its branches, the inlined function, and what follows.
    assert!([4, 9, 10, 16].iter().all(|line| seen.contains(line)), "{seen:?}");
}

/// Everything at once, in everything that there is.
#[test]
fn all_points_of_all_fixtures_assemble() {
    for (name, text) in fixtures() {
        let (mut module, kernels) = only_faithful(&text);
        let points = weave_everywhere(&mut module, &kernels);
        assert_eq!(points["Entry"], kernels.len(), "{name}");
        assert_eq!(points["BlockBegin"], points["BlockEnd"], "{name}");
        assert!(points["Exit"] >= kernels.len(), "{name}");
        assert_assembles(&name, &module.to_string());
    }
}

/// The same with every kernel below the directory that `PTX_CORPUS` names, its variables redirected.
#[test]
#[ignore = "takes an assembler run for each file of PTX_CORPUS"]
#[allow(clippy::print_stdout, reason = "says how much of the corpus could be woven")]
fn all_points_of_a_corpus_assemble() {
    let Some(files) = corpus() else { return };
    let next = AtomicUsize::new(0);
    let (wrong, right) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let work = || {
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let text = String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
            match assembles_woven(&text) {
                Ok(was_woven) => drop(right.fetch_add(usize::from(was_woven), Ordering::Relaxed)),
                Err(why) => wrong.lock().unwrap().push(format!("{}: {why}", path.display())),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |it| it.get());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().unwrap();
    println!("{} of {} files have kernels that were woven and assembled", right.into_inner(), files.len());
    assert!(wrong.is_empty(), "{} of {} files:\n{}", wrong.len(), files.len(), wrong.join("\n"));
}

/// Whether the kernels without obstacles, if the assembler accepts them, are accepted with everything woven in.
/// `false` where there are none.
fn assembles_woven(text: &str) -> Result<bool, String> {
    let (mut module, kernels) = only_faithful(text);
    if kernels.is_empty() || assemble(&module.to_string()).is_err() {
        return Ok(false);
    }
    module.redirect(&mut |variable| !variable.is_literal()).map_err(|error| error.to_string())?;
    weave_everywhere(&mut module, &kernels);
    assemble(&module.to_string()).map(|()| true)
}

/// Puts something in at every point of these kernels, and says how many points of each kind there were.
fn weave_everywhere(module: &mut Module, kernels: &[String]) -> BTreeMap<String, usize> {
    let kernels: Vec<&str> = kernels.iter().map(String::as_str).collect();
    module.declare(".visible .global .align 16 .u64 counts[16];").unwrap();
    let mut points = BTreeMap::new();
    let insert = &mut |site: &Site| {
        let kind = format!("{:?}", site.point);
        *points.entry(kind.split('(').next().unwrap_or_default().to_owned()).or_default() += 1;
        match site.point {
            Point::Entry => count(0),
            Point::Exit => count(1),
            Point::BeforeAccess(_) | Point::AfterAccess(_) => record_access(site),
            Point::BeforeBarrier | Point::AfterBarrier => count(4),
            Point::BlockBegin => count(5),
            Point::BlockEnd => count(6),
            Point::Line => count(7),
            Point::BeforeCall => count(8),
        }
    };
    module.weave(&kernels, insert).unwrap();
    points
}

#[test]
fn a_body_that_ends_without_ret_exits_there() {
    let text = ".version 9.0 .target sm_90 .address_size 64
        .entry open() { .reg .pred p; setp.eq.s32 p, 1, 2; @p bra END; exit; END: }
        .entry closed() { LOOP: bra LOOP; UNUSED: }
        .entry scope() { { .reg .b32 r; mov.b32 r, 1; } }
        .entry empty() { }";
    for (kernel, exits) in [("open", 2), ("closed", 0), ("scope", 1), ("empty", 1)] {
        let mut module = Module::parse(text).unwrap();
        let woven =
            module.weave(&[kernel], &mut |site| (site.point == Point::Exit).then(|| ".reg .b32 %x;".to_owned()));
        assert_eq!(woven, Ok(exits), "{kernel}");
        assert_assembles(kernel, &module.to_string());
    }
}

#[test]
fn a_text_cannot_leave_its_scope() {
    let before = Module::parse(&fixture("first")).unwrap();
    for text in ["}", "ret", "{", "mov.u32 %r, ; }", ".version 9.0"] {
        let mut module = before.clone();
        let error = module.weave(&["first"], &mut |_| Some(text.to_owned())).unwrap_err();
        assert!(matches!(error, WeaveError::Text { .. }), "{text}: {error}");
        assert!(module == before, "{text}");
    }
}

#[test]
fn a_kernel_that_is_not_there_is_named() {
    let mut module = Module::parse(&fixture("first")).unwrap();
    let error = module.weave(&["weigh"], &mut |_| None).unwrap_err();
    assert_eq!(error.to_string(), "the module has no kernel `weigh` with a body");
}
