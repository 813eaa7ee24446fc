//! What a program means is kept, or what is lost is said.

use xputrace_bpftrace::{Translation, translate};

fn translation(program: &str) -> Translation {
    translate(program).unwrap_or_else(|it| panic!("{it}\n{program}"))
}

/// Translates a program all of which has a translation.
fn script(program: &str) -> String {
    let it = translation(program);
    assert!(it.untranslated.is_empty(), "{}", it.text);
    it.text
}

#[track_caller]
fn says(script: &str, expected: &str) {
    assert!(script.contains(expected), "`{expected}` is missing in\n{script}");
}

#[test]
fn an_element_is_not_known_once_its_key_has_changed() {
    for change in ["$x = 2", "$x += 1", "$x++"] {
        let program = format!("uprobe:./a:f {{ $x = 1; @m[$x] = 5; {change}; $y = @m[$x]; @n = $y; }}");
        says(&script(&program), "let y = @m[x] ?? 0;");
    }
    let program = "uprobe:./a:f { @k = 1; @m[@k] = 5; @k += 1; $y = @m[@k]; @n = $y; }";
    says(&script(program), "let y = @m[@k] ?? 0;");
    let kept = "uprobe:./a:f { $x = 1; $xx = 1; @m[$x] = 5; $xx = 2; $y = @m[$x] + $xx; @n = $y; }";
    says(&script(kept), "let y = @m[x] + xx;");
}

#[test]
fn a_comment_that_is_not_closed_is_a_mistake() {
    let mistake = translate("BEGIN { exit(); }\n/* open").unwrap_err();
    assert_eq!((mistake.line, mistake.column), (2, 1));
    assert!(mistake.to_string().contains("not closed"), "{mistake}");
    says(&script("BEGIN { exit(); /* closed */ }"), "// closed");
}

#[test]
fn an_element_is_not_known_in_a_loop_that_removes_it() {
    for head in ["unroll(3)", "for $i : 0..3", "for ($row : @n)"] {
        let program = format!("END {{ @n[1] = 1; @m[1] = 5; {head} {{ @sum = @m[1]; delete(@m[1]); }} }}");
        says(&script(&program), "@sum = @m[1] ?? 0;");
    }
}

#[test]
fn different_things_have_different_names() {
    let option = script("uprobe:./a:f { $pid = pid; if ($pid == getopt(\"pid\", 0)) { @ = count(); } }");
    says(&option, "let pid_ = arg(\"pid\", 0, \"\");");
    says(&option, "if pid == pid_ {");
    let constant = script("#define limit 5\nuprobe:./a:f { $limit = arg0; if ($limit > limit) { @ = count(); } }");
    says(&constant, "let limit_ = 5;");
    says(&constant, "if limit > limit_ {");
    let taken = script("uprobe:./a:f { $e = arg0; $e_ = arg1; @ = max($e + $e_); }");
    says(&taken, "@.max(e_ + e__);");
    let parameter = script("uprobe:./a:f { $p1 = arg0; @ = max($p1 + $1); }");
    says(&parameter, "@.max(p1_ + p1);");
    let options = script("uprobe:./a:f { @ = max(getopt(\"a-b\", 1) + getopt(\"a_b\", 2)); }");
    says(&options, "@.max(a_b + a_b_)");
}

#[test]
fn variables_of_macros_are_their_own() {
    let program = "macro note($x) { $tmp = $x * 2; @m = max($tmp); }\n\
                   uprobe:./a:f { $tmp = arg0; note(arg1); note($tmp); @n = max($tmp); }";
    let script = script(program);
    says(&script, "let tmp_2 = e.arg1 * 2;");
    says(&script, "let tmp_3 = tmp * 2;");
    says(&script, "@n.max(tmp);");
    let looping = "macro each(@m) { for ($row : @m) { print($row.0); } }\n\
                   END { @k[1] = 1; $row = 3; each(@k); print($row); }";
    says(&self::script(looping), "for row_2 in @k {");
}

