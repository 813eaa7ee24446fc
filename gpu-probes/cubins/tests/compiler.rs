//! Compiling with programs that stand in for `ptxas`, and with a real one where there is one.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tempfile::TempDir;
use xputrace_boundary::child::Limit;
use xputrace_boundary::user::Account;
use xputrace_cubins::{Cache, Compiler, Cubin, NoCubin, Order, Purpose};

const TEXT: &str = ".version 9.0\n.target sm_90a\n";
static WANTED: AtomicBool = AtomicBool::new(false);
const PATIENT: Limit<'_> = Limit { within: Duration::from_secs(300), is_given_up: &WANTED };

/// A stand-in, in a directory of its own.
struct Stand(TempDir);

impl Stand {
    fn new(version: &str) -> Self {
        let stand = Stand(tempfile::tempdir().unwrap());
        fs::set_permissions(stand.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
        symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ptxas.sh"), stand.path()).unwrap();
        stand.with("version", version)
    }

    fn with(self, file: &str, text: &str) -> Self {
        fs::write(self.0.path().join(file), text).unwrap();
        self
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("ptxas")
    }

    /// What it was asked to compile for, a line each.
    fn calls(&self) -> String {
        fs::read_to_string(self.0.path().join("calls")).unwrap_or_default()
    }
}

fn order<'a>(candidates: &'a [PathBuf], cache: Option<&'a Cache>) -> Order<'a> {
    let (text, target, capability) = (TEXT, "sm_90a", 90);
    Order {
        text,
        target,
        purpose: Purpose::Module,
        capability,
        candidates,
        account: Account::current(),
        cache,
        limit: PATIENT,
    }
}

fn compile(candidates: &[PathBuf], cache: Option<&Cache>) -> Result<Cubin, NoCubin> {
    Compiler::default().compile(order(candidates, cache))
}

#[test]
fn a_text_is_compiled_once_and_then_kept() {
    let (stand, directory) = (Stand::new("13.0.88"), tempfile::tempdir().unwrap());
    let cache = Cache::open(directory.path(), 1 << 20).unwrap();
    let candidates = [stand.path()];
    let compiler = Compiler::default();
    std::thread::scope(|scope| {
        let ask = || scope.spawn(|| compiler.compile(order(&candidates, Some(&cache))).unwrap());
        let both = [ask(), ask()].map(|it| it.join().unwrap());
        assert_eq!(both[0].code, both[1].code);
        assert_eq!((both[0].usage[0].registers, both[0].by.version.as_str()), (28, "13.0.88"));
        assert!(both[0].unkept.is_none());
    });
    assert_eq!(stand.calls(), "-arch=sm_90a\n");
    let again = compile(&candidates, Some(&cache)).unwrap();
    assert!(again.is_kept && again.usage[0].kernel == "k" && again.code.starts_with(b"\x7fELF -arch=sm_90a"));
    assert_eq!(stand.calls(), "-arch=sm_90a\n");
    fs::write(stand.0.path().join("version"), "13.1.0").unwrap();
    assert!(!compile(&candidates, Some(&cache)).unwrap().is_kept, "another ptxas makes something else");
    let other = Order { capability: 100, ..order(&candidates, Some(&cache)) };
    assert!(!compiler.compile(other).unwrap().is_kept, "for another GPU");
    assert_eq!(stand.calls(), "-arch=sm_90a\n-arch=sm_90a\n-arch=sm_100\n");
}

#[test]
fn the_first_that_can_compile_it_does() {
    let newer = "ptxas /proc/self/fd/7, line 1; fatal   : Unsupported .version 9.0; current version is '8.0'\n";
    let old = Stand::new("12.0.1").with("errors", newer);
    let stand = Stand::new("13.0.88");
    let elsewhere = Stand::new("13.0.99");
    let candidates = ["/absent/ptxas".into(), "/bin/true".into(), old.path(), stand.path(), elsewhere.path()];
    assert_eq!(compile(&candidates, None).unwrap().by.version, "13.0.88");
    let Err(NoCubin::NoPtxas(reasons)) = compile(&candidates[..3], None) else { panic!("none can") };
    assert_eq!(reasons.len(), 3);
    assert!(reasons[2].ends_with("(12.0.1): line 1: Unsupported .version 9.0; current version is '8.0'"));
    assert_eq!(compile(&[], None).unwrap_err(), NoCubin::NoPtxas(vec![]));
}

#[test]
fn an_error_is_told_and_not_tried_again_elsewhere() {
    let said = "ptxas info    : 0 bytes gmem\nptxas x, line 7; error   : Unknown symbol 'y'\nptxas fatal   : aborted\n";
    let (stand, other) = (Stand::new("13.0.88").with("errors", said), Stand::new("13.0.99"));
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::open(directory.path(), 1 << 20).unwrap();
    let result = compile(&[stand.path(), other.path()], Some(&cache));
    assert_eq!(result.unwrap_err(), NoCubin::Failed("line 7: Unknown symbol 'y'".into()));
    assert_eq!((other.calls(), fs::read_dir(directory.path()).unwrap().count()), (String::new(), 0));
}

#[test]
fn a_ptxas_that_does_not_end_is_ended() {
    let stand = Stand::new("13.0.88").with("hangs", "");
    let candidates = [stand.path()];
    let compiler = Compiler::default();
    compiler
        .compile(Order { limit: Limit { within: Duration::ZERO, ..PATIENT }, ..order(&candidates, None) })
        .unwrap_err();
    let is_given_up = AtomicBool::new(true);
    let limit = Limit { is_given_up: &is_given_up, ..PATIENT };
    // It has learnt the version, or that would be given up too.
    let compiler = Compiler::default();
    let asked = || compiler.compile(Order { limit, ..order(&candidates, None) }).unwrap_err();
    assert!(matches!(asked(), NoCubin::Failed(_) | NoCubin::NoPtxas(_)));
}

#[test]
fn a_cache_that_cannot_be_written_is_said() {
    let (stand, directory) = (Stand::new("13.0.88"), tempfile::tempdir().unwrap());
    let path = directory.path().join("cache");
    let cache = Cache::open(&path, 1 << 20).unwrap();
    fs::remove_dir(&path).unwrap();
    let cubin = compile(&[stand.path()], Some(&cache)).unwrap();
    assert!(cubin.unkept.unwrap().to_string().starts_with(&path.display().to_string()));
}

#[test]
#[allow(clippy::print_stderr, reason = "a test says why it did not run")]
fn nvidias_assembler_compiles_a_twin() {
    let from_path =
        || std::env::split_paths(&std::env::var_os("PATH")?).map(|it| it.join("ptxas")).find(|it| it.exists());
    let Some(ptxas) = std::env::var_os("PTXAS").map(PathBuf::from).or_else(from_path) else {
        eprintln!("skipped: no GPU toolkit: neither PTXAS nor the PATH names a ptxas");
        return;
    };
    let text = include_str!("../../twins/tests/golden/first.ptx");
    let candidates = [ptxas];
    let cubin = Compiler::default().compile(Order { text, ..order(&candidates, None) }).unwrap();
    assert!(cubin.code.starts_with(b"\x7fELF"));
    let [usage] = &cubin.usage[..] else { panic!("one kernel") };
    assert!(usage.kernel == "first$xpt" && usage.registers > 0, "{usage:?}");
    let text = text.replace("ret;", "rat;");
    let failed = Compiler::default().compile(Order { text: &text, ..order(&candidates, None) });
    assert!(matches!(failed, Err(NoCubin::Failed(it)) if it.contains("Not a name of any known instruction: 'rat'")));
}
