//! A kernel's copy: pruned, with the variables of the original, under another name; and what it can't do.

mod common;

use common::{accept, assert_assembles, fixture, fixtures, only_faithful};
use xputrace_ptx::{Linkage, Module, RedirectError, RenameError, Space, WeaveError};

/// The copy of a kernel of a fixture, with all variables but literals redirected.
fn copy(name: &str, kernel: &str) -> (Module, String) {
    let mut module = Module::parse(&fixture(name)).unwrap();
    module.only(&[kernel]).unwrap();
    let variables = module.redirect(&mut |variable| !variable.is_literal()).unwrap();
    let described = variables.iter().enumerate().map(|(index, it)| {
        let bytes = it.bytes.map_or("?".to_owned(), |bytes| bytes.to_string());
        let mut line = format!("{index} {} {} {bytes} {:?}", it.name, it.space.name(), it.linkage);
        for (word, says) in [
            (" initialised", it.is_initialised),
            (" managed", it.is_managed),
            (" static in a function", it.is_function_static()),
        ] {
            line.push_str(if says { word } else { "" });
        }
        line + "\n"
    });
    let described = described.collect();
    (module, described)
}

#[test]
fn a_copy_has_what_the_kernel_reaches() {
    let mut module = Module::parse(&fixture("first")).unwrap();
    module.only(&["second"]).unwrap();
    accept("only-second", &module);
    let names: Vec<&str> = module.functions().map(|function| function.name.as_str()).collect();
    assert_eq!(names, ["second"]);
    let error = module.only(&["first"]).unwrap_err();
    assert_eq!(error, WeaveError::NoKernel("first".to_owned()));
}

#[test]
fn variables_are_the_originals() {
    let (mut module, described) = copy("variables", "variables");
    module.rename("variables", "variables_copy").unwrap();
    accept("variables", &module);
    assert_eq!(
        described,
        "0 counter global 4 Local\n\
         1 points global 48 Local initialised\n\
         2 pointer global 8 Local initialised\n\
         3 weights const 64 Local\n\
         4 origin const 12 Local initialised\n\
         5 total global 8 Local initialised\n\
         6 shared_with_host global 4 Local managed\n\
         7 _ZZ9variablesE5calls global 4 Local initialised static in a function\n"
    );
    // Formats and the names in assertions stay.
    assert!(
        module.variables().iter().all(|it| it.is_literal() || it.name == "xpt_globals"),
        "{:?}",
        module.variables()
    );
}

#[test]
fn variables_are_the_originals_in_code_that_is_not_optimized() {
    let (module, _) = copy("debug", "variables");
    accept("variables-debug", &module);
}

#[test]
fn variables_are_the_originals_in_all_fixtures() {
    for (name, text) in fixtures() {
        let (mut module, _) = only_faithful(&text);
        let variables = module.redirect(&mut |_| true).unwrap();
        let is_left = |name: &str| module.variables().iter().any(|it| it.name == name);
        assert!(variables.iter().all(|variable| !is_left(&variable.name)), "{name}");
        assert_assembles(&name, &module.to_string());
    }
}

const HEAD: &str = ".version 9.0 .target sm_90 .address_size 64\n";

/// Redirects everything in a module of a few lines, and returns its code.
fn redirected(text: &str) -> Result<String, RedirectError> {
    let mut module = Module::parse(&format!("{HEAD}{text}")).unwrap();
    module.redirect(&mut |_| true)?;
    let text = module.to_string();
    assert_assembles("redirected", &text);
    Ok(text.split_once(".entry").map(|(_, kernel)| kernel.to_owned()).unwrap_or(text))
}