#[test]
fn enumerations_count_on_from_computed_values() {
    let script = script("enum e { A = 1 << 4, B, C = -2, D }\nuprobe:./a:f { @[A, B, D] = count(); }");
    for expected in ["let A = 16;", "let B = 17;", "let D = -1;"] {
        says(&script, expected);
    }
    let unknown = translation("enum e { A = sizeof(int), B, C = 3 }\nuprobe:./a:f { @ = max(B); @ = max(C); }");
    assert_eq!(unknown.untranslated.len(), 1, "{}", unknown.text);
    says(&unknown.text, "let C = 3;");
}

#[test]
fn one_branch_of_the_preprocessor_is_taken() {
    let program = |first: &str, second: &str| {
        format!(
            "{first}\n#define N 1\n#elif {second}\n#define N 2\n#else\n#define N 3\n#endif\nBEGIN {{ printf(\"%d\\n\", N); }}"
        )
    };
    for (first, second, taken) in [
        ("#if 1", "1", "1"),
        ("#ifdef BPFTRACE_HAVE_BTF", "OTHER", "1"),
        ("#if 0", "1", "2"),
        ("#if 0 // off", "0", "3"),
        ("#ifndef BPFTRACE_HAVE_BTF", "0", "3"),
        ("#define X\n#ifdef X", "1", "1"),
        ("#define X\n#undef X\n#ifdef X", "1", "2"),
    ] {
        let script = script(&program(first, second));
        says(&script, &format!("let N = {taken};"));
    }
    for (first, second) in [("#if VERSION > 5", "1"), ("#if 0", "VERSION > 5")] {
        let text = program(first, second);
        let wrong = translate(&text).expect_err("its condition is not known");
        let line = &text[wrong.offset..];
        assert!(line.starts_with("#if VERSION") || line.starts_with("#elif VERSION"), "{wrong}");
    }
}

#[test]
fn a_definition_has_any_name() {
    let script = script("#define e 5\n#define d 6\nBEGIN { printf(\"%d %d\\n\", e, d); }");
    says(&script, "let e_ = 5;");
    says(&script, "let d = 6;");
}

#[test]
fn differences_are_said() {
    for (statement, difference) in [
        ("@[str(arg0, 1000)] = count();", "// differs: a text is read up to 240 bytes, not 1000"),
        ("printf(\"%02d\\n\", arg0);", "// differs: leading zeros are right only before numbers that are not negative"),
        ("printf(\"%u\\n\", arg0);", "// differs: `%u` prints a negative number with its sign"),
    ] {
        says(&script(&format!("uprobe:./a:f {{ {statement} }}")), difference);
    }
    for same in ["@[str(arg0, 240)] = count();", "printf(\"%u %02d\\n\", pid, nsecs % 60);"] {
        let script = script(&format!("uprobe:./a:f {{ {same} }}"));
        assert!(!script.contains("differs"), "{script}");
    }
    for signed in ["%+d", "% d", "%+i"] {
        let it = translation(&format!("uprobe:./a:f {{ printf(\"{signed}\\n\", arg0); }}"));
        assert_eq!(it.untranslated.len(), 1, "{}", it.text);
    }
}

#[test]
fn a_period_is_never_zero() {
    let script = script("interval:s:$1 { printf(\"%d\\n\", $1); }");
    says(&script, "let p1 = arg(\"p1\", 1, ");
}

#[test]
fn minus_signs_stay_apart() {
    says(&script("uprobe:./a:f { $x = arg0; @ = max(-(-$x)); }"), "@.max(-(-x));");
}

#[test]
fn the_text_at_an_address_is_read_whatever_the_fields_name() {
    says(&script("tracepoint:syscalls:sys_enter_getxattr { @[str(args->name)] = count(); }"), "@[str(e.name)].count()");
    says(&script("tracepoint:sched:sched_switch { @[args->next_comm] = count(); }"), "@[e.next_comm].count()");
}
