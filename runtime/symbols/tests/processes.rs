//! Names stacks of real processes: this one, and a C program that has ended.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use xputrace_symbols::{Detail, MappedObject, Mapping, Omission, ProcessKey, Processes, Proof, TooMuch};
use xputrace_wire::record::{check_of_file, stack_end};

/// Prints its return address at each level, innermost first, then waits for its input to close.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <unistd.h>
static void *stack[3];
__attribute__((noinline)) void leaf(void) {
    stack[0] = __builtin_extract_return_addr(__builtin_return_address(0));
    asm volatile("");
}
__attribute__((noinline)) static void middle(void) {
    leaf();
    stack[1] = __builtin_extract_return_addr(__builtin_return_address(0));
    asm volatile("");
}
/* Nothing follows the call: the return address is the next function's first byte. */
__attribute__((noinline, noreturn)) void last_call(void) {
    printf("%p %p %p\n", stack[0], stack[1], __builtin_return_address(0));
    fflush(stdout);
    char c;
    while (read(0, &c, 1) > 0) {}
    _exit(0);
}
__attribute__((noinline)) void outer(void) {
    middle();
    last_call();
}
int main(void) { outer(); return 0; }
"#;

fn compile(folder: &Path) -> PathBuf {
    compile_with(folder, &[])
}

fn compile_with(folder: &Path, flags: &[&str]) -> PathBuf {
    let (source, program) = (folder.join("sample.c"), folder.join("sample"));
    fs::write(&source, PROGRAM).unwrap();
    let status = Command::new("cc")
        .args(["-O1", "-fno-omit-frame-pointer", "-fno-inline", "-o"])
        .args([&program, &source])
        .args(flags)
        .status()
        .unwrap();
    assert!(status.success());
    program
}

/// Starts the program and reads the stack that it prints.
fn start(program: &Path) -> (Child, Vec<u64>) {
    start_command(&mut Command::new(program))
}

fn start_command(command: &mut Command) -> (Child, Vec<u64>) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = |it: &str| u64::from_str_radix(it.trim_start_matches("0x"), 16).unwrap();
    let stack = line.split_whitespace().map(address).collect();
    (child, stack)
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    child.wait().unwrap();
}

fn key(child: &Child) -> ProcessKey {
    ProcessKey { pid: child.id(), generation: 0 }
}

fn names(frames: &[xputrace_model::stack::Frame]) -> Vec<String> {
    frames.iter().map(|it| format!("{} {}", it.function, it.module)).collect()
}

/// For stacks without Python frames.
fn no_python(_: u32, _: u32) -> xputrace_model::stack::Frame {
    panic!("not a Python frame")
}

#[test]
fn a_program_that_has_ended_and_was_deleted_still_has_names() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path());
    let (child, stack) = start(&program);
    let key = key(&child);
    let mut processes = Processes::new();
    assert!(processes.map_running(key).unwrap() >= 2);
    end(child);
    fs::remove_file(&program).unwrap();
    let frames = processes.resolve_launch(&stack, &[], key, Detail::Names, no_python);
    assert_eq!(names(&frames), ["middle sample", "outer sample", "outer sample"]);
    assert!(frames.iter().all(|it| it.offset > 0));
    // The second lookup uses the cache.
    assert_eq!(processes.resolve_launch(&stack, &[], key, Detail::Names, no_python), frames);
}

#[test]
fn a_file_of_another_mount_namespace_is_read_while_the_process_lives() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path());
    let allowed = Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|it| it.success());
    if !allowed {
        return;
    }
    let inside = folder.path().join("inside");
    fs::create_dir(&inside).unwrap();
    let script = "mount -t tmpfs none \"$2\" && cp \"$1\" \"$2/hidden\" && exec \"$2/hidden\"";
    let (child, stack) =
        start_command(Command::new("unshare").args(["-m", "sh", "-c", script, "sh"]).args([&program, &inside]));
    let key = key(&child);
    assert!(!inside.join("hidden").exists());
    let mut processes = Processes::new();
    processes.map_running(key).unwrap();
    end(child);
    let frames = processes.resolve_launch(&stack, &[], key, Detail::Names, no_python);
    assert_eq!(names(&frames), ["middle hidden", "outer hidden", "outer hidden"]);
}

