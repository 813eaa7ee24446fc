//! Shared by the tests: programs, the kernels around them, and NVIDIA's assembler.
#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod generate;
pub(crate) mod kernels;
pub(crate) mod programs;
pub(crate) mod ptx;

use std::path::PathBuf;
use std::process::Command;

use xputrace_bytecode::{Assembler, Program, ProgramKind};
use xputrace_device::layout::declaration;
use xputrace_device::{DeviceMap, Scope, Storage};

/// Environment variable that names the assembler; otherwise it is looked for on PATH.
pub(crate) const PTXAS_VARIABLE: &str = "PTXAS";

pub(crate) fn program(write: impl FnOnce(&mut Assembler)) -> Program {
    let mut asm = Assembler::new();
    write(&mut asm);
    let assembled = asm.finish().expect("assembles");
    Program {
        name: "test".into(),
        kind: ProgramKind::Syscall,
        insns: assembled.insns,
        map_refs: assembled.map_refs,
        lines: assembled.lines,
    }
}

pub(crate) fn map(kind: Storage, key_bytes: u32, value_bytes: u32, max_entries: u32) -> DeviceMap {
    DeviceMap { kind, key_bytes, value_bytes, max_entries, parts: 1, scope: Scope::Device }
}

/// Returns a module with one kernel, whose body is the given blocks.
pub(crate) fn module(blocks: &[&str]) -> String {
    let body = blocks.concat();
    format!(
        ".version 7.8\n.target sm_90\n.address_size 64\n{}\n.visible .entry kernel()\n{{\n    \
         .reg .b64 %result, %ctx;\n    mov.b64 %ctx, 0;\n{body}    ret;\n}}\n",
        declaration(2)
    )
}

/// Returns the path of NVIDIA's assembler, or says that the test is skipped.
#[allow(clippy::print_stderr, reason = "a test says why it did not run")]
pub(crate) fn ptxas(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os(PTXAS_VARIABLE).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = named.or_else(|| std::env::split_paths(&path).map(|it| it.join("ptxas")).find(|it| it.is_file()));
    if found.is_none() {
        eprintln!("skipped {test}: no GPU toolkit: ptxas is not on PATH, nor in the variable {PTXAS_VARIABLE}");
    }
    found
}

/// Assembles a module for sm_90; returns what the assembler says of its registers.
pub(crate) fn assemble(ptxas: &PathBuf, module: &str) -> Result<String, String> {
    let directory = tempfile::tempdir().expect("creates a directory");
    let (source, cubin) = (directory.path().join("k.ptx"), directory.path().join("k.cubin"));
    std::fs::write(&source, module).expect("writes");
    let output = Command::new(ptxas)
        .args(["-arch=sm_90", "-v", "-o"])
        .args([&cubin, &source])
        .output()
        .expect("runs the assembler");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}
