//! Every workload runs on the software GPU, and its account is right.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

struct Run {
    output: Output,
}

impl Run {
    fn account(&self) -> Value {
        let text = String::from_utf8_lossy(&self.output.stdout);
        assert!(self.output.status.success(), "{text}{}", String::from_utf8_lossy(&self.output.stderr));
        serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_else(|e| panic!("{e}: {text:?}"))
    }
}

fn run(program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Run {
    let directory = tempfile::tempdir().unwrap();
    let installed = xputrace_softgpu::install(directory.path()).unwrap();
    let output = Command::new(Path::new(program))
        .args(arguments)
        .env("LD_LIBRARY_PATH", installed.library_path())
        .env_remove("CUDA_INJECTION64_PATH")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    Run { output }
}

fn pick(account: &Value, names: &[&str]) -> Value {
    names.iter().map(|&name| (name.to_owned(), account[name].clone())).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn server() {
    let account = run(env!("CARGO_BIN_EXE_server"), &["--requests=7"], &[]).account();
    assert_eq!(
        pick(
            &account,
            &["device", "software", "launches", "kernels", "requests", "launches_per_request", "failures", "verified"]
        ),
        json!({
            "device": "xputrace software GPU", "software": true, "launches": 28, "requests": 7,
            "kernels": { "_Z3nopv": 7, "_Z4fillPjjj": 7, "_Z5scalePffj": 14 },
            "launches_per_request": 4, "failures": 0, "verified": true,
        })
    );
}

#[test]
fn threads() {
    let account = run(env!("CARGO_BIN_EXE_threads"), &["--threads=3", "--launches=500"], &[]).account();
    assert_eq!(account["launches"], 1500);
}

#[test]
fn graphs() {
    let account = run(env!("CARGO_BIN_EXE_graphs"), &["--launches=5"], &[]).account();
    assert_eq!(
        pick(&account, &["launches", "kernels", "graph_launches", "verified"]),
        json!({
            "launches": 0, "graph_launches": 5, "verified": true,
            "kernels": { "_Z4fillPjjj": 5, "_Z5scalePffj": 10 },
        })
    );
}

#[test]
fn forker() {
    let account = run(env!("CARGO_BIN_EXE_forker"), &["--launches=4"], &[]).account();
    assert_eq!((&account["launches"], &account["forked_exit"]), (&json!(8), &json!(0)));
    assert_eq!(account["child"]["launches"], 4);
    assert_ne!(account["child"]["pid"], account["pid"]);
}

#[test]
fn failing() {
    let account = run(env!("CARGO_BIN_EXE_failing"), &["--launches=10"], &[]).account();
    assert_eq!(
        pick(&account, &["launches", "attempts", "failed"]),
        json!({ "launches": 7, "attempts": 10, "failed": 3 })
    );
}

#[test]
fn asked_for_failures_come() {
    let account = run(env!("CARGO_BIN_EXE_failing"), &["--launches=10"], &[("SOFTGPU_FAIL_LAUNCH", "2")]).account();
    // Three of ten are refused for their size before the fault setting counts them; of the other
    // seven, every second fails.
    assert_eq!(account["failed"], 6);
    let broken = run(env!("CARGO_BIN_EXE_threads"), &[], &[("SOFTGPU_FAIL", "cuModuleLoadData:200")]);
    assert!(!broken.output.status.success());
}