#[test]
fn each_use_of_a_variable_is_redirected() {
    let text = redirected(
        ".extern .global .b32 far[]; .weak .global .v4 .f32 wide[2]; .const .b32 fixed[4]; .common .global .b32 common;
        .func f(.param .b64 p) { ret; }
        .entry k(.param .b64 out) {
            .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<8>; .reg .f32 %f<4>;
            setp.eq.s32 %p, 1, 2;
            @%p mov.u64 %rd1, far;
            mov.u64 %rd2, far+-12;
            @!%p ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [wide+16];
            cvta.global.u64 %rd3, common;
            add.u64 %rd4, common, %rd1;
            atom.global.cas.b32 %r1, [common], %r2, %r3;
            mov.u64 %rd5, fixed;
            cvta.const.u64 %rd6, fixed;
            cvta.to.const.u64 %rd7, %rd6;
            ld.const.b32 %r1, [%rd7+4];
            ld.const.b32 %r1, [fixed];
            ld.b32 %r1, [%rd6];
            ld.param.b64 %rd7, [out];
            { .param .b64 p; st.param.b64 [p], wide; call f, (p); }
            { .shared .b32 common; st.shared.b32 [common], %r1; }
        }",
    )
    .unwrap();
    xputrace_golden::assert(&common::tests_directory().join("woven/redirected.txt"), &text);
}

#[test]
fn linkage_says_who_knows_a_variable() {
    let text = format!(
        "{HEAD}.extern .global .b32 a; .visible .const .b64 b; .weak .global .b8 c[2][3]; .common .global .b32 d;
        .global .texref t; .extern .shared .b8 s[]; .global .align 4 .u16 f = 3, g[] = {{1, 2}};"
    );
    let variables = Module::parse(&text).unwrap().variables();
    let described: Vec<_> = variables.iter().map(|it| (it.name.as_str(), it.space, it.bytes, it.linkage)).collect();
    assert_eq!(
        described,
        [
            ("a", Space::Global, Some(4), Linkage::Extern),
            ("b", Space::Const, Some(8), Linkage::Visible),
            ("c", Space::Global, Some(6), Linkage::Weak),
            ("d", Space::Global, Some(4), Linkage::Common),
            ("f", Space::Global, Some(2), Linkage::Local),
            ("g", Space::Global, None, Linkage::Local),
        ]
    );
}

#[test]
fn what_cannot_be_redirected_is_an_error() {
    let error = redirected(".global .b32 v[4]; .entry k() { .reg .b64 %rd; mov.u64 %rd, (v); }").unwrap_err();
    assert_eq!(error.to_string(), "`k` uses `v` in a way that isn't known: mov.u64 %rd, (v)");
    let text = format!("{HEAD}.global .b32 v; .global .u64 $str$1[1] = {{generic(v)}}; .entry k() {{ ret; }}");
    let mut module = Module::parse(&text).unwrap();
    let error = module.redirect(&mut |variable| !variable.is_literal()).unwrap_err();
    assert_eq!(error.to_string(), "`$str$1` is initialised with the address of `v`, which is the original's");
}

#[test]
fn a_kernel_gets_another_name_everywhere() {
    let text = format!(
        "{HEAD}.entry k() {{ .reg .b64 %rd; mov.u64 %rd, k; ret; }} .entry other() {{ ret; }}
        .global .u64 table[2] = {{k, other}};"
    );
    let mut module = Module::parse(&text).unwrap();
    assert_eq!(module.rename("k", "other"), Err(RenameError::Taken("other".to_owned())));
    assert_eq!(module.rename("l", "k2"), Err(RenameError::NoKernel("l".to_owned())));
    module.rename("k", "k2").unwrap();
    let text = module.to_string();
    assert!(text.contains(".entry k2()") && text.contains("%rd, k2;") && text.contains("{k2, other}"), "{text}");
}

