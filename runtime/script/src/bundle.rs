//! Bundled texts: ready-made scripts and the standard library.

use xputrace_model::diagnostic::SourceFile;

/// A bundled text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundled {
    /// The name in `import` or on the command line, such as `latency`.
    pub name: &'static str,
    pub text: &'static str,
    pub kind: BundledKind,
}

/// How a bundled text is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundledKind {
    /// Run by name: `xputrace launchlat`.
    Script,
    /// Imported: `import "latency" as l`.
    Library,
}

macro_rules! texts {
    ($all:ident, $scripts:ident: [$($script:literal),*], $library:ident: [$($module:literal),*]) => {
        static $scripts: &[Bundled] = &[$(texts!(Script, "scripts", $script)),*];
        static $library: &[Bundled] = &[$(texts!(Library, "stdlib", $module)),*];
        static $all: &[(&str, &str)] = &[
            $(($script, texts!("scripts", $script)),)*
            $(($module, texts!("stdlib", $module)),)*
        ];
    };
    ($kind:ident, $dir:literal, $name:literal) => {
        Bundled { name: $name, text: texts!($dir, $name), kind: BundledKind::$kind }
    };
    ($dir:literal, $name:literal) => {
        include_str!(concat!("../../../", $dir, "/", $name, ".rhai"))
    };
}

texts! {
    ALL,
    SCRIPTS: [
        "summary",
        "kerneltop",
        "flame",
        "launchlat",
        "over100ms",
        "memcpystat",
        "nvtxtime",
        "request",
        "launchshape",
        "graphtime",
        "stages",
        "gpuidle",
        "launchwhy",
        "ncclstat",
        "streams",
        "gpubalance",
        "gpumem",
        "waitstat",
        "apistat",
        "gpuerr",
        "threadhist",
        "blocktime",
        "smbusy",
        "kernelargs",
        "hotlines",
        "launchlat-device",
        "memcoalesce",
        "bankconflict",
        "warpdiv"
    ],
    STDLIB: ["latency", "flame", "request", "units", "fmt", "python", "occupancy", "ranges", "clock"]
}

/// Returns all of them as `(name, text)`, scripts first; a script and a library may share a name.
pub fn bundled() -> &'static [(&'static str, &'static str)] {
    ALL
}

/// Returns the ready-made scripts.
pub fn scripts() -> &'static [Bundled] {
    SCRIPTS
}

/// Returns the standard library.
pub fn stdlib() -> &'static [Bundled] {
    STDLIB
}

impl Bundled {
    /// Returns the first line of its manual, which lists show.
    pub fn summary(&self) -> &'static str {
        let first = self.text.lines().next().unwrap_or_default();
        first.trim_start_matches(['/', '*', '!']).trim()
    }

    /// Returns it as a source, under the name that messages use.
    pub fn source(&self) -> SourceFile {
        let dir = match self.kind {
            BundledKind::Script => "scripts",
            BundledKind::Library => "stdlib",
        };
        SourceFile { name: format!("{dir}/{}.rhai", self.name), text: self.text.to_owned() }
    }
}