#[test]
fn a_stripped_function_has_its_address_and_not_its_neighbours_name() {
    let folder = tempfile::tempdir().unwrap();
    // Exported functions keep their names; `middle` is static.
    let (child, stack) = start(&compile_with(folder.path(), &["-rdynamic", "-s"]));
    let key = key(&child);
    let mut processes = Processes::new();
    processes.map_running(key).unwrap();
    end(child);
    let frames = processes.resolve_launch(&stack, &[], key, Detail::Names, no_python);
    assert!(frames[0].function.starts_with("0x") && frames[0].module == "sample", "{frames:?}");
    assert_eq!(names(&frames[1..]), ["outer sample", "outer sample"]);
    // The file's own address: the same in each run, whatever the load address.
    let (child, stack) = start(&folder.path().join("sample"));
    let again = ProcessKey { pid: child.id(), generation: 7 };
    processes.map_running(again).unwrap();
    assert_eq!(processes.resolve_launch(&stack, &[], again, Detail::Names, no_python), frames);
    end(child);
}

#[test]
fn a_child_has_its_parents_names_and_a_forgotten_process_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let (child, stack) = start(&compile(folder.path()));
    let parent = key(&child);
    let forked = ProcessKey { pid: u32::MAX, generation: 0 };
    let mut processes = Processes::new();
    processes.map_running(parent).unwrap();
    processes.fork(parent, forked);
    processes.forget(parent);
    end(child);
    assert_eq!(processes.resolve_launch(&stack, &[], forked, Detail::Names, no_python)[0].function, "middle");
    assert!(!processes.knows(parent));
    assert_eq!(
        processes.resolve_launch(&stack[..1], &[], parent, Detail::Names, no_python)[0].function,
        format!("{:#x}", stack[0])
    );
}

#[test]
fn a_file_that_was_replaced_gives_no_wrong_names() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path());
    let mapping = Mapping {
        start: 0x1000,
        end: 0x2000,
        file_offset: 0x1000,
        path: program,
        build_id: Some(vec![1; 20]),
        device: 0,
        inode: 0,
    };
    let key = ProcessKey { pid: u32::MAX, generation: 1 };
    let mut processes = Processes::new();
    processes.map(key, &mapping);
    let frames = processes.resolve(&[0x1150], key, Detail::Names);
    assert_eq!(names(&frames), ["0x1150 sample"]);
}

#[test]
fn a_file_is_known_again_by_its_build_id() {
    use object::{Object, ObjectSymbol};
    let folder = tempfile::tempdir().unwrap();
    let program = compile_with(folder.path(), &["-Wl,--build-id"]);
    let bytes = fs::read(&program).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let outer = elf.symbols().find(|it| it.name() == Ok("outer")).unwrap();
    // Small programs have their text at the same offset in file and memory.
    let mapping = Mapping {
        start: 0x7000_0000,
        end: 0x7000_0000 + bytes.len() as u64,
        file_offset: 0,
        path: program,
        build_id: elf.build_id().unwrap().map(<[u8]>::to_vec),
        device: 0,
        inode: 0,
    };
    let key = ProcessKey { pid: u32::MAX, generation: 2 };
    let mut processes = Processes::new();
    processes.map(key, &mapping);
    let frames = processes.resolve(&[0x7000_0000 + outer.address() + 3], key, Detail::Names);
    assert_eq!((names(&frames[..1]), frames[0].offset), (vec!["outer sample".to_string()], 3));
}

#[test]
fn this_process_is_named() {
    #[inline(never)]
    fn here() -> u64 {
        here as fn() -> u64 as usize as u64
    }
    let key = ProcessKey { pid: std::process::id(), generation: 0 };
    let mut processes = Processes::new();
    processes.map_running(key).unwrap();
    let frame = processes.resolve(&[here()], key, Detail::Names)[0].clone();
    assert!(frame.function.ends_with("this_process_is_named::here"), "{frame:?}");
    assert_eq!(frame.offset, 0);
    // As a return address, the same address belongs to the function before it.
    let before = processes.resolve_launch(&[here()], &[], key, Detail::Names, no_python)[0].clone();
    assert_ne!(before.function, frame.function);
    let libc_function = libc_address();
    let frame = processes.resolve(&[libc_function], key, Detail::Names)[0].clone();
    assert!(frame.function.contains("malloc") && frame.module.starts_with("libc"), "{frame:?}");
}

fn libc_address() -> u64 {
    // SAFETY: the name is NUL terminated.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) as u64 }
}