#[test]
fn obstacles_are_named() {
    let obstacles = |text: &str| {
        let found = Module::parse(&format!("{HEAD}{text}")).unwrap().faithful("k");
        found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    for (text, expected) in [
        (".entry k() { ret; }", ""),
        (".entry l() { ret; }", "the module has no kernel `k` with a body"),
        (
            ".global .texref t; .entry k() { .reg .f32 %f<5>;
             tex.1d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [t, {%f4}]; }",
            "`t` is a texture, surface or sampler reference, which the program binds to the original only",
        ),
        (
            ".func f() { ret; } .global .u64 table[1] = {f};
             .entry k() { .reg .b64 %rd; ld.global.u64 %rd, [table]; p: .callprototype _ (); call %rd, p; }",
            "`table` holds addresses of functions, which are the original's\n\
             `k` calls a function by its address, which may be one of the original's",
        ),
        (
            ".func f() { ret; } .entry k() { .reg .b64 %rd; mov.u64 %rd, f; }",
            "`k` takes the address of `f`, which is another one in the original",
        ),
        (
            ".extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 a, .param .b64 b);
             .func f() { call (r), cudaLaunchDeviceV2, (a, b); } .entry k() { call f; }",
            "`f` launches kernels from the GPU, by `cudaLaunchDeviceV2`",
        ),
        (
            ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b); .extern .func far();
             .entry k() { call (r), vprintf, (a, b); call far; }",
            "`far` is in another module, to which the copy is not linked",
        ),
        (
            ".entry k() { .reg .pred %p; .reg .b64 %rd; isspacep.const %p, %rd; }",
            "`k` asks whether an address is constant memory; a copy reads constants as global memory",
        ),
        (
            ".const[2] .b32 c; .entry k() { .reg .b32 %r; ld.const.b32 %r, [c]; }",
            "`c` is in a bank of constants, which PTX no longer has",
        ),
    ] {
        assert_eq!(obstacles(text), expected, "{text}");
    }
    let narrow = Module::parse(".version 9.0 .target sm_90 .entry k() { ret; }").unwrap().faithful("k");
    assert_eq!(narrow.len(), 1);
    assert_eq!(narrow[0].to_string(), "addresses have 32 bits in this module");
}

#[test]
fn compiled_kernels_have_the_obstacles_of_their_programs() {
    let mut text = String::new();
    for (name, ptx) in fixtures() {
        let module = Module::parse(&ptx).unwrap();
        for kernel in module.functions().filter(|it| it.is_kernel()) {
            text += &format!("{name}: {}\n", kernel.name);
            module.faithful(&kernel.name).iter().for_each(|obstacle| text += &format!("    {obstacle}\n"));
        }
    }
    xputrace_golden::assert(&common::tests_directory().join("woven/obstacles.txt"), &text);
}

/// `k` calls `a` by its alias, `a` calls `b`, which may call itself; `l` calls `c`.
const CALLS: &str = ".version 8.0\n.target sm_90\n.address_size 64\n.func a();\n.func other();\n.alias other, a;\n\
    .func b() { call b, (); { call.uni vprintf, (); } ret; }\n.func a() { call.uni b, (); ret; }\n\
    .func c() { .reg .b64 %a; ret; }\n.extern .func vprintf();\n\
    .visible .entry k() { call.uni other, (); ret; }\n.visible .entry l() { call.uni c, (); ret; }\n";

#[test]
fn calls_are_those_of_functions_with_a_body() {
    let calls = Module::parse(CALLS).unwrap().calls();
    let below = |it: &str| calls.below(it).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(["k", "a", "b", "l", "c", "none"].map(below), ["a b", "b", "b", "c", "", ""]);
    assert_eq!(["k", "a", "b", "l", "c"].map(|it| calls.leads_to_recursion(it)), [true, true, true, false, false]);
}

#[test]
fn copies_of_functions_are_called_by_whom_they_are_for() {
    let mut module = Module::parse(CALLS).unwrap();
    let others = [("a", "a$1"), ("b", "b$1")].map(|it| (it.0.to_owned(), it.1.to_owned())).into();
    module.copy_function("a", "a$1");
    module.copy_function("b", "b$1");
    ["a$1", "b$1", "k"].iter().for_each(|it| module.call_instead(it, &others));
    let calls = module.calls();
    let below = |it: &str| calls.below(it).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(["k", "a$1", "b$1", "a", "b"].map(below), ["a$1 b$1", "b$1", "b$1", "b", "b"]);
    let order: Vec<_> = module.functions().map(|it| (it.name.as_str(), it.body.is_some())).collect();
    let is_declared_before =
        |name: &str| order.iter().position(|it| *it == (name, false)) < order.iter().position(|it| *it == (name, true));
    assert!(is_declared_before("a$1") && order.contains(&("a$1", false)), "{order:?}");
}
