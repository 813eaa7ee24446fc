//! What shells and man(1) are given: each is asked where it is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn xputrace(words: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_xputrace")).args(words).output().expect("the binary runs");
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Completions in a file.
struct Completions {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Completions {
    fn of(shell: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("completions");
        std::fs::write(&path, xputrace(&["completions", shell])).unwrap();
        Completions { _directory: directory, path }
    }
}

/// Runs a shell's script with these arguments; `None` if there is no such shell.
#[expect(clippy::print_stdout, reason = "tests/run.sh counts what was skipped by these lines")]
fn run(shell: &[&str], script: &str, arguments: &[&str]) -> Option<Vec<String>> {
    let done = Command::new(shell[0]).args(&shell[1..]).arg("-c").arg(script).args(arguments).output();
    let Ok(Output { status, stdout, stderr }) = done else {
        println!("skipped: no {}", shell[0]);
        return None;
    };
    assert!(status.success() && stderr.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
    Some(String::from_utf8(stdout).unwrap().lines().map(str::to_owned).collect())
}

/// What is typed, and what any shell must offer for it.
const TYPED: &[(&[&str], &[&str])] = &[
    (&["check", "launch"], &["launchlat", "launchlat-device", "launchshape", "launchwhy"]),
    (&["check", "--qu"], &["--quiet"]),
    (&["comp"], &["completions"]),
    (&["completions", ""], &["bash", "fish", "zsh"]),
    (&["help", "mem"], &["memcoalesce", "memcpy", "memcpystat", "memset"]),
    (&["memcpyst"], &["memcpystat"]),
    (&["--on-conflict", "y"], &["yield"]),
    (&["run", "--on-conflict", "y"], &["yield"]),
];

#[test]
fn bash_offers_verbs_options_scripts_and_events() {
    let file = Completions::of("bash");
    let ask = r#"source "$0"
        COMP_WORDS=(xputrace "$@") COMP_CWORD=$# COMPREPLY=()
        _xputrace xputrace "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        for it in "${COMPREPLY[@]}"; do case $it in -h | --help | -?) ;; *) echo "$it" ;; esac; done | sort"#;
    for (typed, expected) in TYPED {
        let words: Vec<&str> = [file.path.to_str().unwrap()].into_iter().chain(typed.iter().copied()).collect();
        let Some(offered) = run(&["bash"], ask, &words) else { return };
        assert_eq!(offered, *expected, "{typed:?}");
    }
}

#[test]
fn fish_offers_verbs_options_scripts_and_events() {
    let file = Completions::of("fish");
    for (typed, expected) in TYPED {
        let line = format!("xputrace {}", typed.join(" "));
        let ask =
            r#"source $argv[1]; complete -C $argv[2] | string replace -r '\t.*' '' | string match -v -- -h | sort"#;
        let words = [file.path.to_str().unwrap(), &line];
        let Some(offered) = run(&["fish", "--no-config"], ask, &words) else { return };
        let offered: Vec<_> = offered.iter().filter(|it| !it.starts_with("-h") && *it != "--help").collect();
        assert_eq!(offered, *expected, "{typed:?}");
    }
}

#[test]
fn zsh_offers_verbs_options_scripts_and_events() {
    let file = Completions::of("zsh");
    let directory = file.path.parent().unwrap();
    std::fs::write(directory.join(".zshrc"), ZSHRC).unwrap();
    for (typed, expected) in TYPED {
        let line = format!("xputrace {}", typed.join(" "));
        let Some(offered) = run(&["zsh", "-f"], ZSH, &[directory.to_str().unwrap(), &line]) else { return };
        assert_eq!(offered, *expected, "{typed:?}");
    }
}

/// What an interactive zsh begins with: it writes what it would offer, and when it is ready and done, to a file.
const ZSHRC: &str = r#"
PS1= PS2= RPS1=
autoload -Uz compinit; compinit -u -D
source $ZDOTDIR/completions
compadd() {
    local -a offered
    builtin compadd -O offered "$@"
    print -rl -- OFFERED${^offered} >> $ZDOTDIR/offered
    builtin compadd "$@"
}
offer() { _main_complete; compstate[insert]= compstate[list]=; print DONE >> $ZDOTDIR/offered }
zle -C offer list-choices offer
bindkey '^X' offer
zle-line-init() { print READY >> $ZDOTDIR/offered }
zle -N zle-line-init
"#;

/// zsh completes only at a terminal: types a line at one, and prints what was offered.
const ZSH: &str = r#"
zmodload zsh/zpty
export ZDOTDIR=$0
: > $ZDOTDIR/offered
wait_for() {
    repeat 2400; do grep -q $1 $ZDOTDIR/offered && return; sleep 0.05; done
    print -u2 "zsh has not come to $1"; exit 1
}
zpty -b shell zsh -i
wait_for READY
zpty -n -w shell "$1"$'\x18'
wait_for DONE
zpty -d shell
sed -n 's/^OFFERED//p' $ZDOTDIR/offered | grep . | sort -u
"#;

#[test]
fn definitions_have_a_function_for_each_event() {
    let text = xputrace(&["definitions"]);
    assert!(text.starts_with("module static;\n"));
    for head in [
        "\n/// - `duration` (integer, ns): `end - start`\n",
        "\nfn kernel(handler: Fn) -> Probe;\n",
        "\nfn memcpy(options: Map, handler: Fn) -> Probe;\n",
        "\nfn uprobe(target: String, options: Map, handler: Fn) -> Probe;\n",
        "\nfn profile(rate_or_period: int, handler: Fn) -> Probe;\n",
        "\nfn end(handler: Fn) -> Probe;\n",
        "\nfn launches() -> int;\n",
    ] {
        assert!(text.contains(head), "{head}");
    }
}

/// Words that can name neither a function nor a parameter. Source: "Keywords" in Rhai's book, the active and the
/// reserved ones; `exit` is one of the language server's own.
const WORDS: &str = " true false let const if else switch do while loop until for in continue break fn private this \
    return throw try catch import export as global Fn call curry type_of eval is_def_fn is_def_var is_shared var \
    static default match case public protected new use with is module package super thread spawn go shared sync \
    async await yield exit void null nil ";

#[test]
fn definitions_name_nothing_by_a_word_of_the_language() {
    let text = xputrace(&["definitions"]);
    for head in text.lines().filter_map(|it| it.strip_prefix("fn ")) {
        let (name, rest) = head.split_once('(').unwrap();
        let (parameters, _) = rest.split_once(')').unwrap();
        let named = parameters.split(',').filter_map(|it| it.split_once(':')).map(|(name, _)| name.trim());
        for word in named.chain([name]) {
            assert!(!WORDS.contains(&format!(" {word} ")), "{head}");
        }
    }
}

/// Every page, by its name.
fn pages(directory: &Path) -> Vec<PathBuf> {
    let written = xputrace(&["man", "-o", directory.to_str().unwrap()]);
    written.lines().map(PathBuf::from).collect()
}

#[test]
fn every_verb_has_a_manual_page_that_groff_renders_without_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let pages = pages(directory.path());
    assert!(pages.len() > 10, "{pages:?}");
    for page in pages {
        let mut groff = Command::new("groff");
        groff.args(["-man", "-ww", "-Tutf8", "-P-cbou", "-k"]).arg(&page).stdin(Stdio::null());
        let Ok(done) = groff.output() else {
            println!("skipped: no groff");
            return;
        };
        let (text, warnings) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
        let name = page.file_stem().unwrap().to_str().unwrap();
        assert!(text.contains("SYNOPSIS") && text.contains(name), "{text}");
    }
}

#[test]
fn the_page_of_a_verb_is_the_one_that_is_written() {
    let directory = tempfile::tempdir().unwrap();
    pages(directory.path());
    let written = std::fs::read_to_string(directory.path().join("xputrace-check.1")).unwrap();
    assert_eq!(xputrace(&["man", "check"]), written);
    assert!(xputrace(&["man"]).contains("SUBCOMMANDS"));
}