#[test]
fn code_without_a_file_has_names_from_its_perf_map() {
    let folder = tempfile::tempdir().unwrap();
    let (child, _) = start(&compile(folder.path()));
    let key = key(&child);
    let path = format!("/tmp/perf-{}.map", child.id());
    writeln!(fs::File::create(&path).unwrap(), "10000 20 py::forward:/app/model.py").unwrap();
    let mut processes = Processes::new();
    let anonymous = Mapping {
        start: 0x10000,
        end: 0x11000,
        file_offset: 0,
        path: "//anon".into(),
        build_id: None,
        device: 0,
        inode: 0,
    };
    processes.map(key, &anonymous);
    end(child);
    fs::remove_file(&path).unwrap();
    let frames = processes.resolve(&[0x10010, 0x10020, 0x10800], key, Detail::Names);
    assert_eq!(
        names(&frames),
        [
            "py::forward:/app/model.py [jit]",
            "py::forward:/app/model.py [jit]",
            "0x10800 [anonymous]",
            "[no frame pointers: [anonymous]] "
        ]
    );
    assert_eq!(frames[1].offset, 0x20);
}

#[test]
fn code_that_was_replaced_has_the_names_of_all_that_was_there() {
    let key = ProcessKey { pid: u32::MAX, generation: 0 };
    let mapping = |start, end, path: &str| Mapping {
        start,
        end,
        file_offset: 0,
        path: path.into(),
        build_id: None,
        device: 0,
        inode: 0,
    };
    let mut processes = Processes::new();
    assert!(!processes.map(key, &mapping(0x1000, 0x9000, "/none/old.so")));
    let frames = processes.resolve(&[0x3001, 0x9001], key, Detail::Names);
    assert_eq!(names(&frames), ["0x2001 old.so", "[no frame pointers: old.so] "]);
    assert!(processes.map(key, &mapping(0x3000, 0x4000, "/none/new.so")));
    assert!(!processes.map(key, &mapping(0x5000, 0x5000, "/none/empty.so")));
    let resolved = |processes: &mut Processes| {
        let frames = processes.resolve(&[0x2fff, 0x3001, 0x4001, 0x9001], key, Detail::Names);
        assert_eq!(frames.last().unwrap().function, "[no frame pointers: old.so]");
        names(&frames[..3])
    };
    assert_eq!(resolved(&mut processes), ["0x1fff old.so", "0x2001 or 0x1 old.so or new.so", "0x3001 old.so"]);
    // Both come back: no third name.
    processes.map(key, &Mapping { file_offset: 0x2000, ..mapping(0x3000, 0x4000, "/none/old.so") });
    processes.map(key, &mapping(0x3000, 0x4000, "/none/new.so"));
    assert_eq!(resolved(&mut processes), ["0x1fff old.so", "0x2001 or 0x1 old.so or new.so", "0x3001 old.so"]);
    // A part of the same mapping again is no other code.
    assert!(!processes.map(key, &Mapping { file_offset: 0x4000, ..mapping(0x5000, 0x6000, "/none/old.so") }));
    assert!(processes.resolve(&[], key, Detail::Names).is_empty());
}

/// The mappings say what is there now, the stack what was there when it was taken.
#[test]
fn a_launch_stack_is_named_by_its_files_whatever_is_mapped_there() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_with(folder.path(), &["-static", "-no-pie", "-Wl,--build-id=none"]);
    let (child, stack) = start(&program);
    let key = key(&child);
    end(child);
    let first_bytes = &fs::read(&program).unwrap()[..4096];
    let proof = |first_bytes: &[u8]| Proof {
        build_id: Vec::new(),
        check: check_of_file(first_bytes),
        checked_bytes: first_bytes.len() as u32,
    };
    let (start, end) = (0x40_0000, 0x100_0000);
    let object = |id, proof| MappedObject {
        id,
        start,
        end,
        base: 0,
        proof,
        path: "sample".into(),
        directory: folder.path().to_owned(),
    };
    let mut processes = Processes::new();
    let other =
        Mapping { start, end, file_offset: 0, path: "/none/other.so".into(), build_id: None, device: 0, inode: 0 };
    processes.map(key, &other);
    processes.place(key, object(7, proof(first_bytes)));
    let mut resolved = |objects: &[u32]| {
        let frames = processes.resolve_launch(&stack, objects, key, Detail::Names, no_python);
        (names(&frames), processes.has_files(key, objects))
    };
    let expected = ["middle sample", "outer sample", "outer sample"].map(str::to_owned).to_vec();
    assert_eq!(resolved(&[7]), (expected, true));
    // In a file that is not known yet, or in none that the loader knows of.
    let addresses = |module: &str| stack.iter().map(|it| format!("0x{it:x} {module}")).collect::<Vec<_>>();
    assert_eq!(resolved(&[8]), (addresses(""), false));
    assert_eq!(resolved(&[]), (addresses("[anonymous]"), true));
    // The path leads to another file by now: its addresses, as in the file.
    processes.place(key, object(8, proof(&first_bytes[1..])));
    let frames = processes.resolve_launch(&stack, &[8], key, Detail::Names, no_python);
    assert_eq!((names(&frames), processes.has_files(key, &[8])), (addresses("sample"), false));
}

