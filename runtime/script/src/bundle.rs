//! The texts that come with the program: ready-made scripts, and the standard library.

use xputrace_model::diagnostic::SourceFile;

/// A text that comes with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundled {
    /// `latency`; what `import` or the command line says.
    pub name: &'static str,
    pub text: &'static str,
    pub kind: BundledKind,
}

/// What a bundled text is for.
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
    SCRIPTS: ["summary", "kerneltop", "flame", "launchlat", "over100ms", "request"],
    STDLIB: ["latency", "flame", "request", "units", "fmt"]
}

/// All of them as `(name, text)`, scripts first; a name can be a script's and a library's.
pub fn bundled() -> &'static [(&'static str, &'static str)] {
    ALL
}

/// The ready-made scripts.
pub fn scripts() -> &'static [Bundled] {
    SCRIPTS
}

/// The standard library.
pub fn stdlib() -> &'static [Bundled] {
    STDLIB
}

impl Bundled {
    /// The first line of its manual: the summary that lists show.
    pub fn summary(&self) -> &'static str {
        let first = self.text.lines().next().unwrap_or_default();
        first.trim_start_matches(['/', '*', '!']).trim()
    }

    /// It as a source, under the name that messages give it.
    pub fn source(&self) -> SourceFile {
        let dir = match self.kind {
            BundledKind::Script => "scripts",
            BundledKind::Library => "stdlib",
        };
        SourceFile { name: format!("{dir}/{}.rhai", self.name), text: self.text.to_owned() }
    }
}