#[test]
fn a_launch_stack_says_why_it_ends() {
    let key = ProcessKey { pid: u32::MAX, generation: 0 };
    let map = Mapping {
        start: 0x1000,
        end: 0x9000,
        file_offset: 0,
        path: "/none/lib.so".into(),
        build_id: None,
        device: 0,
        inode: 0,
    };
    let mut processes = Processes::new();
    processes.map(key, &map);
    let mut last = |end: u16| {
        let frames = processes.resolve_launch(&[0x2001, end.into()], &[], key, Detail::Names, no_python);
        (frames.len(), frames[1].function.clone())
    };
    let ends = [0, stack_end::NO_TABLE, stack_end::UNSUPPORTED_RULE, stack_end::OFF_STACK, stack_end::TOO_DEEP];
    assert_eq!(
        ends.map(&mut last),
        [
            "[no frame pointers: lib.so]",
            "[no unwind table: lib.so]",
            "[unsupported unwind rule: lib.so]",
            "[not on the thread's own stack]",
            "[more than 256 frames]",
        ]
        .map(|it| (2, it.to_owned()))
    );
}

#[test]
fn kernel_addresses_have_names_where_the_kernel_shows_them() {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let shown = symbols.lines().find_map(|line| {
        let mut parts = line.split_whitespace();
        let address = u64::from_str_radix(parts.next()?, 16).ok()?;
        (parts.nth(1)? == "ksys_read").then_some(address)
    });
    let mut processes = Processes::new();
    match shown {
        Some(address) if address != 0 => {
            let frames = processes.resolve_kernel(&[address + 4, address + 5]);
            assert_eq!(names(&frames), ["ksys_read [kernel]", "ksys_read [kernel]"]);
            assert_eq!((frames[0].offset, frames[1].offset), (4, 5));
        }
        _ => assert_eq!(names(&processes.resolve_kernel(&[u64::MAX - 1])), ["0xfffffffffffffffe [kernel]"]),
    }
}

/// Splits a program into what runs and its debug file.
fn split(program: &Path, debug_file: &Path) {
    fs::create_dir_all(debug_file.parent().unwrap()).unwrap();
    let tool = |name: &str, words: &[&Path]| {
        assert!(Command::new(name).args(words).status().unwrap().success(), "{name} {words:?}");
    };
    tool("objcopy", &[Path::new("--only-keep-debug"), program, debug_file]);
    tool("strip", &[program]);
}

fn link_to(program: &Path, debug_file: &Path) {
    let option = format!("--add-gnu-debuglink={}", debug_file.display());
    assert!(Command::new("objcopy").arg(option).arg(program).status().unwrap().success());
}

fn named_while_it_runs(command: &mut Command) -> Vec<String> {
    let (child, stack) = start_command(command);
    let key = key(&child);
    let mut processes = Processes::new();
    processes.map_running(key).unwrap();
    end(child);
    names(&processes.resolve_launch(&stack, &[], key, Detail::Names, no_python))
}

const WHOLE: [&str; 3] = ["middle sample", "outer sample", "outer sample"];

#[test]
fn a_debug_link_leads_to_names_if_its_checksum_is_right() {
    for place in ["", ".debug"] {
        let folder = tempfile::tempdir().unwrap();
        let program = compile_with(folder.path(), &["-Wl,--build-id=none"]);
        let debug_file = folder.path().join(place).join("sample.debug");
        split(&program, &debug_file);
        assert!(named_while_it_runs(&mut Command::new(&program))[0].starts_with("0x"));
        link_to(&program, &debug_file);
        assert_eq!(named_while_it_runs(&mut Command::new(&program)), WHOLE, "in {place:?}");
        fs::OpenOptions::new().append(true).open(&debug_file).unwrap().write_all(b"x").unwrap();
        assert!(named_while_it_runs(&mut Command::new(&program))[0].starts_with("0x"), "of another build");
    }
}

#[test]
fn a_debug_link_to_a_file_with_another_build_id_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let other = compile_with(folder.path(), &["-Wl,--build-id=0xaabbcc"]);
    let debug_file = folder.path().join("sample.debug");
    split(&other, &debug_file);
    let program = compile_with(folder.path(), &["-Wl,--build-id=0xaabbcd", "-s"]);
    link_to(&program, &debug_file);
    assert!(named_while_it_runs(&mut Command::new(&program))[0].starts_with("0x"));
}

#[test]
fn a_debug_file_is_found_by_build_id_in_the_root_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let program = compile_with(root, &["-static", "-Wl,--build-id=0xabcdef0123"]);
    let debug_file = root.join("usr/lib/debug/.build-id/ab/cdef0123.debug");
    split(&program, &debug_file);
    let mut command = Command::new("chroot");
    command.arg(root).arg("/sample");
    if !Command::new("chroot").arg(root).arg("/sample").stdin(Stdio::null()).status().is_ok_and(|it| it.success()) {
        return;
    }
    assert_eq!(named_while_it_runs(&mut command), WHOLE);
    fs::remove_file(debug_file).unwrap();
    assert!(named_while_it_runs(&mut command)[0].starts_with("0x"));
}

#[test]
fn code_made_later_is_named_by_what_the_perf_map_has_grown_by() {
    let folder = tempfile::tempdir().unwrap();
    let (child, _) = start(&compile(folder.path()));
    let key = key(&child);
    let path = format!("/tmp/perf-{}.map", child.id());
    let mut processes = Processes::new();
    processes.map_running(key).unwrap();
    let name = |processes: &mut Processes, line: &str| {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
        writeln!(file, "{line}").unwrap();
        processes.resolve(&[0x10008], key, Detail::Names)[0].function.clone()
    };
    let seen =
        ["10000 8 before", "10008 8 first", "20000 8 another", "10008 8 _Z5againv"].map(|it| name(&mut processes, it));
    end(child);
    fs::remove_file(&path).unwrap();
    assert_eq!(seen, ["0x10008", "first", "first", "again"]);
}

#[test]
fn a_perf_map_of_another_user_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let (child, _) = start(&compile(folder.path()));
    let key = key(&child);
    let path = PathBuf::from(format!("/tmp/perf-{}.map", child.id()));
    let name = || {
        let mut processes = Processes::new();
        processes.map_running(key).unwrap();
        processes.resolve(&[0x10008], key, Detail::Names)[0].function.clone()
    };
    let target = folder.path().join("map");
    fs::write(&target, "10000 10 linked\n").unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    let linked = name();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "10000 10 named\n").unwrap();
    let own = name();
    let is_root = std::os::unix::fs::chown(&path, Some(12_345), None).is_ok();
    let of_another = name();
    end(child);
    fs::remove_file(&path).unwrap();
    assert_eq!((&*linked, &*own), ("0x10008", "named"));
    assert!(!is_root || of_another == "0x10008", "{of_another}");
}

/// Prints the return addresses of `leaf`, which is called in `inner`, which is inlined in `middle`,
/// and of `middle`.
const INLINING: &str = r#"
#include <stdio.h>
#include <unistd.h>
static void *stack[2];
__attribute__((noinline)) void leaf(void) {
    stack[0] = __builtin_extract_return_addr(__builtin_return_address(0));
    __asm__ volatile("");
}
#line 10 "inner.h"
static inline __attribute__((always_inline)) void inner(void) {
    leaf();
    __asm__ volatile("");
}
#line 20 "work.c"
__attribute__((noinline)) void middle(void) {
    inner();
    stack[1] = __builtin_extract_return_addr(__builtin_return_address(0));
    __asm__ volatile("");
}
int main(void) {
    middle();
    printf("%p %p\n", stack[0], stack[1]);
    fflush(stdout);
    char c;
    while (read(0, &c, 1) > 0) {}
    return 0;
}
"#;

fn compile_inlining(folder: &Path, flags: &[&str]) -> PathBuf {
    let (source, program) = (folder.join("sample.c"), folder.join("sample"));
    fs::write(&source, INLINING).unwrap();
    let done = Command::new("cc").args(["-O1", "-o"]).args([&program, &source]).args(flags).status().unwrap();
    assert!(done.success());
    program
}

fn functions(program: &Path, detail: Detail) -> Vec<String> {
    let (child, stack) = start(program);
    let key = key(&child);
    let mut processes = Processes::new();
    processes.map_running(key).unwrap();
    end(child);
    let frames = processes.resolve_launch(&stack, &[], key, detail, no_python);
    assert_eq!(
        processes.resolve_launch(&stack, &[], key, detail, no_python),
        frames,
        "the second lookup uses the cache"
    );
    frames.iter().map(|it| it.function.clone()).collect()
}

const LINES: [&str; 3] = ["inner inner.h:11 [inlined]", "middle work.c:21", "main work.c:26"];

#[test]
fn lines_and_inlined_functions_come_from_dwarf() {
    for flags in [&["-gdwarf-4"][..], &["-gdwarf-5"], &["-g", "-gz=zlib"]] {
        let folder = tempfile::tempdir().unwrap();
        let program = compile_inlining(folder.path(), flags);
        assert_eq!(functions(&program, Detail::Lines), LINES, "{flags:?}");
        assert_eq!(functions(&program, Detail::Names), ["middle", "main"]);
    }
}

#[test]
fn code_that_dwarf_has_no_function_for_has_lines_too() {
    let folder = tempfile::tempdir().unwrap();
    let assembly = folder.path().join("middle.s");
    fs::write(&assembly, ".globl middle\nmiddle:\n sub $8, %rsp\n call leaf\n add $8, %rsp\n ret\n").unwrap();
    let source = INLINING.replace("static void *stack[2]", "void *stack[2]; void middle(void)");
    let (before, rest) = source.split_once("#line 10").unwrap();
    let main = rest.split_once("int main").unwrap().1;
    let (c, program) = (folder.path().join("main.c"), folder.path().join("sample"));
    fs::write(&c, format!("{before}int main{}", main.replace("stack[1]", "stack[0]"))).unwrap();
    let status = Command::new("cc").args(["-g", "-O1", "-o"]).args([&program, &c, &assembly]).status().unwrap();
    assert!(status.success());
    assert_eq!(functions(&program, Detail::Lines)[0], "middle middle.s:4");
}

#[test]
fn lines_come_from_compressed_dwarf() {
    for kind in ["zlib-gnu", "zlib-gabi", "zstd"] {
        let folder = tempfile::tempdir().unwrap();
        let program = compile_inlining(folder.path(), &["-g"]);
        let option = format!("--compress-debug-sections={kind}");
        assert!(Command::new("objcopy").arg(&option).arg(&program).status().unwrap().success(), "{option}");
        assert_eq!(functions(&program, Detail::Lines), LINES, "{option}");
    }
}

#[test]
fn a_file_that_claims_more_dwarf_than_is_read_has_names_and_the_user_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_inlining(folder.path(), &["-g", "-gz=zlib"]);
    let mut bytes = fs::read(&program).unwrap();
    let section = section_offset(&bytes, ".debug_line");
    bytes[section + 8..section + 16].copy_from_slice(&(256u64 << 30).to_le_bytes());
    fs::write(&program, bytes).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (child, stack) = start(&program);
    let key = key(&child);
    let mut processes = Processes::new();
    processes.map_running(key).unwrap();
    end(child);
    let mut names = || {
        let frames = processes.resolve_launch(&stack, &[], key, Detail::Lines, no_python);
        (frames.iter().map(|it| it.function.clone()).collect::<Vec<_>>(), processes.take_omissions())
    };
    let told = vec![Omission::Lines { file: program.clone(), more_than: TooMuch::Bytes(4 << 30) }];
    assert_eq!(names(), (vec!["middle".into(), "main".into()], told));
    assert_eq!(names().1, [], "it is said once");
}

fn section_offset(elf: &[u8], name: &str) -> usize {
    use object::{Object, ObjectSection};
    let elf = object::File::parse(elf).unwrap();
    elf.section_by_name(name).unwrap().file_range().unwrap().0 as usize
}

#[test]
fn lines_come_from_a_debug_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_inlining(folder.path(), &["-g"]);
    let debug_file = folder.path().join("sample.debug");
    split(&program, &debug_file);
    link_to(&program, &debug_file);
    assert_eq!(functions(&program, Detail::Lines), LINES);
}

#[test]
fn without_dwarf_there_are_names_alone() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_inlining(folder.path(), &["-g0"]);
    assert_eq!(functions(&program, Detail::Lines), ["middle", "main"]);
}
